#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace faultline::cli {

// A command was stopped by a signal and has undone what it began. Ends the process in `main`, and
// is no error: nobody else catches it.
struct Interrupted {
  int signal;
};

// Does to this process what the signal does to one that does not care for it.
void end_process(int signal);

// SIGINT, SIGTERM and SIGHUP of a command. Once `note_the_next` was called the first of them is
// only noted, so that a run can end after a whole step and save, or a command undo what it began;
// any other ends the process as usual. A SIGHUP that was ignored before (nohup) stays so. A reader
// of the output that goes away does not end the process (no SIGPIPE).
//
// No thread that computes may run a signal handler: oneDNN's products (2.6, AVX2 and AVX-512) keep
// data further below the stack pointer than the 128 bytes that the ABI protects, where the kernel
// writes a handler's frame; memory is damaged then. So the signals are blocked in every thread, and
// one that does nothing else takes them. Make this before OpenMP makes its threads, which have the
// mask of the one that makes them. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  void note_the_next() { noting_ = true; }
  bool requested() const { return noted_ != 0; }
  // Throws Interrupted when a signal was noted.
  void check() const;

 private:
  void watch();

  sigset_t mask_before_;
  struct sigaction pipe_before_;
  int signals_ = -1;  // readable when one of them came
  int end_ = -1;      // readable when this goes
  std::atomic<bool> noting_ = false;
  std::atomic<int> noted_ = 0;  // the signal
  std::thread watcher_;
};

}  // namespace faultline::cli
