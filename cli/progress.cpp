#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"
#include "train/loss_text.h"

namespace faultline::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kSilence = std::chrono::seconds(5);
constexpr int kBar = 20;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string clock_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 359999.0));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

Progress::Progress(int64_t first_step, int64_t last_step)
    : first_(first_step),
      last_(last_step),
      terminal_(terminal_columns() > 0),
      start_(Clock::now()),
      shown_(start_ - kRedraw) {}

Progress::~Progress() {
  if (open_) show("\n");
}

void Progress::step(const train::StepResult& result) {
  tokens_ += result.tokens;
  const auto now = Clock::now();
  const int64_t tenth = std::max<int64_t>(1, (last_ - first_ + 1) / 10);
  const bool last = result.step == last_;
  const bool wanted =
      terminal_ ? last || now - shown_ >= kRedraw
                : last || (result.step - first_ + 1) % tenth == 0 || now - shown_ >= kSilence;
  if (!wanted) return;
  shown_ = now;
  const std::string line = text(result, seconds(now - start_));
  if (!terminal_) {
    show(line + "\n");
    return;
  }
  overwrite(line);
  if (last) show("\n");
  open_ = !last;
}

// One column stays free: a terminal may wrap when the last one is written.
void Progress::overwrite(const std::string& line) const {
  const int width = std::max(1, terminal_columns() - 1);
  show(fmt::format("\r{:<{}.{}}", line, width, width));
}

std::string Progress::text(const train::StepResult& result, double seconds) const {
  const auto done = static_cast<double>(result.step - first_ + 1);
  const auto all = static_cast<double>(last_ - first_ + 1);
  const double left = seconds / done * (all - done);
  const double speed = static_cast<double>(tokens_) / std::max(seconds, 1e-9);
  const std::string rest = fmt::format(
      "loss {}  {:.0f} tokens/s  {}", train::loss_text(result.loss), speed,
      result.step == last_ ? clock_time(seconds) + " in all" : clock_time(left) + " left");
  if (!terminal_) return fmt::format("step {}/{}  {}", result.step, last_, rest);
  const int filled = static_cast<int>(done / all * kBar);
  return fmt::format("{}/{} [{:-<{}}] {}", result.step, last_, std::string(filled, '#'), kBar,
                     rest);
}

void Progress::say(const std::string& line) {
  if (open_) {
    overwrite("");
    show("\r");
  }
  open_ = false;
  show(line + "\n");
}

}  // namespace faultline::cli
