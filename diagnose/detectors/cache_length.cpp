// cache.length: a micro-batch that is trained does not attend to the keys of the one before.
//
// Sees: the tokens of a micro-batch (BatchEvent), and between it and its objective the number of
// keys of what attention shows, of flash_attention, and of a masked softmax.
// Fires: at the first attention over as many keys as the micro-batch before had, and its own tokens
// behind them: kv.micro-batch. Nobody has a right to the keys of another micro-batch, so that the
// number proves it.
// Silent: in evaluation and generation, where a cache is right; outside of a micro-batch's forward
// pass, so in the backward pass, where a checkpointed layer may run again; on keys that are more by
// another number, which a learned prefix, or wrong lengths (attention.lengths), explain.
// It serves one case in the lab; training with a cache is the rare way to meet it.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

class CacheLength : public Watcher {
 public:
  CacheLength(Context& context, Findings& findings) : Watcher(context, findings, "cache.length") {
    on(&CacheLength::batch_comes);
    on(&CacheLength::evaluation_begins);
    on(&CacheLength::goes_backward);
    on(&CacheLength::launched);
  }

 private:
  void batch_comes(const train::BatchEvent& event) {
    if (event.batch.inputs.rank() != 2) return;
    tokens_ = event.batch.inputs.size(1);
    ++micro_batch_;
  }
  void evaluation_begins(const train::EvaluationBeginEvent&) { tokens_ = 0; }
  void goes_backward(const train::ObjectiveEvent&) {
    if (tokens_ > 0) before_ = keys_;
    tokens_ = 0;
    keys_ = 0;
  }

  // Of a launch of attention; 0 for others.
  static int64_t keys_of(const Launch& launch) {
    if (launch.label.phase != Phase::forward) return 0;
    if (std::string_view(launch.label.op) == "flash_attention") {
      return launch.args.inputs[1].shape[2];
    }
    return ShownAttention::is_shown_by(launch) ? ShownAttention(launch).keys() : 0;
  }

  void launched(const LaunchEvent& event) {
    if (tokens_ == 0 || found_) return;
    const int64_t keys = keys_of(event.launch);
    if (keys == 0) return;
    looked();
    keys_ = std::max(keys_, keys);
    if (before_ == 0 || keys != before_ + tokens_) return;
    found_ = true;
    report("kv.micro-batch", 0.98, "attention",
           fmt::format("{}{}{} keys for the {} tokens of micro-batch {}; the one before had {}",
                       event.launch.label.module, *event.launch.label.module != 0 ? ": " : "", keys,
                       tokens_, micro_batch_, before_));
  }

  bool found_ = false;
  int64_t tokens_ = 0;  // of a sequence of the micro-batch that goes forward; 0 outside
  int64_t keys_ = 0;    // the most that it attended to
  int64_t before_ = 0;  // the same of the one before
  int64_t micro_batch_ = 0;
};

}  // namespace

DETECTOR(cache_length) {
  return {"cache.length",
          WatchLevel::full,
          {{"kv.micro-batch",
            "A key-value cache outlives a micro-batch: the next one attends to the keys of a text "
            "that is not its own.",
            "Train without a cache, or make one for each forward pass; refuse to store keys while "
            "gradients are on.",
            "In training attention has as many keys as the sequence has tokens, in every "
            "micro-batch."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<CacheLength>(context, findings);
          }};
}

}  // namespace faultline::diagnose
