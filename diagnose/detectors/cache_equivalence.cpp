// cache.equivalence: a token's logits are the same with the cache as from the whole text anew.
//
// Sees: generation's passes over a cache, and runs the model again on the whole texts, without a
// cache, on a Context of its own: nobody's replacements and observers are there.
// Fires: at the first pass whose logits differ by more than rounding. Both ways sum in another
// order, which is 1e-3 of the largest |logit| at most (measured: 2e-5 on 12 layers); keys and
// values that were kept in 16 bits may add 16 unit roundoffs of that dtype: one for each key and
// value, through some layers. It says that cached decoding is wrong, not why: no cause. cache.past,
// cache.content and attention.alignment look for the reasons. Silent: prompts (nothing is cached),
// a cache that is right, and passes that are not looked at: it looks at the 1st, 2nd, 4th, 8th ...
// over a cache, since each look costs a whole forward pass.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/functional.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "nn/left_padding.h"
#include "train/generation.h"

namespace faultline::diagnose {
namespace {

// The logits [B, 1, V] of the last tokens, computed anew.
std::vector<double> anew(nn::LanguageModel& model, const train::TokenRows& texts, int threads) {
  Context quiet({.threads = threads});
  const ContextGuard guard(quiet);
  const NoGrad off;
  std::vector<int64_t> lengths;
  for (const auto& text : texts) lengths.push_back(std::ssize(text));
  const nn::LeftPadding padding(lengths);
  std::vector<int32_t> tokens;
  for (size_t b = 0; b < texts.size(); ++b) {
    tokens.insert(tokens.end(), static_cast<size_t>(padding.pads()[b]), 0);
    tokens.insert(tokens.end(), texts[b].begin(), texts[b].end());
  }
  const int64_t T = padding.slots();
  nn::ModelInput input{.tokens_BT = tensor(tokens, {std::ssize(texts), T}),
                       .mask = {.key_valid = padding.key_valid(T)}};
  input.positions_BT = padding.positions(0, T);
  input.last = 1;
  return model.forward(input).to_vector<double>();
}

double bound_of(DType cached) {
  const double rounding = cached == DType::f16 ? 0x1p-11 : cached == DType::bf16 ? 0x1p-8 : 0;
  return 1e-3 + 16 * rounding;
}

class CacheEquivalence : public Watcher {
 public:
  CacheEquivalence(Context& context, Findings& findings)
      : Watcher(context, findings, "cache.equivalence"), context_(context) {
    on(&CacheEquivalence::passed);
  }

 private:
  void passed(const train::GenerationLogitsEvent& event) {
    if (event.first == 0 || found_ || !std::has_single_bit(++passes_)) return;
    const int64_t longest = std::ssize(
        *std::max_element(event.texts.begin(), event.texts.end(),
                          [](const auto& a, const auto& b) { return a.size() < b.size(); }));
    if (longest > event.model.model_shape().seq_len) return;
    looked();
    const std::vector<double> cached = event.logits_B1V.to_vector<double>();
    const std::vector<double> right = anew(event.model, event.texts, context_.threads);
    double largest = 0;
    double difference = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      largest = larger_or_nan(largest, std::abs(right[i]));
      difference = larger_or_nan(difference, std::abs(cached[i] - right[i]));
    }
    const double bound = bound_of(event.cached) * largest;
    if (difference <= bound || !std::isfinite(largest)) return;
    found_ = true;
    report(
        "", 0.8, "logits",
        fmt::format("after {} cached slots a logit differs by {:.3g} from the whole text computed "
                    "anew; rounding explains {:.3g}",
                    event.first, difference, bound));
  }

  Context& context_;
  uint64_t passes_ = 0;  // over a cache
  bool found_ = false;
};

}  // namespace

DETECTOR(cache_equivalence) {
  return {"cache.equivalence", WatchLevel::full, {}, [](Context& context, Findings& findings) {
            return std::make_unique<CacheEquivalence>(context, findings);
          }};
}

}  // namespace faultline::diagnose
