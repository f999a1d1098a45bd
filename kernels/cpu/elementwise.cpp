// Elementwise kernels: the functions of one tensor and their derivatives, affine, and the
// arithmetic of two broadcast tensors.
#include <algorithm>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// Calls body(begin, n) for every block of the elements [0, count), on several threads.
template <class Make>
void for_blocks(int64_t count, int threads, const Make& make) {
  for_pieces(count, kPiece, threads_for(count, threads), [&](int64_t begin, int64_t end) {
    auto body = make();
    for (; begin < end; begin += kBlock) body(begin, std::min(kBlock, end - begin));
  });
}

// outputs[0] = span(inputs[0])
template <class Span>
void map_one(const KernelArgs& args, const Span& span) {
  const Shape& shape = args.outputs[0].shape;
  const Layout x(args.inputs[0], shape);
  const Layout y(args.outputs[0], shape);
  for_blocks(args.outputs[0].numel(), args.threads, [&] {
    return [&span, from = Source(x), to = Sink(y)](int64_t begin, int64_t n) mutable {
      span(from.read(begin, n), to.slot(begin, n), n);
      to.commit(begin, n);
    };
  });
}

// outputs[0] = span(inputs[0], inputs[1]), both broadcast to the output.
void map_two(const KernelArgs& args, ArithmeticSpans::Binary span) {
  const Shape& shape = args.outputs[0].shape;
  const Layout a(args.inputs[0], shape);
  const Layout b(args.inputs[1], shape);
  const Layout y(args.outputs[0], shape);
  for_blocks(args.outputs[0].numel(), args.threads, [&] {
    return [span, first = Source(a), second = Source(b), to = Sink(y)](int64_t begin,
                                                                       int64_t n) mutable {
      span(first.read(begin, n), second.read(begin, n), to.slot(begin, n), n);
      to.commit(begin, n);
    };
  });
}

using Backward = void (*)(const float* dy, const float* x, const float* y, float* dx, int64_t n);

void map_backward(const KernelArgs& args, Backward span) {
  const Shape& shape = args.outputs[0].shape;
  const Layout dy(args.inputs[0], shape);
  const Layout x(args.inputs[1], shape);
  const Layout y(args.inputs[2], shape);
  const Layout dx(args.outputs[0], shape);
  for_blocks(args.outputs[0].numel(), args.threads, [&] {
    return [span, g = Source(dy), in = Source(x), out = Source(y), to = Sink(dx)](
               int64_t begin, int64_t n) mutable {
      span(g.read(begin, n), in.read(begin, n), out.read(begin, n), to.slot(begin, n), n);
      to.commit(begin, n);
    };
  });
}

}  // namespace

#define FAULTLINE_UNARY(name, autocast)                                    \
  void name(const KernelArgs& args) { map_one(args, unary_spans().name); } \
  void name##_backward(const KernelArgs& args) {                           \
    map_backward(args, unary_spans().name##_backward);                     \
  }
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL

void affine(const KernelArgs& args) {
  const auto attributes = args.attributes.as<AffineAttributes>();
  const auto scale = static_cast<float>(attributes.scale);
  const auto offset = static_cast<float>(attributes.offset);
  const ArithmeticSpans& spans = arithmetic_spans();
  map_one(args, [&spans, scale, offset](const float* x, float* y, int64_t n) {
    // Without an offset the sign of a zero stays.
    if (offset == 0) {
      spans.scale(x, y, n, scale);
    } else {
      spans.affine(x, y, n, scale, offset);
    }
  });
}

void add(const KernelArgs& args) { map_two(args, arithmetic_spans().add); }
void sub(const KernelArgs& args) { map_two(args, arithmetic_spans().sub); }
void mul(const KernelArgs& args) { map_two(args, arithmetic_spans().mul); }
void div(const KernelArgs& args) { map_two(args, arithmetic_spans().div); }
void maximum(const KernelArgs& args) { map_two(args, arithmetic_spans().maximum); }
void minimum(const KernelArgs& args) { map_two(args, arithmetic_spans().minimum); }
void swiglu(const KernelArgs& args) { map_two(args, arithmetic_spans().swiglu); }

void swiglu_backward(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape;
  const Layout dy(args.inputs[0], shape);
  const Layout gate(args.inputs[1], shape);
  const Layout up(args.inputs[2], shape);
  const Layout dgate(args.outputs[0], shape);
  const Layout dup(args.outputs[1], shape);
  const auto span = arithmetic_spans().swiglu_backward;
  for_blocks(args.inputs[0].numel(), args.threads, [&] {
    return [span, g = Source(dy), a = Source(gate), b = Source(up), to_a = Sink(dgate),
            to_b = Sink(dup)](int64_t begin, int64_t n) mutable {
      span(g.read(begin, n), a.read(begin, n), b.read(begin, n), to_a.slot(begin, n),
           to_b.slot(begin, n), n);
      to_a.commit(begin, n);
      to_b.commit(begin, n);
    };
  });
}

}  // namespace faultline::cpu
