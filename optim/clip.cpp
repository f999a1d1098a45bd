#include "optim/clip.h"

#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/kernels.h"

namespace faultline::optim {

GradientClip::GradientClip(std::vector<Parameter*> parameters, double max_norm)
    : parameters_(std::move(parameters)),
      max_norm_(max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity()),
      table_(empty({static_cast<int64_t>(parameters_.size() * sizeof(TensorSpan))}, DType::u8,
                   "clip table")),
      squares_(empty({1}, DType::f64, "clip")),
      clip_{empty({1}, DType::f64, "clip"), empty({1}, DType::f64, "clip")} {
  require(max_norm >= 0, "clip: max_norm must not be negative, got {}", max_norm);
}

Clip GradientClip::measure() {
  Context& context = Context::current();
  const NoGrad off;
  const Scoped<Phase> phase(context.phase, Phase::optimizer);
  std::vector<TensorSpan> rows;
  std::vector<ByteRange> reads;
  std::vector<Tensor> held;  // keeps contiguous copies alive until the launch
  for (const Parameter* parameter : parameters_) {
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
  Tensor table = slice(table_, 0, 0, static_cast<int64_t>(bytes.size()));
  table.assign(bytes, "clip table");

  Launch measure;
  measure.kernel = &kernels::sum_of_squares;
  measure.args.inputs[0] = table.view();
  measure.args.input_count = 1;
  measure.args.outputs[0] = squares_.view();
  measure.args.output_count = 1;
  measure.args.threads = context.threads;
  measure.label = {"sum_of_squares", "", Phase::optimizer, "its only kernel", Site::here()};
  measure.indirect_reads = reads;
  launch(context.stream, measure);

  Launch decide;
  decide.kernel = &kernels::clip_factor;
  decide.args.inputs[0] = squares_.view();
  decide.args.input_count = 1;
  decide.args.outputs[0] = clip_.norm.view();
  decide.args.outputs[1] = clip_.factor.view();
  decide.args.output_count = 2;
  decide.args.attributes = ClipAttributes{max_norm_};
  decide.label = {"clip_factor", "", Phase::optimizer, "its only kernel", Site::here()};
  launch(context.stream, decide);
  return clip_;
}

}  // namespace faultline::optim
