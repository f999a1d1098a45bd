// cache.past: a pass with a cache goes on where the earlier ones ended: its keys are stored behind
// them, its queries and positions stand behind them, and nothing else is read.
//
// Sees: what caches announce (where a pass stored its keys, how many slots attention is given), the
// mask that the next attention launch is told, `math` or `flash`, and the positions of generation's
// passes beside the texts of its rows.
// Fires, as attn.past-ignored:
//   - where a pass stores keys on slots that are filled already;
//   - where slots are filled before a pass, and attention over that cache is told that the first
//     query stands at key 0 (the record says past 0; a right record that is not followed is
//     attn.causal-align's);
//   - where attention is given slots that nobody has filled and the mask hides none of them from a
//     query;
//   - where a token of a row is given another position than its place in the row's text.
//   All of these are whole numbers: there is no threshold.
// Silent: without a cache or generation, cross attention and other calls between passes (their
// numbers of keys differ), sliding contexts (computed anew, they begin at 0), and positions that
// are right but for the padding's.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "diagnose/detector.h"
#include "kernels/attributes.h"
#include "nn/kv_cache.h"
#include "train/generation.h"

namespace faultline::diagnose {
namespace {

constexpr const char* kCause = "attn.past-ignored";

// The mask and keys of an attention launch.
struct Attended {
  MaskAttributes mask;
  int64_t queries;
  int64_t keys;
  bool padded;
};

std::optional<Attended> attended(const Launch& launch) {
  const std::string_view op = launch.label.op;
  const KernelArgs& args = launch.args;
  if (op == "attention") {
    const Shape& weights = args.inputs[1].shape;
    return Attended{args.attributes.as<MaskAttributes>(), weights[2], weights[3],
                    args.inputs[2].defined() || args.inputs[4].defined()};
  }
  if (op == "flash_attention") {
    return Attended{args.attributes.as<FlashAttentionAttributes>().mask, args.inputs[0].shape[2],
                    args.inputs[1].shape[2], args.inputs[3].defined()};
  }
  return std::nullopt;
}

class CachePast : public Watcher {
 public:
  CachePast(Context& context, Findings& findings) : Watcher(context, findings, "cache.past") {
    on(&CachePast::appended);
    on(&CachePast::launched);
    on(&CachePast::began);
  }

 private:
  struct Append {
    int64_t layer;
    int64_t length;
    nn::SlotRange slots;
    int64_t given;
    int64_t filled() const { return std::max(length, slots.end); }
  };

  void appended(const nn::KvAppendEvent& event) {
    looked();
    waiting_ = Append{event.layer, event.length, event.slots, event.given};
    if (event.slots.begin >= event.length) return;
    report(kCause, 0.97, "kv cache",
           fmt::format("layer {}: {} slots are filled, and the keys of a new pass went to slots {} "
                       "to {}, over older ones",
                       event.layer, event.length, event.slots.begin, event.slots.end - 1));
  }

  void launched(const LaunchEvent& event) {
    if (!waiting_) return;
    const std::optional<Attended> call = attended(event.launch);
    if (!call || call->keys != waiting_->given) return;
    const Append pass = *waiting_;
    waiting_.reset();
    if (call->mask.causal && call->mask.query_offset == 0 && pass.length > 0 &&
        call->queries < call->keys) {
      report(kCause, 0.98, "attention",
             fmt::format("layer {}: the cache holds {} earlier slots, and the mask says that the "
                         "first of {} new queries stands at key 0 of {}",
                         pass.layer, pass.length, call->queries, call->keys));
    }
    check_unwritten(pass, *call);
  }

  void check_unwritten(const Append& pass, const Attended& call) {
    if (pass.given <= pass.filled() || call.padded) return;
    const int64_t last = call.mask.query_offset + call.queries - 1;
    const bool hidden = call.mask.causal && last < pass.filled();
    if (hidden) return;
    report(kCause, 0.97, "attention",
           fmt::format("layer {}: {} of {} slots of the cache are filled, and attention sees all "
                       "of them: {} hold nothing",
                       pass.layer, pass.filled(), pass.given, pass.given - pass.filled()));
  }

  void began(const train::GenerationInputEvent& event) {
    looked();
    const int64_t T = event.input.tokens_BT.size(1);
    const Tensor& given = event.input.positions_BT;
    std::vector<int32_t> positions;
    if (given.defined()) positions = given.to_vector<int32_t>();
    for (size_t b = 0; b < event.texts.size(); ++b) {
      const auto length = static_cast<int64_t>(event.texts[b].size());
      for (int64_t i = std::max<int64_t>(0, T - length); i < T; ++i) {
        const int64_t right = length - T + i;
        const size_t at = given.defined() && given.rank() == 2
                              ? b * static_cast<size_t>(T) + static_cast<size_t>(i)
                              : static_cast<size_t>(i);
        const int64_t found = positions.empty() ? event.input.mask.query_offset + i : positions[at];
        if (found == right) continue;
        report(kCause, 0.96, "positions",
               fmt::format("row {}: token {} of its text is given position {}; {} slots are in the "
                           "cache",
                           b, right, found, event.first));
        return;
      }
    }
  }

  std::optional<Append> waiting_;  // whose attention is due
};

}  // namespace

DETECTOR(cache_past) {
  return {"cache.past",
          WatchLevel::full,
          {{kCause,
            "A pass with a cache behaves as if nothing had been computed before: its keys, its "
            "queries or its positions begin at 0 again, or slots without content are read.",
            "Give the pass the number of cached slots: as the mask's query offset, as the first "
            "slot to write, and, less the row's padding, as its first position; hide what is not "
            "filled.",
            "New keys follow the filled slots, the mask's offset is their number, and every token "
            "has its place in its row as position."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<CachePast>(context, findings);
          }};
}

}  // namespace faultline::diagnose
