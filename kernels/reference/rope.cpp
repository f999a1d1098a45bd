// Rotary positions (Su et al., "RoFormer", 2021): each pair (a, b) of a head's elements becomes
// (a cos - b sin, b cos + a sin).

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

// Inputs x [B, H, T, D], cosines and sines [1 or B, T, D / 2].
void rope(const KernelArgs& args) {
  const auto attributes = args.attributes.as<RopeAttributes>();
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> cosines(args.inputs[1]);
    const Rows<T> sines(args.inputs[2]);
    const Rows<T> y(args.outputs[0]);
    const Shape& shape = args.inputs[0].shape;
    const bool one_table = args.inputs[1].shape[0] == 1;
    const size_t pairs = static_cast<size_t>(shape[3]) / 2;
    const bool halves = attributes.layout == RopeLayout::half_split;
    for (int64_t row = 0; row < x.count(); ++row) {
      const int64_t sequence = row / (shape[1] * shape[2]);
      const int64_t place = row % shape[2] + (one_table ? 0 : sequence * shape[2]);
      const std::vector<T> cosine = cosines.read(place);
      const std::vector<T> sine = sines.read(place);
      std::vector<T> values = x.read(row);
      for (size_t i = 0; i < pairs; ++i) {
        T& a = values[halves ? i : 2 * i];
        T& b = values[halves ? i + pairs : 2 * i + 1];
        const T s = attributes.turn == RopeTurn::forward ? sine[i] : -sine[i];
        const T turned = a * cosine[i] - b * s;
        b = b * cosine[i] + a * s;
        a = turned;
      }
      y.write(row, values);
    }
  });
}

}  // namespace faultline::reference
