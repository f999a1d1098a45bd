#include "diagnose/attention_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/error.h"
#include "core/rng.h"
#include "diagnose/model_runs.h"
#include "diagnose/values.h"

// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
namespace faultline::diagnose {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor bools(const std::vector<uint8_t>& values, const Shape& shape) {
  Tensor result = empty(shape, DType::boolean);
  std::copy(values.begin(), values.end(), result.mutable_data<bool>().begin());
  return result;
}

nn::Mask mask_of(const AttentionProbe& probe) {
  nn::Mask mask{.causal = probe.causal,
                .query_offset = probe.query_offset,
                .key_valid = {},
                .documents = {},
                .window = probe.window,
                .prefix = probe.prefix,
                .sinks = probe.sinks};
  const Shape shape{probe.batch, probe.keys};
  if (!probe.key_valid.empty()) mask.key_valid = bools(probe.key_valid, shape);
  if (!probe.documents.empty()) mask.documents = tensor(probe.documents, shape);
  if (!probe.bias.empty()) {
    mask.bias = tensor(probe.bias, {probe.batch, probe.heads, probe.queries, probe.keys});
  }
  return mask;
}

Tensor answer_of(const AttentionProbe& probe, const AttentionFunction& attend) {
  invariant(probe.scale == 0, "attention probes: '{}' asks for a scale that no function is given",
            probe.name);
  const int64_t B = probe.batch;
  const int64_t D = probe.head_size;
  return attend(tensor(probe.q, {B, probe.heads, probe.queries, D}),
                tensor(probe.k, {B, probe.key_heads, probe.keys, D}),
                tensor(probe.v, {B, probe.key_heads, probe.keys, D}), mask_of(probe),
                probe.softcap);
}

struct Answers {
  std::map<std::string, Tensor> given;  // by probe
  std::string refused;                  // what the first one threw, after its probe's name
};

Answers ask(const std::vector<AttentionProbe>& probes, const AttentionFunction& attend) {
  const NoGrad off;
  Answers answers;
  for (const AttentionProbe& probe : probes) {
    try {
      answers.given[probe.name] = answer_of(probe, attend);
    } catch (const Error& error) {
      if (answers.refused.empty()) {
        answers.refused = fmt::format("'{}' is refused: {}", probe.name, error.what());
      }
    }
  }
  return answers;
}

// Zero queries and keys make all scores 0; the values are the identity, so D is K.
AttentionProbe showing_weights(AttentionProbe probe) {
  const int64_t K = probe.keys;
  const auto size = [&](int64_t heads, int64_t rows) {
    return static_cast<size_t>(probe.batch * heads * rows * K);
  };
  probe.head_size = K;
  probe.q.assign(size(probe.heads, probe.queries), 0);
  probe.k.assign(size(probe.key_heads, K), 0);
  probe.v.assign(size(probe.key_heads, K), 0);
  for (size_t i = 0; i < probe.v.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / K;
    if (row % K == static_cast<int64_t>(i) % K) probe.v[i] = 1;
  }
  return probe;
}

std::vector<AttentionProbe> visibility_probes() {
  std::vector<AttentionProbe> probes;
  for (AttentionProbe& probe : attention_probes()) {
    if (probe.softcap != 0) continue;  // changes no zero
    probes.push_back(showing_weights(std::move(probe)));
  }
  return probes;
}

// Of the answers those to probes of few keys: a name costs keys to the third power for each
// mistake.
std::map<std::string, Tensor> short_ones(const std::vector<AttentionProbe>& probes,
                                         std::map<std::string, Tensor> given) {
  constexpr int64_t kMostKeys = 16;
  for (const AttentionProbe& probe : probes) {
    if (probe.keys > kMostKeys) given.erase(probe.name);
  }
  return given;
}

// Pairs whose weight is nonzero where it should be zero, or the reverse. NaN is not zero.
template <class Visible>
int64_t wrong_pairs(const Tensor& weights_BHQK, Visible visible) {
  const auto weights = weights_BHQK.to_vector<double>();
  const Shape& shape = weights_BHQK.shape();
  int64_t wrong = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    const int64_t key = n % shape[3];
    const int64_t query = n / shape[3] % shape[2];
    const int64_t head = n / shape[3] / shape[2] % shape[1];
    const int64_t batch = n / shape[3] / shape[2] / shape[1];
    if ((weights[i] != 0) != visible(batch, head, query, key)) ++wrong;
  }
  return wrong;
}

// What explains the answers, as one text; the cause only where there is one.
void name(AttentionCheck& check, const AttentionVerdict& verdict) {
  const auto& named = verdict.named;
  for (const AttentionMistake* mistake : named) {
    if (!check.what.empty()) check.what += " Or: ";
    check.what += mistake->what;
  }
  const auto agrees = [&](const AttentionMistake* mistake) {
    return std::string_view(mistake->cause) == named[0]->cause;
  };
  if (!named.empty() && std::all_of(named.begin(), named.end(), agrees)) {
    check.cause = named[0]->cause;
  }
}

}  // namespace

AttentionFunction framework_attention(std::optional<nn::AttentionPolicy> policy) {
  return [policy](const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD,
                  const nn::Mask& mask, double softcap) {
    return Context::current().seams.call<nn::SelfAttentionSeam>(
        q_BHQD, k_BGKD, v_BGKD, mask, nn::AttentionOptions{.softcap = softcap, .policy = policy});
  };
}

AttentionCheck check_visibility(const AttentionFunction& attend) {
  AttentionCheck check{.id = "visibility",
                       .compared = "keys with weight, and the rules of the mask (pairs)",
                       .reason = "a weight is 0 or it is not"};
  const std::vector<AttentionProbe> probes = visibility_probes();
  const Answers answers = ask(probes, attend);
  int64_t wrong = 0;
  for (const AttentionProbe& probe : probes) {
    const auto found = answers.given.find(probe.name);
    if (found == answers.given.end()) continue;
    wrong += wrong_pairs(found->second, [&](int64_t b, int64_t, int64_t q, int64_t k) {
      return probe.visible(b, q, k);
    });
  }
  check.difference = answers.refused.empty() ? static_cast<double>(wrong) : kNan;
  check.what = answers.refused;
  if (check.ok() || answers.given.empty()) return check;
  const auto few = short_ones(probes, answers.given);
  const AttentionVerdict verdict = judge_attention(probes, few.empty() ? answers.given : few);
  name(check, verdict.wrong() > 0 ? verdict : judge_attention(probes, answers.given));
  return check;
}

AttentionCheck check_answers(const std::string& id, const AttentionFunction& attend) {
  AttentionCheck check{.id = id,
                       .compared = "answers to probes, and attention in f64",
                       .reason = "roundings of the products, of exp and of the sums in f32"};
  const std::vector<AttentionProbe> probes = attention_probes();
  const Answers answers = ask(probes, attend);
  if (answers.given.empty()) {
    check.difference = kNan;
    check.what = answers.refused;
    return check;
  }
  const AttentionVerdict verdict = judge_attention(probes, answers.given);
  double worst = -1;
  for (const ProbeVerdict& probe : verdict.probes) {
    if (!probe.answered) continue;
    const double ratio = probe.error / probe.bound;
    if (ratio <= worst || std::isnan(check.difference)) continue;
    worst = ratio;
    check.difference = probe.error;
    check.bound = probe.bound;
    check.what = probe.right() ? "" : fmt::format("'{}' ({}) is wrong. ", probe.probe, probe.asks);
  }
  if (!answers.refused.empty()) {
    check.difference = kNan;
    check.what = answers.refused;
  }
  if (check.ok()) return check;
  if (!verdict.named.empty()) check.what.clear();
  name(check, verdict);
  return check;
}

AttentionCheck check_mask(const nn::Mask& mask, const nn::MaskPlacement& placement,
                          const std::function<bool(const nn::MaskPoint&)>& expected,
                          const AttentionFunction& attend) {
  AttentionCheck check{.id = "mask",
                       .compared = "keys with weight, and the predicate (pairs)",
                       .reason = "a weight is 0 or it is not"};
  const NoGrad off;
  const nn::ScoreSizes& sizes = placement.sizes;
  const int64_t first = placement.query_offset.value_or(placement.key_offset);
  const AttentionProbe shown = showing_weights({.name = "mask",
                                                .asks = "",
                                                .batch = sizes.batch,
                                                .heads = sizes.heads,
                                                .key_heads = sizes.heads,
                                                .queries = sizes.queries,
                                                .keys = sizes.keys,
                                                .q = {},
                                                .k = {},
                                                .v = {},
                                                .key_valid = {},
                                                .documents = {}});
  const auto same_mask = [&](const Tensor& q, const Tensor& k, const Tensor& v, const nn::Mask&,
                             double softcap) { return attend(q, k, v, mask, softcap); };
  const auto visible = [&](int64_t b, int64_t h, int64_t q, int64_t k) {
    return expected({b, h, first + q, placement.key_offset + k});
  };
  const Tensor weights = answer_of(shown, same_mask);
  check.difference = static_cast<double>(wrong_pairs(weights, visible));
  return check;
}

namespace {

// The largest difference to the right answer, of two positions whose queries and keys hold `size`
// throughout: both keys score the same, whatever the size.
double apart_at(const AttentionFunction& attend, double size, DType dtype) {
  constexpr int64_t kHeadSize = 128;
  const Tensor q_BHQD = full({1, 1, 2, kHeadSize}, size, dtype);
  const Tensor values = cast(tensor<float>({1, 2}, {1, 1, 2, 1}), dtype);
  const Tensor v_BHKD = contiguous(expand(values, {1, 1, 2, kHeadSize}));
  const auto answer = attend(q_BHQD, q_BHQD, v_BHKD, nn::Mask{}, 0).to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < answer.size(); ++i) {
    largest = larger_or_nan(largest, std::abs(answer[i] - (i < kHeadSize ? 1 : 1.5)));
  }
  return largest;
}

}  // namespace

// 128 x 23 x 23 = 67712 is no f16 number; scaled by 1 / sqrt(128) it is 5985.
AttentionCheck check_large_products(const AttentionFunction& attend, DType dtype) {
  const double half_unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
  AttentionCheck check{
      .id = "large-products",
      .compared = "products above 65504 whose scores are not, and in f64",
      .bound = 8 * 2 * half_unit,
      .reason = fmt::format("sums of two values up to 2 in {}", faultline::name(dtype))};
  const NoGrad off;
  check.difference = apart_at(attend, 23, dtype);
  if (check.ok() || !(apart_at(attend, 1, dtype) <= check.bound)) return check;
  check.what = "Products leave the range of f16 before they are scaled.";
  check.cause = "softmax.overflow:scale-after";
  return check;
}

AttentionCheck check_bias(const AttentionFunction& attend) {
  AttentionCheck check{.id = "bias",
                       .compared = "a mask that adds to the scaled scores, and in f64",
                       .bound = 5 * 104 * 0x1p-23,
                       .reason = "products, exp and sums in f32, values up to 5"};
  const NoGrad off;
  const AttentionProbe probe = bias_probe();
  const Tensor answer = answer_of(probe, attend);
  const auto apart = [&](BiasUse use) {
    return largest_difference(answer,
                              tensor(compute_attention(probe, {.bias = use}), answer.shape()));
  };
  check.difference = apart(BiasUse::added);
  if (check.ok()) return check;
  check.what = "A bias does not count for what it is.";
  const std::pair<BiasUse, const char*> mistakes[] = {
      {BiasUse::scaled_too, "The bias is scaled as the scores are."},
      {BiasUse::subtracted, "The bias is subtracted."},
      {BiasUse::left_out, "The bias is left out."}};
  for (const auto& [use, what] : mistakes) {
    if (apart(use) <= check.bound) check.what = what;
  }
  return check;
}

// A large head needs the most of a kernel, and comes after a call whose output has as many bytes:
// a kernel that did not run leaves those.
AttentionCheck check_fresh_output(const AttentionFunction& attend) {
  AttentionCheck check{.id = "fresh-output",
                       .compared = "a call with a large head after another, and in f64",
                       .reason = "sums of four values up to 16 in f32"};
  const NoGrad off;
  const auto mean_of_four = [&](int64_t queries, int64_t head_size, float last) {
    AttentionProbe probe{.name = "fresh",
                         .asks = "",
                         .queries = queries,
                         .keys = 4,
                         .head_size = head_size,
                         .q = {},
                         .k = {},
                         .v = {},
                         .key_valid = {},
                         .documents = {}};
    const auto D = static_cast<size_t>(head_size);
    probe.q.assign(static_cast<size_t>(queries) * D, 1);
    probe.k.assign(4 * D, 0);
    for (const float value : {1.0F, 2.0F, 4.0F, last}) {
      probe.v.insert(probe.v.end(), D, value);
    }
    return probe;
  };
  check.bound = 8 * 16 * 0x1p-24;
  const AttentionProbe first = mean_of_four(4, 64, 8);
  const AttentionProbe second = mean_of_four(1, 256, 16);
  const double stale = answer_of(first, attend).to_vector<double>()[0];
  const auto answer = answer_of(second, attend).to_vector<double>();
  const auto right = compute_attention(second);
  for (size_t i = 0; i < right.size(); ++i) {
    check.difference = larger_or_nan(check.difference, std::abs(answer[i] - right[i]));
  }
  if (check.ok()) return check;
  const bool is_stale = answer[0] == stale;
  check.what = is_stale ? "The output holds what an earlier call left there."
                        : "A large head gives another result.";
  check.cause = "kernel.silent-fallback:unchecked-launch";
  return check;
}

}  // namespace faultline::diagnose
