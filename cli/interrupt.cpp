#include "cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "core/error.h"

namespace faultline::cli {
namespace {

bool is_ignored(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

void end_process(int signal) {
  const sigset_t only = set_of({signal});
  ::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  kill(getpid(), signal);
}

Interrupt::Interrupt() {
  sigset_t taken = set_of({SIGINT, SIGTERM});
  if (!is_ignored(SIGHUP)) sigaddset(&taken, SIGHUP);
  signals_ = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || end_ < 0) {
    throw IoError(fmt::format("cannot watch for Ctrl-C: {}", std::strerror(errno)));
  }
  pthread_sigmask(SIG_BLOCK, &taken, &mask_before_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  watcher_ = std::thread([this] { watch(); });
}

Interrupt::~Interrupt() {
  eventfd_write(end_, 1);
  watcher_.join();
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  close(signals_);
  close(end_);
}

void Interrupt::check() const {
  if (requested()) throw Interrupted{noted_};
}

void Interrupt::watch() {
  pollfd both[] = {{signals_, POLLIN, 0}, {end_, POLLIN, 0}};
  for (;;) {
    poll(both, 2, -1);
    signalfd_siginfo came = {};
    while (read(signals_, &came, sizeof came) == sizeof came) {
      const int signal = static_cast<int>(came.ssi_signo);
      if (!noting_ || noted_.exchange(signal) != 0) end_process(signal);
    }
    if (both[1].revents != 0) return;
  }
}

}  // namespace faultline::cli
