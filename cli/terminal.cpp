#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace faultline::cli {

int terminal_columns() {
  constexpr int kUsual = 80;
  if (isatty(STDOUT_FILENO) != 1) return 0;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

namespace {
bool was_shown(std::string_view text) {
  if (std::fflush(stdout) != 0) return false;
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}
}  // namespace

void show(std::string_view text) { static_cast<void>(was_shown(text)); }

void print_at_once(std::string_view text) {
  if (!was_shown(text)) {
    throw IoError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

}  // namespace faultline::cli
