#include <algorithm>
#include <cmath>
#include <limits>

#include "core/float16.h"
#include "diagnose/attention_probes.h"

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
    if (rules_.only_causal_beyond > 0 && probe_.keys > rules_.only_causal_beyond) return visible;
    if (probe_.window > 0) {
      const int64_t window = probe_.window + rules_.wider_window;
      const bool near = key > position() - window && (probe_.causal || key < position() + window);
      visible = visible && (near || (key < probe_.sinks && !rules_.sinks_left_out));
    }
    visible = visible || (key < probe_.prefix && !rules_.prefix_left_out);
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

}  // namespace

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
