#pragma once

namespace faultline::cli {

// While this lives, the first SIGINT or SIGTERM is only noted, so that a run can end after a whole
// step and save; the second one ends the process as usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
};

}  // namespace faultline::cli
