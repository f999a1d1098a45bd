#include "diagnose/attention_probes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/float16.h"
#include "core/rng.h"

namespace faultline::diagnose {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The score of one query and key as the softmax meets it, and whether the key takes part.
struct Entry {
  double score = 0;
  bool taken = true;
  double factor = 1;  // of the weight
};

// One row of attention under some rules.
class Row {
 public:
  Row(const AttentionProbe& probe, const AttentionRules& rules, int64_t b, int64_t h, int64_t q)
      : probe_(probe), rules_(rules), batch_(b), head_(h), query_(q) {}

  // y of this row into `out` [D].
  void compute(double* out) const {
    std::vector<Entry> row;
    for (int64_t key = 0; key < probe_.keys; ++key) row.push_back(entry(key));
    const std::vector<double> weights = softmax(row);
    const bool empty = std::none_of(row.begin(), row.end(), [](const Entry& e) { return e.taken; });
    for (int64_t d = 0; d < probe_.head_size; ++d) {
      double sum = 0;
      for (int64_t key = 0; key < probe_.keys; ++key) {
        const double value = number(probe_.v[key_offset(key) + static_cast<size_t>(d)]);
        if (empty ? rules_.empty_row == EmptyRow::zeros
                  : rules_.skips_forbidden && !row[static_cast<size_t>(key)].taken) {
          continue;
        }
        sum += weights[static_cast<size_t>(key)] * value;
      }
      out[d] = sum;
    }
  }

 private:
  size_t key_offset(int64_t key) const {
    const int64_t group = probe_.heads / probe_.key_heads;
    const int64_t key_head = rules_.heads_tiled ? head_ % probe_.key_heads : head_ / group;
    return static_cast<size_t>(((batch_ * probe_.key_heads + key_head) * probe_.keys + key) *
                               probe_.head_size);
  }

  double number(double x) const { return rules_.nan_is_zero && std::isnan(x) ? 0 : x; }

  double raw_score(int64_t key) const {
    const size_t q = static_cast<size_t>(
        ((batch_ * probe_.heads + head_) * probe_.queries + query_) * probe_.head_size);
    const size_t k = key_offset(key);
    double dot = 0;
    for (size_t d = 0; d < static_cast<size_t>(probe_.head_size); ++d) {
      dot += probe_.q[q + d] * number(probe_.k[k + d]);
    }
    for (int use = 0; use < rules_.scale_uses; ++use) dot *= scale();
    const bool capped = probe_.softcap != 0 && !rules_.softcap_left_out;
    return (capped ? probe_.softcap * std::tanh(dot / probe_.softcap) : dot) + bias(key);
  }

  double scale() const {
    return probe_.scale != 0 ? probe_.scale : 1 / std::sqrt(static_cast<double>(probe_.head_size));
  }

  // What a score gets from the probe's bias.
  double bias(int64_t key) const {
    if (probe_.bias.empty()) return 0;
    const int64_t row = (batch_ * probe_.heads + head_) * probe_.queries + query_;
    const double given = probe_.bias[static_cast<size_t>(row * probe_.keys + key)];
    switch (rules_.bias) {
      case BiasUse::added:
        return given;
      case BiasUse::scaled_too:
        return given * scale();
      case BiasUse::subtracted:
        return -given;
      case BiasUse::left_out:
        break;
    }
    return 0;
  }

  // Whether the rules let this query see the key, and what padding says of the pair.
  bool is_text(int64_t key) const {
    if (probe_.key_valid.empty()) return true;
    const auto valid = [&](int64_t row, int64_t column) {
      // A mask bound to another axis is read only where the sizes allow it.
      const bool inside = row < probe_.batch && column < probe_.keys;
      return !inside || probe_.key_valid[static_cast<size_t>(row * probe_.keys + column)] != 0;
    };
    switch (rules_.padding) {
      case PaddingAxis::key:
        return valid(batch_, key);
      case PaddingAxis::query:
        return valid(batch_, position());
      case PaddingAxis::batch_as_query:
        return probe_.batch == probe_.queries ? valid(query_, key) : valid(batch_, key);
      case PaddingAxis::batch_as_head:
        return probe_.batch == probe_.heads ? valid(head_, key) : valid(batch_, key);
      case PaddingAxis::ignored:
        break;
    }
    return true;
  }
  int64_t position() const { return (rules_.aligned_top_left ? 0 : probe_.query_offset) + query_; }

  bool sees(int64_t key) const {
    bool visible = !probe_.causal || key <= position();
    if (probe_.window > 0) {
      const int64_t window = probe_.window + rules_.wider_window;
      const bool near = key > position() - window && (probe_.causal || key < position() + window);
      visible = visible && (near || key < probe_.sinks);
    }
    visible = visible || key < probe_.prefix;
    if (!probe_.documents.empty() && !rules_.one_document) {
      const auto document = [&](int64_t at) {
        return probe_.documents[static_cast<size_t>(batch_ * probe_.keys + at)];
      };
      visible = visible && document(key) == document(position());
    }
    return visible && is_text(key);
  }

  Entry entry(int64_t key) const {
    const double score = raw_score(key);
    const bool visible = sees(key);
    switch (rules_.mask) {
      case MaskUse::keep:
        return {score, visible};
      case MaskUse::none:
        return {score};
      case MaskUse::inverted:
        return {score, !visible};
      case MaskUse::add_keep:
        return {score + (visible ? 1 : 0)};
      case MaskUse::add_forbidden:
        return {score + (visible ? 0 : 1)};
      case MaskUse::multiply_scores:
        return {visible ? score : 0 * score};
      case MaskUse::multiply_weights:
        return {score, true, visible ? 1.0 : 0.0};
    }
    return {};
  }

  std::vector<double> softmax(const std::vector<Entry>& row) const {
    double largest = -kInfinity;
    for (const Entry& e : row) {
      if (e.taken) largest = std::max(largest, e.score);
    }
    std::vector<double> weights(row.size());
    if (largest == -kInfinity) {  // no key is visible
      const double weight = rules_.empty_row == EmptyRow::nan ? kNan : 1.0 / row.size();
      std::fill(weights.begin(), weights.end(), weight);
      return weights;
    }
    double total = 0;
    for (size_t key = 0; key < row.size(); ++key) {
      if (!row[key].taken) continue;
      weights[key] = rules_.subtracts_largest
                         ? std::exp(row[key].score - largest)
                         : static_cast<double>(std::exp(static_cast<float>(row[key].score)));
      if (rules_.sums_in_bfloat16) weights[key] = rounded(weights[key]);
      total += weights[key];
      if (rules_.sums_in_bfloat16) total = rounded(total);
    }
    for (size_t key = 0; key < row.size(); ++key) weights[key] *= row[key].factor / total;
    return weights;
  }
  static double rounded(double value) { return static_cast<double>(bfloat16(value)); }

  const AttentionProbe& probe_;
  const AttentionRules& rules_;
  int64_t batch_;
  int64_t head_;
  int64_t query_;
};

// Fills q, k and v with normal numbers; scores have the standard deviation `spread`.
class ProbeMaker {
 public:
  explicit ProbeMaker(DType dtype) : dtype_(dtype) {
    require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
            "attention probes: come in f32, f16 or bf16, not in {}", faultline::name(dtype));
  }

  AttentionProbe filled(AttentionProbe probe, double spread = 1) {
    const int64_t B = probe.batch;
    const int64_t D = probe.head_size;
    probe.q = numbers(B * probe.heads * probe.queries * D, spread);
    probe.k = numbers(B * probe.key_heads * probe.keys * D, 1);
    probe.v = numbers(B * probe.key_heads * probe.keys * D, 1);
    return probe;
  }

  // The same with a bias as wide as the scores.
  AttentionProbe biased(AttentionProbe probe) {
    probe = filled(std::move(probe));
    probe.bias = numbers(probe.batch * probe.heads * probe.queries * probe.keys, 1);
    return probe;
  }

 private:
  std::vector<float> numbers(int64_t count, double deviation) {
    std::vector<float> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(rounded(deviation * random_.normal(drawn_++)));
    }
    return result;
  }

  float rounded(double value) const {
    return with_type(dtype_, [&]<class T>() { return convert<float>(convert<T>(value)); });
  }

  DType dtype_;
  RandomSequence random_{1, 0};
  uint64_t drawn_ = 0;
};

// Whether each of `keys` positions is among the first or, with `on_the_left`, last `length`.
enum class Side : uint8_t { left, right };
std::vector<uint8_t> padded(const std::vector<int64_t>& lengths, int64_t keys, Side padding) {
  std::vector<uint8_t> valid;
  for (const int64_t length : lengths) {
    for (int64_t k = 0; k < keys; ++k) {
      valid.push_back(padding == Side::right ? k < length : k >= keys - length);
    }
  }
  return valid;
}

std::vector<AttentionProbe> masked_probes(ProbeMaker& make) {
  return {
      make.filled({.name = "padding",
                   .asks = "keys beyond a row's length",
                   .batch = 3,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .key_valid = padded({5, 2, 4}, 5, Side::right)}),
      make.filled({.name = "padding-batch-as-long-as-text",
                   .asks = "a mask [B, T] read as [T, T]",
                   .batch = 4,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 4,
                   .keys = 4,
                   .key_valid = padded({4, 1, 3, 2}, 4, Side::right)}),
      make.filled({.name = "padding-batch-as-many-as-heads",
                   .asks = "a mask [B, T, T] read as [H, T, T]",
                   .batch = 2,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .key_valid = padded({5, 2}, 5, Side::right)}),
      make.filled({.name = "padding-left",
                   .asks = "rows in which no key is visible",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 5,
                   .keys = 5,
                   .causal = true,
                   .key_valid = padded({5, 3}, 5, Side::left)}),
      make.filled({.name = "window",
                   .asks = "a window of three keys",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 8,
                   .keys = 8,
                   .causal = true,
                   .window = 3}),
      make.filled({.name = "documents",
                   .asks = "two documents in one row",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true,
                   .documents = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1}}),
  };
}

// A padded key and value hold NaN, which must reach nobody.
AttentionProbe nan_probe(ProbeMaker& make) {
  AttentionProbe probe = make.filled({.name = "nan-in-padding",
                                      .asks = "NaN in keys and values that nobody may see",
                                      .batch = 2,
                                      .heads = 3,
                                      .key_heads = 3,
                                      .queries = 5,
                                      .keys = 5,
                                      .key_valid = padded({5, 4}, 5, Side::right)});
  const auto last = static_cast<size_t>(probe.head_size);
  for (std::vector<float>* tensor : {&probe.k, &probe.v}) {
    std::fill(tensor->end() - static_cast<int64_t>(last), tensor->end(),
              std::numeric_limits<float>::quiet_NaN());
  }
  return probe;
}

}  // namespace

bool AttentionProbe::visible(int64_t batch_row, int64_t query, int64_t key) const {
  const int64_t at = query_offset + query;
  const bool near = window == 0 || (key > at - window && key < at + window);
  if (key >= prefix && ((causal && key > at) || (!near && key >= sinks))) return false;
  const int64_t row = batch_row * keys;
  if (!documents.empty() &&
      documents[static_cast<size_t>(row + key)] != documents[static_cast<size_t>(row + at)]) {
    return false;
  }
  return key_valid.empty() || key_valid[static_cast<size_t>(row + key)] != 0;
}

std::vector<uint8_t> AttentionProbe::mask() const {
  std::vector<uint8_t> result;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t q = 0; q < queries; ++q) {
      for (int64_t key = 0; key < keys; ++key) result.push_back(visible(b, q, key) ? 1 : 0);
    }
  }
  return result;
}

std::vector<AttentionProbe> attention_probes(DType dtype) {
  ProbeMaker make(dtype);
  std::vector<AttentionProbe> probes = {
      make.filled({.name = "plain",
                   .asks = "no mask at all",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 5,
                   .keys = 7}),
      make.filled({.name = "causal",
                   .asks = "a sequence from its beginning",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true}),
      make.filled({.name = "causal-cached",
                   .asks = "two new positions after five",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 2,
                   .keys = 7,
                   .causal = true,
                   .query_offset = 5}),
      make.filled({.name = "causal-one",
                   .asks = "one new position after four",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 1,
                   .keys = 5,
                   .causal = true,
                   .query_offset = 4}),
      make.filled({.name = "causal-grouped",
                   .asks = "six query heads over two key heads",
                   .batch = 2,
                   .heads = 6,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .causal = true}),
      make.filled({.name = "causal-long",
                   .asks = "more keys than a tile holds",
                   .batch = 1,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 131,
                   .keys = 131,
                   .head_size = 8,
                   .causal = true}),
      make.filled({.name = "large-scores",
                   .asks = "scores above 88, where exp overflows in f32",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true},
                  300),
      make.filled({.name = "softcap",
                   .asks = "scores capped at 2",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true,
                   .softcap = 2},
                  4),
  };
  for (AttentionProbe& probe : masked_probes(make)) probes.push_back(std::move(probe));
  probes.push_back(nan_probe(make));
  return probes;
}

AttentionProbe bias_probe() {
  return ProbeMaker(DType::f32)
      .biased({.name = "bias",
               .asks = "a number added to each score",
               .batch = 2,
               .heads = 3,
               .key_heads = 3,
               .queries = 5,
               .keys = 7});
}

std::vector<double> compute_attention(const AttentionProbe& probe, const AttentionRules& rules) {
  const int64_t rows = probe.batch * probe.heads * probe.queries;
  std::vector<double> y(static_cast<size_t>(rows * probe.head_size));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query = row % probe.queries;
    const int64_t head = row / probe.queries % probe.heads;
    const int64_t batch = row / probe.queries / probe.heads;
    Row(probe, rules, batch, head, query).compute(&y[static_cast<size_t>(row * probe.head_size)]);
  }
  return y;
}

}  // namespace faultline::diagnose
