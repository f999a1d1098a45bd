#include "optim/clip.h"

#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/kernels.h"

namespace faultline::optim {

Clip clip_by_global_norm(const std::vector<Parameter*>& parameters, double max_norm) {
  require(max_norm >= 0, "clip: max_norm must not be negative, got {}", max_norm);
  Context& context = Context::current();
  const NoGrad off;
  const Scoped<Phase> phase(context.phase, Phase::optimizer);
  std::vector<TensorSpan> rows;
  std::vector<ByteRange> reads;
  std::vector<Tensor> held;
  for (const Parameter* parameter : parameters) {
    const Tensor gradient = parameter->gradient();
    if (!gradient.defined()) continue;
    require(gradient.dtype() == DType::f32, "clip: the gradient of {} is {}, expected f32",
            parameter->name(), gradient);
    held.push_back(contiguous(gradient));
    const TensorView view = held.back().view();
    rows.push_back({view.as<float>(), view.numel()});
    reads.push_back(byte_range(view));
  }
  const std::span bytes(reinterpret_cast<const uint8_t*>(rows.data()),
                        rows.size() * sizeof(TensorSpan));
  const Tensor table = tensor(bytes, {static_cast<int64_t>(bytes.size())});
  Tensor squares = empty({1}, DType::f64, "clip");
  Launch measure;
  measure.kernel = &kernels::sum_of_squares;
  measure.args.inputs[0] = table.view();
  measure.args.input_count = 1;
  measure.args.outputs[0] = squares.view();
  measure.args.output_count = 1;
  measure.args.threads = context.threads;
  measure.label = {"sum_of_squares", "", Phase::optimizer, "its only kernel", Site::here()};
  measure.indirect_reads = reads;
  launch(context.stream, measure);

  Clip clip{empty({1}, DType::f64, "clip"), empty({1}, DType::f64, "clip")};
  const double limit = max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity();
  Launch decide;
  decide.kernel = &kernels::clip_factor;
  decide.args.inputs[0] = squares.view();
  decide.args.input_count = 1;
  decide.args.outputs[0] = clip.norm.view();
  decide.args.outputs[1] = clip.factor.view();
  decide.args.output_count = 2;
  decide.args.attributes = ClipAttributes{limit};
  decide.label = {"clip_factor", "", Phase::optimizer, "its only kernel", Site::here()};
  launch(context.stream, decide);
  return clip;
}

}  // namespace faultline::optim
