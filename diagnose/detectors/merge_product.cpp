// merge.product: merging an adapter must add its product to the weight: once, the right way round,
// and in as many bits as the weight has.
//
// Sees: MergeEvent, with the weight before and after and the product s B A; and MergeProbeEvent,
// with the logits before and after a merge.
// Fires, where what was added is not the product to within rounding in f32, when it is
//   - its double: lora.merge-twice
//   - its transpose: lora.fan-in-out.
// And where the merged weight holds bf16 numbers only: lora.merge-bf16, when the weight was finer
// before, or when it kept every bit in more than half of the elements that the product would
// change. Else it reports no known cause, when the outputs differ, or when a weight and a product
// that are finite became a weight that is not.
// Why these numbers: in f32 a merge is off by half an ulp of the weight, which the sums over all
// elements take into account; beyond it 1 % of the product's norm is far more than rounding of the
// product and far less than a product too many or transposed. Of a bf16
// weight with the deviation d a merge leaves 32 % of the elements as they were when the product's
// is d / 200, and 99 % of the product survives; at d / 2,000 it leaves 88 %, and 28 % survives.
// Half is between what does no harm and what does. Logits agree to 1e-4 over dozens of layers in
// f32; ten times that is no rounding. Silent: a product of zeros; a symmetric product, which is its
// own transpose; a merge into a bf16 weight with a product that is large enough; and logits that
// were not finite before the merge either.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "nn/lora.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

constexpr double kOfProduct = 0.01;
constexpr double kUnchangedShare = 0.5;
constexpr double kOfLogits = 1e-3;

// Whether a value has more significant bits than bf16 holds.
bool is_finer(double value) {
  return (std::bit_cast<uint32_t>(static_cast<float>(value)) & 0xffff) != 0;
}
bool any_finer(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), &is_finer);
}
// Powers of two are numbers of every type and tell nothing.
bool is_bf16(const std::vector<double>& values) {
  const auto tells = [](double value) {
    return (std::bit_cast<uint32_t>(static_cast<float>(value)) & 0x7fffff) != 0;
  };
  return !any_finer(values) && std::any_of(values.begin(), values.end(), tells);
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

// A merge of one layer, element by element.
struct Merged {
  std::vector<double> before, after, product;
  size_t rows, columns;

  explicit Merged(const nn::MergeEvent& event)
      : before(sample(event.before.view())),
        after(sample(event.after.view())),
        product(sample(event.product.view())),
        rows(static_cast<size_t>(event.product.size(0))),
        columns(static_cast<size_t>(event.product.size(1))) {}

  double transposed(size_t i) const { return product[i % columns * columns + i / columns]; }

  // Whether after - before is what `expected` says of each element, to within 1 % of the product
  // and the rounding of an addition with this unit.
  template <class Expected>
  bool added(const Expected& expected, double unit) const {
    double apart = 0;
    double bound = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      const double off = after[i] - before[i] - expected(i);
      const double rounding = 2 * unit * (std::abs(before[i]) + std::abs(after[i]));
      apart += off * off;
      bound += kOfProduct * kOfProduct * product[i] * product[i] + rounding * rounding;
    }
    return apart <= bound;
  }

  struct Loss {
    int64_t due = 0;        // elements that the product would change
    int64_t unchanged = 0;  // of these, the ones that kept every bit
    double survived = 0;    // of the product
    double share() const { return static_cast<double>(unchanged) / static_cast<double>(due); }
  };
  Loss loss() const {
    Loss loss;
    double kept = 0;
    double whole = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      if (product[i] == 0) continue;
      ++loss.due;
      loss.unchanged += after[i] == before[i] ? 1 : 0;
      kept += (after[i] - before[i]) * product[i];
      whole += product[i] * product[i];
    }
    loss.survived = kept / whole;
    return loss;
  }
};

class MergeProduct : public Watcher {
 public:
  MergeProduct(Context& context, Findings& findings) : Watcher(context, findings, "merge.product") {
    on(&MergeProduct::merges);
    on(&MergeProduct::probed);
  }

 private:
  void merges(const nn::MergeEvent& event) {
    if (!(event.after.shape() == event.product.shape())) return;
    const Merged merged(event);
    const Merged::Loss loss = merged.loss();
    if (loss.due == 0) return;
    looked();
    const std::string name = event.layer.path();
    if (!all_finite(merged.after)) return report_non_finite(name, merged);
    if (is_bf16(merged.after)) {
      const bool was_finer = any_finer(merged.before);
      if (was_finer || loss.share() > kUnchangedShare) return report_bf16(name, loss, was_finer);
    }
    const double f32 = unit_roundoff(DType::f32);
    const auto once = [&merged](size_t i) { return merged.product[i]; };
    if (merged.added(once, unit_roundoff(event.after.dtype()))) return;
    if (merged.added([&](size_t i) { return 2 * merged.product[i]; }, f32)) {
      name_cause("lora.merge-twice", name, "what was added is twice the product s B A");
    } else if (merged.rows == merged.columns &&
               merged.added([&](size_t i) { return merged.transposed(i); }, f32)) {
      name_cause("lora.fan-in-out", name,
                 fmt::format("what was added is the transpose of the product s B A, whose norm is "
                             "the same; the layer is square, {0} x {0}",
                             merged.rows));
    }
  }

  // What was not finite before the merge is no matter of the merge.
  void report_non_finite(const std::string& layer, const Merged& merged) {
    if (!all_finite(merged.before) || !all_finite(merged.product)) return;
    name_cause("", layer,
               "the merged weight holds NaN or infinity, and neither the weight nor the product "
               "s B A did");
  }

  void report_bf16(const std::string& layer, const Merged::Loss& loss, bool was_finer) {
    name_cause(
        "lora.merge-bf16", layer,
        fmt::format("the merged weight holds bf16 numbers only{}; {} of {} elements that the "
                    "product changes kept every bit, {:.3g} % of the product survived",
                    was_finer ? ", and before it had finer ones" : "", loss.unchanged, loss.due,
                    100 * loss.survived));
  }

  void name_cause(const char* cause, const std::string& layer, const std::string& evidence) {
    named_ = true;
    report(cause, 0.97, "merge",
           fmt::format("{}: {}", layer.empty() ? "the layer" : layer, evidence));
  }

  void probed(const train::MergeProbeEvent& event) {
    looked();
    const std::vector<double> beside = sample(event.beside.view());
    const std::vector<double> merged = sample(event.merged.view());
    double largest = 0;
    double apart = 0;
    for (size_t i = 0; i < beside.size(); ++i) {
      largest = larger_or_nan(largest, std::abs(beside[i]));
      apart = larger_or_nan(apart, std::abs(merged[i] - beside[i]));
    }
    if (named_ || event.beside.dtype() != DType::f32 || !std::isfinite(largest)) return;
    if (apart <= kOfLogits * largest) return;
    report("", 0.9, "merge",
           fmt::format("a logit changes by {:.3g} when the adapters are merged; the largest is "
                       "{:.3g}",
                       apart, largest));
  }

  bool named_ = false;
};

}  // namespace

DETECTOR(merge_product) {
  return {"merge.product",
          WatchLevel::full,
          {{"lora.merge-twice",
            "An adapter is added to a weight that holds it already: the model is that of twice its "
            "alpha.",
            "Note in the layer that it is merged, and refuse to merge it again.",
            "The weight changed by s B A, once."},
           {"lora.fan-in-out",
            "The product of an adapter is added transposed: the layer stores its weight the other "
            "way round than the merge believes. A square layer hides it.",
            "Let the layer say how its weight is stored, and compare an output before and after.",
            "What was added is the product itself."},
           {"lora.merge-bf16",
            "An adapter is merged into bf16: a change below half the spacing of a weight is "
            "rounded away.",
            "Merge in f32 and keep the result in f32, or leave the adapter beside the weight.",
            "The merged weight has more than 8 significant bits, or nearly all its elements "
            "moved."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<MergeProduct>(context, findings);
          }};
}

}  // namespace faultline::diagnose
