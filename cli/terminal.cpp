#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace faultline::cli {

int terminal_columns() {
  constexpr int kUsual = 80;
  if (isatty(STDOUT_FILENO) != 1) return 0;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

void show(std::string_view text) {
  std::fflush(stdout);
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace faultline::cli
