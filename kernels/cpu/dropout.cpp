// Dropout (Srivastava et al., 2014) with counter-based random numbers: whether an element is kept
// depends on seed, step, sequence, layer and place only.
#include <algorithm>
#include <cmath>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// The smallest word w with w / 2^32 >= p. For p > 1 - 2^-32 there is none.
uint64_t threshold(double p) { return static_cast<uint64_t>(std::ceil(p * 0x1p32)); }

DropoutSpan span_of(const KernelArgs& args) {
  const auto attributes = args.attributes.as<DropoutAttributes>();
  const TensorView& key = args.inputs[1];
  const int64_t* values = key.as<int64_t>();
  const int64_t stride = key.strides[0];
  const auto seed = static_cast<uint64_t>(values[0]);
  return {.sequence = static_cast<uint32_t>(values[2 * stride]),
          .layer = attributes.layer,
          .step = static_cast<uint32_t>(values[stride]),
          .seed_low = static_cast<uint32_t>(seed),
          .seed_high = static_cast<uint32_t>(seed >> 32),
          .threshold = static_cast<uint32_t>(threshold(attributes.p)),
          .scale = static_cast<float>(1 / (1 - attributes.p))};
}

}  // namespace

// y_i = x_i / (1 - p) where the element's random fraction is at least p, else 0.
void dropout(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  const int64_t count = args.outputs[0].numel();
  if (count == 0) return;
  const int64_t sequence_length = shape.empty() ? 1 : count / shape[0];
  const bool drops_all = threshold(args.attributes.as<DropoutAttributes>().p) > UINT32_MAX;
  const DropoutSpan first = span_of(args);
  const ArithmeticSpans& spans = arithmetic_spans();
  const Layout x(args.inputs[0], shape);
  const Layout y(args.outputs[0], shape);
  for_pieces(count, kPiece, threads_for(count, args.threads), [&](int64_t begin, int64_t end) {
    Source source(x);
    Sink sink(y);
    while (begin < end) {
      const int64_t place = begin % sequence_length;
      const int64_t n = std::min({kBlock, end - begin, sequence_length - place});
      DropoutSpan span = first;
      span.first = static_cast<uint32_t>(place);
      span.sequence += static_cast<uint32_t>(begin / sequence_length);
      float* const to = sink.slot(begin, n);
      if (drops_all) {
        std::fill_n(to, n, 0.0F);
      } else {
        spans.dropout(source.read(begin, n), to, n, span);
      }
      sink.commit(begin, n);
      begin += n;
    }
  });
}

}  // namespace faultline::cpu
