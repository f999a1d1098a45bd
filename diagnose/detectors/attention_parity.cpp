// attention.parity: fused attention computes what its definition says, row by row, in doubles.
//
// Sees: every launch of flash_attention with what it was given (q, k, v, mask, scale, soft-cap) and
// what it wrote.
// Fires: where a kernel, run again into memory full of NaN, leaves some of it: what the program got
// there was in its memory before, right or wrong (kernel.silent-fallback). That is tried once for
// each kernel and shape of q, and again for a wrong row. At the first sampled row that lies farther
// from the f64 answer than rounding explains. Then the known mistakes are tried on more rows, and
// the one that predicts every one of them is named: the scale used twice or never, key heads in
// another order, a window of another size, a feature left out, NaN from hidden values. Where none
// does, it fires without a cause. Bound: a score is a sum of D products, rounded in f32 by (D + 4)
// u S, where S is the largest sum of their absolute values; it moves a weight by twice that, the
// sum over K weights and exp by (K + 16) u. An output is a mean of values below V: doubled, 2 V
// times all that. 16-bit kernels round weights and output to their dtype, which gets 8 units of its
// own. Silent: with dropout on the weights; in f64 and beyond, which the reference computes; where
// the answer itself is no number; for attention by `math`, whose weights other detectors read. Of
// large launches a part of the rows is read, another part each time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "diagnose/attention_judge.h"
#include "diagnose/attention_probes.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"

// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
namespace faultline::diagnose {
namespace {

// ---- what a launch shows ------------------------------------------------------------------------

// One query of one sequence, all heads: what it was given, as a probe of one query, and what was
// written.
struct Answer {
  AttentionProbe given;
  int64_t batch;
  int64_t query;
  std::vector<double> y_HD;
};

class FlashLaunch {
 public:
  explicit FlashLaunch(const Launch& launch)
      : launch_(launch), attributes_(launch.args.attributes.as<FlashAttentionAttributes>()) {}

  static bool is_one(const Launch& launch) {
    if (std::string_view(launch.label.op) != "flash_attention") return false;
    const bool drops = launch.args.attributes.as<FlashAttentionAttributes>().dropout.p > 0;
    const DType dtype = launch.args.inputs[0].dtype;
    return !drops && (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16);
  }

  int64_t rows() const { return q().shape[0] * q().shape[2]; }  // of B and Q
  // Multiplications that the answer to one row takes.
  int64_t work() const { return 2 * q().shape[1] * k().shape[2] * q().shape[3]; }

  // Every `stride`th row from `first` on.
  std::vector<Answer> answers(int64_t first, int64_t stride) const {
    std::vector<Answer> result;
    int64_t batch = -1;
    AttentionProbe sequence;
    for (int64_t row = first; row < rows(); row += stride) {
      if (row / q().shape[2] != batch) sequence = keys_of(batch = row / q().shape[2]);
      result.push_back(answer(sequence, batch, row % q().shape[2]));
    }
    return result;
  }

  // How many elements of y the kernel leaves as they were.
  int64_t unwritten() const {
    KernelArgs args = launch_.args;
    std::array<std::vector<std::byte>, 2> memory;
    for (size_t i = 0; i < memory.size(); ++i) {
      const ByteRange range = byte_range(args.outputs[i]);
      memory[i].assign(static_cast<size_t>(range.end - range.begin), std::byte{0xff});
      args.outputs[i].data = memory[i].data();
    }
    launch_.kernel->run(args);
    const size_t size = size_of(args.outputs[0].dtype);
    const std::vector<std::byte> poison(size, std::byte{0xff});
    int64_t count = 0;
    for (size_t at = 0; at + size <= memory[0].size(); at += size) {
      if (std::memcmp(&memory[0][at], poison.data(), size) == 0) ++count;
    }
    return count;
  }

 private:
  const TensorView& q() const { return launch_.args.inputs[0]; }
  const TensorView& k() const { return launch_.args.inputs[1]; }

  // A probe without a query: the keys and values of one sequence, and the rules.
  AttentionProbe keys_of(int64_t batch) const {
    const int64_t keys = k().shape[2];
    const MaskAttributes& mask = attributes_.mask;
    AttentionProbe probe{.heads = q().shape[1],
                         .key_heads = k().shape[1],
                         .keys = keys,
                         .head_size = q().shape[3],
                         .causal = mask.causal,
                         .window = mask.window,
                         .softcap = attributes_.softcap,
                         .scale = mask.scale,
                         .prefix = mask.prefix,
                         .sinks = mask.sinks};
    const int64_t size = probe.key_heads * keys * probe.head_size;
    probe.k = floats(k(), batch * size, size);
    probe.v = floats(launch_.args.inputs[2], batch * size, size);
    if (const TensorView& valid = launch_.args.inputs[3]; valid.defined()) {
      const std::vector<double> values = read_values(valid, batch * keys, keys);
      probe.key_valid.assign(values.begin(), values.end());
    }
    if (const TensorView& documents = launch_.args.inputs[4]; documents.defined()) {
      const std::vector<double> values = read_values(documents, batch * keys, keys);
      probe.documents.assign(values.begin(), values.end());
    }
    return probe;
  }

  Answer answer(const AttentionProbe& sequence, int64_t batch, int64_t query) const {
    Answer result{sequence, batch, query, {}};
    result.given.query_offset = attributes_.mask.query_offset + query;
    const int64_t D = sequence.head_size;
    for (int64_t h = 0; h < sequence.heads; ++h) {
      const int64_t first = ((batch * sequence.heads + h) * q().shape[2] + query) * D;
      for (const float x : floats(q(), first, D)) result.given.q.push_back(x);
      for (const double y : read_values(launch_.args.outputs[0], first, D)) {
        result.y_HD.push_back(y);
      }
    }
    return result;
  }

  static std::vector<float> floats(const TensorView& view, int64_t first, int64_t count) {
    const std::vector<double> values = read_values(view, first, count);
    return {values.begin(), values.end()};
  }

  const Launch& launch_;
  FlashAttentionAttributes attributes_;
};

// ---- what it should show ------------------------------------------------------------------------

// How far rounding may carry y from the exact answer under some rules.
double bound_of(const Answer& answer, const AttentionRules& rules, DType dtype) {
  const AttentionProbe& given = answer.given;
  const auto D = static_cast<size_t>(given.head_size);
  double largest_value = 0;
  for (const float v : given.v) {
    if (std::isfinite(v)) largest_value = std::max(largest_value, std::abs(double{v}));
  }
  const double scale = rules.scale_uses == 1 ? given.scale : std::max(1.0, given.scale);
  double largest_score = 0;
  for (size_t h = 0; h < given.q.size(); h += D) {
    for (size_t k = 0; k < given.k.size(); k += D) {
      double sum = 0;
      for (size_t d = 0; d < D; ++d) {
        sum += std::abs(static_cast<double>(given.q[h + d]) * given.k[k + d]);
      }
      if (std::isfinite(sum)) largest_score = std::max(largest_score, scale * sum);
    }
  }
  const double u = unit_roundoff(DType::f32);
  const double terms = 2 * static_cast<double>(D + 4) * (largest_score + given.softcap) +
                       static_cast<double>(given.keys + 16);
  const double sixteen_bit = dtype == DType::f32 ? 0 : 8 * unit_roundoff(dtype);
  return 2 * largest_value * (terms * u + sixteen_bit);
}

// The first element that is not what the rules predict, or -1. Two NaN agree.
int64_t first_difference(const Answer& answer, const std::vector<double>& predicted, double bound) {
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double y = answer.y_HD[i];
    if (std::isnan(y) && std::isnan(predicted[i])) continue;
    if (!(std::abs(y - predicted[i]) <= bound)) return static_cast<int64_t>(i);
  }
  return -1;
}

bool explains(const AttentionRules& rules, const std::vector<Answer>& answers, DType dtype) {
  return std::all_of(answers.begin(), answers.end(), [&](const Answer& answer) {
    const std::vector<double> predicted = compute_attention(answer.given, rules);
    return first_difference(answer, predicted, bound_of(answer, rules, dtype)) < 0;
  });
}

bool is_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

// Those of the causes below that a wrong answer alone can show.
constexpr const char* kCauses[] = {"attn.scale-twice", "attn.gqa-order", "attn.window-off-by-one",
                                   "attn.nan-in-masked-v", "kernel.silent-fallback"};

// The cause that a mistake belongs to, whatever its variant; null: none of ours.
const char* cause_of(const AttentionMistake& mistake) {
  const std::string_view id(mistake.cause);
  for (const char* cause : kCauses) {
    if (id.substr(0, id.find(':')) == cause) return cause;
  }
  return nullptr;
}

// ---- the detector -------------------------------------------------------------------------------

class AttentionParity : public Watcher {
 public:
  AttentionParity(Context& context, Findings& findings)
      : Watcher(context, findings, "attention.parity") {
    on(&AttentionParity::launched);
  }

 private:
  static constexpr int64_t kWork = int64_t{1} << 17;        // of a launch
  static constexpr int64_t kWorkNaming = int64_t{1} << 24;  // once, of one that is wrong

  void launched(const LaunchEvent& event) {
    if (found_ || !FlashLaunch::is_one(event.launch)) return;
    const FlashLaunch launch(event.launch);
    if (launch.rows() == 0 || launch.work() == 0) return;
    looked();
    if (is_new(event.launch) && is_unwritten(event.launch, launch)) return;
    const int64_t stride = std::max<int64_t>(1, launch.rows() * launch.work() / kWork);
    const DType dtype = event.launch.args.inputs[0].dtype;
    for (const Answer& answer : launch.answers(looks() % stride, stride)) {
      const std::vector<double> exact = compute_attention(answer.given);
      if (!is_finite(exact)) continue;
      const double bound = bound_of(answer, {}, dtype);
      const int64_t at = first_difference(answer, exact, bound);
      if (at < 0) continue;
      found_ = true;
      return name(event.launch, launch, describe(answer, exact, at, bound));
    }
  }

  // Whether this kernel has not been seen with this shape of q.
  bool is_new(const Launch& launch) {
    const std::pair key(launch.kernel->run, launch.args.inputs[0].shape);
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return false;
    seen_.push_back(key);
    return true;
  }

  // Whether the kernel leaves some of its output as it was, which is reported.
  bool is_unwritten(const Launch& launch, const FlashLaunch& shown) {
    const int64_t left = shown.unwritten();
    if (left == 0) return false;
    found_ = true;
    report("kernel.silent-fallback", 0.99, "attention",
           fmt::format("{}{}run again, {} writes nothing to {} of {} elements", launch.label.module,
                       *launch.label.module != 0 ? ": " : "", launch.kernel->name, left,
                       launch.args.outputs[0].numel()));
    return true;
  }

  static std::string describe(const Answer& answer, const std::vector<double>& exact, int64_t at,
                              double bound) {
    const auto i = static_cast<size_t>(at);
    return fmt::format(
        "batch {}, head {}, query {}: y[{}] is {:.6g}, f64 says {:.6g} (bound {:.1e})",
        answer.batch, at / answer.given.head_size, answer.query, at % answer.given.head_size,
        answer.y_HD[i], exact[i], bound);
  }

  void name(const Launch& launch, const FlashLaunch& shown, const std::string& wrong) {
    if (is_unwritten(launch, shown)) return;
    const std::string place =
        fmt::format("{}{}{}", launch.label.module, *launch.label.module != 0 ? ": " : "", wrong);
    const int64_t stride = std::max<int64_t>(1, shown.rows() * shown.work() / kWorkNaming);
    const std::vector<Answer> answers = shown.answers(0, stride);
    for (const AttentionMistake& mistake : attention_mistakes()) {
      const char* const cause = cause_of(mistake);
      if (cause == nullptr || !explains(mistake.rules, answers, launch.args.inputs[0].dtype)) {
        continue;
      }
      return report(
          cause, 0.97, "attention",
          fmt::format("{}; all of {} rows are as if: {}", place, answers.size(), mistake.what));
    }
    report("", 0.9, "attention", place + "; no known mistake predicts it");
  }

  bool found_ = false;
  std::vector<std::pair<Kernel, Shape>> seen_;
};

}  // namespace

DETECTOR(attention_parity) {
  return {
      "attention.parity",
      WatchLevel::full,
      {{"attn.scale-twice",
        "The fused kernel multiplies the scores by another scale than it is given: twice, so "
        "that attention is too even, or never, so that it is too sharp.",
        "Let one side scale: the caller or the kernel.",
        "Attention in f64 with the scale as given has the same output."},
       {"attn.gqa-order",
        "Query heads read other key heads than their group's: the key heads are tiled (0, 1, "
        "0, 1) where each should be repeated (0, 0, 1, 1).",
        "Repeat each key head H / G times in a row, or let the kernel share them.",
        "With one key head, or as many as query heads, the output is wrong as well."},
       {"attn.window-off-by-one", "A query sees one key more, or fewer, than its window holds.",
        "A window of W holds the query and the W - 1 keys before it; a kernel that counts the "
        "keys to the left takes W - 1.",
        "Rows that have seen fewer than W keys are wrong as well."},
       {"attn.nan-in-masked-v", "A hidden value takes part with weight 0, and 0 times NaN is NaN.",
        "Skip hidden keys, or select zeros in place of what they hold.",
        "The hidden values are numbers."},
       {"kernel.silent-fallback",
        "The kernel that was asked for did not do the work: its launch failed unnoticed and "
        "the output is what was there before, or another path ran and left a feature out.",
        "Check the status of every launch, and let a path that lacks a feature refuse it.",
        "Run again into memory full of NaN the kernel writes every element."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<AttentionParity>(context, findings);
      }};
}

}  // namespace faultline::diagnose
