#include "cli/interrupt.h"

#include <csignal>

namespace faultline::cli {
namespace {

// A signal handler has nothing but statics to write to.
volatile std::sig_atomic_t noted = 0;

void note(int) { noted = 1; }

void install(int signal) {
  struct sigaction action = {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  // Once only, and a write that is under way goes on.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupt::Interrupt() {
  noted = 0;
  install(SIGINT);
  install(SIGTERM);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupt::requested() const { return noted != 0; }

}  // namespace faultline::cli
