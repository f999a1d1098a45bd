// rope.layout: queries and keys are turned in the pairs in which their weights were trained.
//
// Sees: what a model shows as "rotary": x, cosines, sines, the turned x, and the layout of its
// weights.
// Fires: at the first head vector whose turned elements are not those that x gives in the layout of
// the weights, and are those of the other layout: rope.layout. Where they are neither, something
// else is wrong and there is no cause. The elements are compared sorted: scores are sums over them,
// so that a program may keep them in another order, as those do that reorder interleaved vectors
// and then turn halves. The bound is some roundings of the dtype, relative to the largest element.
// The invariance of scores under a shift of all positions, which is the usual test of rotary
// positions, holds in either layout and does not see this fault.
// Silent: on vectors with a NaN or an infinity (finite.first); where both layouts give the same, as
// at position 0. Of large tensors a part of the vectors is read, other ones each time.
// It serves one case in the lab; every rotary embedding that is computed wrongly fails it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"

// Shapes: B batch, H heads, T positions, D head size.
namespace faultline::diagnose {
namespace {

using Vector = std::vector<double>;

const char* name(RopeLayout layout) {
  return layout == RopeLayout::half_split ? "half-split" : "interleaved";
}

RopeLayout other(RopeLayout layout) {
  return layout == RopeLayout::half_split ? RopeLayout::interleaved : RopeLayout::half_split;
}

Vector turned(const Vector& x, const Vector& cosines, const Vector& sines, RopeLayout layout) {
  const size_t pairs = x.size() / 2;
  Vector y(x.size());
  for (size_t i = 0; i < pairs; ++i) {
    const bool halves = layout == RopeLayout::half_split;
    const size_t a = halves ? i : 2 * i;
    const size_t b = halves ? i + pairs : 2 * i + 1;
    y[a] = x[a] * cosines[i] - x[b] * sines[i];
    y[b] = x[b] * cosines[i] + x[a] * sines[i];
  }
  return y;
}

bool same_elements(Vector a, Vector b, double bound) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= bound)) return false;
  }
  return true;
}

class RopeLayoutKept : public Watcher {
 public:
  RopeLayoutKept(Context& context, Findings& findings) : Watcher(context, findings, "rope.layout") {
    on(&RopeLayoutKept::launched);
  }

 private:
  static constexpr int64_t kVectors = 64;  // read of a launch

  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    if (found_ || std::string_view(launch.label.op) != "rotary") return;
    const TensorView& x = launch.args.inputs[0];
    const TensorView& cosines = launch.args.inputs[1];
    const TensorView& y = launch.args.inputs[3];
    if (!(x.shape == y.shape) || x.shape.rank() != 4) return;
    looked();
    const int64_t heads = x.shape[1], T = x.shape[2], D = x.shape[3];
    const int64_t vectors = x.shape[0] * heads * T;
    const int64_t stride = std::max<int64_t>(1, vectors / kVectors);
    for (int64_t i = looks() % stride; i < vectors && !found_; i += stride) {
      const int64_t batch = cosines.shape[0] == 1 ? 0 : i / (heads * T);
      const int64_t row = (batch * T + i % T) * (D / 2);
      judge(launch, i % T, read_values(x, i * D, D), read_values(cosines, row, D / 2),
            read_values(launch.args.inputs[2], row, D / 2), read_values(y, i * D, D));
    }
  }

  void judge(const Launch& launch, int64_t position, const Vector& x, const Vector& cosines,
             const Vector& sines, const Vector& y) {
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return;
      largest = std::max({largest, std::abs(x[i]), std::abs(y[i])});
    }
    const RopeLayout asked = launch.args.attributes.as<RopeAttributes>().layout;
    const double bound = 8 * unit_roundoff(launch.args.inputs[3].dtype) * largest;
    if (same_elements(y, turned(x, cosines, sines, asked), bound)) return;
    found_ = true;
    const bool swapped = same_elements(y, turned(x, cosines, sines, other(asked)), bound);
    report(swapped ? "rope.layout" : "", swapped ? 0.97 : 0.8, "rope",
           fmt::format("{}{}the weights are {}; a vector at place {} of the sequence was turned {}",
                       launch.label.module, *launch.label.module != 0 ? ": " : "", name(asked),
                       position, swapped ? name(other(asked)) : "into something else"));
  }

  bool found_ = false;
};

}  // namespace

DETECTOR(rope_layout) {
  return {"rope.layout",
          WatchLevel::full,
          {{"rope.layout",
            "The rotary embedding pairs other elements than the weights were trained with: "
            "neighbours where it should pair halves, or the other way round.",
            "Permute the rows of q_proj and k_proj when a file is converted, or turn in the layout "
            "that the file was trained with; keep the layout with the weights.",
            "The turned elements are those of the layout that the weights ask for."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<RopeLayoutKept>(context, findings);
          }};
}

}  // namespace faultline::diagnose
