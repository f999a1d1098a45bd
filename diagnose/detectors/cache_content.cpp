// cache.content: what is read from a cache is what was written: in its dtype, once, for the same
// tokens and weights.
//
// Sees: what caches announce (reads of pages with the dtype tag of each, hits of a prefix cache
// with the tokens and owner on both sides), the slots that a pass for gradients begins behind, and
// attention launches while a checkpointed segment runs again. Fires:
//   - kv.dtype-reinterpret, where a page is read as another dtype than was written, or where a
//     segment that runs again finds more earlier slots than the first time: it appends to the
//     cache again;
//   - kv.prefix-collision, where a page is reused for other tokens, after other tokens, or for
//   other
//     weights.
//   All of these compare for equality: there is no threshold.
// Silent: honest rounding into a cache of 16 bits, pages of free content, prefix caches that
// compare what they find, and segments that run again without a cache.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "diagnose/detector.h"
#include "kernels/attributes.h"
#include "nn/checkpoint.h"
#include "nn/kv_pages.h"
#include "nn/prefix_cache.h"
#include "train/prompt_loss.h"

namespace faultline::diagnose {
namespace {

// Where the first query of an attention launch stands among its keys.
std::optional<int64_t> query_offset(const Launch& launch) {
  const std::string_view op = launch.label.op;
  const Attributes& attributes = launch.args.attributes;
  if (op == "attention") return attributes.as<MaskAttributes>().query_offset;
  if (op == "flash_attention") return attributes.as<FlashAttentionAttributes>().mask.query_offset;
  return std::nullopt;
}

std::string what_differs(const nn::PrefixHitEvent& hit) {
  const nn::PrefixBlock& asked = hit.asked;
  const nn::PrefixBlock& kept = hit.kept;
  if (!(asked.owner == kept.owner)) {
    return fmt::format("of the weights '{}', computed by '{}'", asked.owner.weights,
                       kept.owner.weights);
  }
  const auto [a, k] = std::mismatch(asked.tokens.begin(), asked.tokens.end(), kept.tokens.begin(),
                                    kept.tokens.end());
  if (a != asked.tokens.end()) {
    const auto place = a - asked.tokens.begin();
    return k == kept.tokens.end()
               ? fmt::format("longer than what was computed, {} tokens", place)
               : fmt::format("with token {} at place {}, computed for token {}", *a, place, *k);
  }
  return asked.before == kept.before ? "" : "behind other tokens than those it was computed behind";
}

class CacheContent : public Watcher {
 public:
  CacheContent(Context& context, Findings& findings) : Watcher(context, findings, "cache.content") {
    on(&CacheContent::read);
    on(&CacheContent::hit);
    on(&CacheContent::launched);
    on(&CacheContent::passes);
    on(&CacheContent::begins_again);
    on(&CacheContent::ends_again);
  }

 private:
  void read(const nn::PageReadEvent& event) {
    looked();
    if (event.read == event.written) return;
    report("kv.dtype-reinterpret", 0.99, "kv pages",
           fmt::format("page {}, layer {}: its slots were written as {} and read as {}; the same "
                       "bits are other numbers",
                       event.page, event.layer, name(event.written), name(event.read)));
  }

  void hit(const nn::PrefixHitEvent& event) {
    looked();
    const std::string found = what_differs(event);
    if (found.empty()) return;
    report("kv.prefix-collision", 0.99, "prefix cache",
           fmt::format("a page was reused for a block {}", found));
  }

  // The same module's attention, when it runs again, must attend as it did.
  void launched(const LaunchEvent& event) {
    const std::optional<int64_t> offset = query_offset(event.launch);
    if (!offset) return;
    if (!again_) {
      first_[event.launch.label.module] = *offset;
      return;
    }
    const auto first = first_.find(event.launch.label.module);
    if (first != first_.end()) compare(event.launch.label.module, first->second, *offset);
  }

  // A pass that is longer than the model's positions never comes to attention.
  void passes(const train::GradientCacheEvent& event) {
    if (!again_) {
      first_of_pass_ = event.first;
      return;
    }
    compare("", first_of_pass_, event.first);
  }

  void compare(const char* module, int64_t first, int64_t again) {
    looked();
    if (first >= again) return;
    report(
        "kv.dtype-reinterpret", 0.97, "attention",
        fmt::format("{}{}a segment that ran again for the backward pass found {} earlier slots in "
                    "the cache where there were {}: it appends its keys twice, and the gradient "
                    "is that of another function",
                    module, *module == 0 ? "" : ": ", again, first));
  }
  void begins_again(const nn::RecomputeBeginEvent&) { again_ = true; }
  void ends_again(const nn::RecomputeEndEvent&) { again_ = false; }

  bool again_ = false;
  int64_t first_of_pass_ = 0;
  std::map<std::string_view, int64_t>
      first_;  // offset by module; names live as long as the process
};

}  // namespace

DETECTOR(cache_content) {
  return {
      "cache.content",
      WatchLevel::full,
      {{"kv.dtype-reinterpret",
        "What attention read from the cache is not what was written: bits of one 16-bit type "
        "taken for another, or keys that a recomputed forward pass appended a second time.",
        "Keep the dtype with each page and compare it at every read; use no cache in a pass "
        "that a backward pass may run again.",
        "Every page is read as it was written, and the cache is as long after the backward pass "
        "as before it."},
       {"kv.prefix-collision",
        "A prefix cache gave out a page by its hash alone: the keys and values belong to other "
        "tokens or other weights.",
        "Keep tokens, owner (base, adapter, dtype) and the block before with each page, and "
        "compare them at every hit.",
        "Every page that is reused has equal tokens, an equal owner and an equal beginning."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<CacheContent>(context, findings);
      }};
}

}  // namespace faultline::diagnose
