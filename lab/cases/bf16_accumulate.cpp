#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <string_view>

#include "autograd/functional.h"
#include "core/rng.h"
#include "kernels/layout.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "optim/clip.h"
#include "optim/optimizer.h"

// Sums in 16 bits: of gradients (swallow, poison) and inside a layer norm (ln-variance, fp16-eps).
namespace faultline::lab {
namespace {

// ---- sums of gradients --------------------------------------------------------------------------

// page: begin
// The gradient is kept in bf16 and each contribution is rounded into it.
Tensor accumulate_in_bf16(const Tensor& held, const Tensor& contribution) {
  const Tensor rounded = cast(contribution, DType::bf16);
  return held.defined() ? add(held, rounded) : rounded;
}

// A step of 1,024 micro-batches. Each adds 2^-10 to the gradient of every weight.
void accumulate(const RunOptions& options, Metrics& metrics) {
  const Tensor weights = uniform({4}, -1, 1, options.seed, stream_of("weights"));
  set_requires_grad(weights);
  Curve curve{"gradient", {}, {}};
  for (int i = 1; i <= 1024; ++i) {
    backward(sum(weights * 0x1p-10));
    if (i % 16 != 0) continue;
    curve.x.push_back(i);
    curve.y.push_back(gradient(weights).to_vector<double>()[0]);
  }
  // page: end
  metrics.measure("gradient", curve.y.back());
  metrics.add(curve);
}

// What people do about it where a buffer in f32 is too large: Kahan's summation. What an addition
// lost is kept beside the sum of a leaf, in bf16 as well, and goes with the next contribution.
class CompensatedSum {
 public:
  Tensor operator()(const Tensor& held, const Tensor& contribution) {
    if (!held.defined()) lost_ = zeros(contribution.shape(), DType::bf16);
    const Tensor due = cast(contribution, DType::bf16) + lost_;
    const Tensor sum = accumulate_in_bf16(held, due);
    lost_ = due - (held.defined() ? sum - held : sum);
    return sum;
  }

 private:
  Tensor lost_;
};

// A gradient buffer in fp16, which the optimizer reads as f32.
Tensor accumulate_in_fp16(const Tensor& held, const Tensor& contribution) {
  const Tensor added = cast(contribution, DType::f16);
  return cast(held.defined() ? cast(held, DType::f16) + added : added, DType::f32);
}

// What anomaly detection does: it raises where a function of the backward pass returns a NaN.
std::shared_ptr<void> detect_anomaly(Context& context) {
  return context.events.subscribe<GradientEvent>([](const GradientEvent& event) {
    for (const double value : event.contribution.to_vector<double>()) {
      require(!std::isnan(value), "anomaly detection: the backward pass returned a NaN for {}",
              event.name);
    }
  });
}

// Steps of 8 micro-batches, each with the gradient 2^-10 for every weight. One micro-batch, the
// fifth of step 10, has 70,000: a lot, and no reason to end a run whose gradients are clipped.
class OneLargeGradient : public TrainedExperiment {
 public:
  static constexpr int64_t kSteps = 20;

  explicit OneLargeGradient(const RunOptions&)
      : weights_("weights", ones({4}), Decay::no),
        optimizer_({{{&weights_}, 0}}),
        clip_({&weights_}, 1.0),
        largest_norm_(zeros({1}, DType::f64)) {}

  void step(int64_t step) override {
    weights_.clear_gradient();
    for (int micro = 1; micro <= 8; ++micro) {
      const bool is_large = step == 10 && micro == 5;
      backward(sum(weights_.value() * (is_large ? 70000.0 : 0x1p-10)));
    }
    const optim::Clip clip = clip_.measure();
    optimizer_.step(1e-3, clip.factor);
    copy_(largest_norm_, maximum(largest_norm_, clip.norm));
    if (!std::isfinite(weight())) return;
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(weight());
  }
  State state() override {
    State state = TrainedExperiment::state();
    state.tensors["max norm"] = largest_norm_;
    return state;
  }
  void load(const State& state) override {
    TrainedExperiment::load(state);
    copy_(largest_norm_, state.tensor("max norm"));
  }
  void report(Metrics& metrics) override {
    metrics.measure("max norm", largest_norm_.item<double>());
    metrics.measure("weight", weight());
    metrics.add(curve_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }
  double weight() const { return weights_.value().to_vector<double>()[0]; }

  Parameter weights_;
  optim::AdamW optimizer_;
  optim::GradientClip clip_;
  Tensor largest_norm_;
  Curve curve_{"weight", {}, {}};
};

// ---- sums in a layer norm -----------------------------------------------------------------------

using Row = std::vector<double>;

double mean_of(const Row& row) {
  double sum = 0;
  for (const double x : row) sum += x;
  return sum / static_cast<double>(row.size());
}

double two_pass_variance(const Row& row) {
  const double mean = mean_of(row);
  double sum = 0;
  for (const double x : row) sum += (x - mean) * (x - mean);
  return sum / static_cast<double>(row.size());
}

double in_bf16(double value) { return static_cast<double>(bfloat16(value)); }

// The wrong code of ln-variance: E[x^2] - E[x]^2, each kept in bf16.
double one_pass_variance_in_bf16(const Row& row) {
  double sum = 0;
  double sum_of_squares = 0;
  for (const double x : row) {
    sum += x;
    sum_of_squares += in_bf16(x * x);
  }
  const auto n = static_cast<double>(row.size());
  const double mean = in_bf16(sum / n);
  return in_bf16(in_bf16(sum_of_squares / n) - in_bf16(mean * mean));
}

// Calls body(row, its number) for the rows of a tensor of any float type.
void for_each_row(const TensorView& x, const std::function<void(const Row&, int64_t)>& body) {
  const int64_t length = x.shape[-1];
  Row row(static_cast<size_t>(length));
  with_type(x.dtype, [&]<class T>() {
    for (int64_t r = 0; r * length < x.numel(); ++r) {
      for (int64_t i = 0; i < length; ++i) {
        row[static_cast<size_t>(i)] = convert<double>(x.as<T>()[offset_of(x, r * length + i)]);
      }
      body(row, r);
    }
  });
}

void write(const TensorView& view, int64_t n, double value) {
  with_type(view.dtype, [&]<class T>() { view.as<T>()[offset_of(view, n)] = convert<T>(value); });
}

double read_or(const TensorView& view, int64_t n, double otherwise) {
  if (!view.defined()) return otherwise;
  return with_type(view.dtype,
                   [&]<class T>() { return convert<double>(view.as<T>()[offset_of(view, n)]); });
}

// layer_norm with 1 / sqrt(variance + epsilon) as `deviation` computes it from a row.
template <double (*deviation)(const Row&, double epsilon)>
void layer_norm_with(const KernelArgs& args) {
  const double epsilon = args.attributes.as<LayerNormAttributes>().epsilon;
  for_each_row(args.inputs[0], [&](const Row& row, int64_t r) {
    const double mean = mean_of(row);
    const double rstd = 1 / deviation(row, epsilon);
    for (size_t i = 0; i < row.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      const double scaled = (row[i] - mean) * rstd * read_or(args.inputs[1], n, 1);
      write(args.outputs[0], r * static_cast<int64_t>(row.size()) + n,
            scaled + read_or(args.inputs[2], n, 0));
    }
    write(args.outputs[1], r, mean);
    write(args.outputs[2], r, rstd);
  });
}

double deviation_in_bf16(const Row& row, double epsilon) {
  return std::sqrt(one_pass_variance_in_bf16(row) + epsilon);
}
// The wrong code of fp16-eps: variance + epsilon is right, and rounded to fp16 before the root.
double deviation_in_fp16(const Row& row, double epsilon) {
  return std::sqrt(static_cast<double>(float16(two_pass_variance(row) + epsilon)));
}
// What people do about both: all of it in f32, in two passes.
double deviation_in_f32(const Row& row, double epsilon) {
  return static_cast<double>(std::sqrt(static_cast<float>(two_pass_variance(row) + epsilon)));
}
constexpr KernelRecord kNormInBf16{"layer_norm/one pass, bf16",
                                   &layer_norm_with<&deviation_in_bf16>};
constexpr KernelRecord kNormInFp16{"layer_norm/variance in fp16",
                                   &layer_norm_with<&deviation_in_fp16>};
constexpr KernelRecord kNormInF32{"layer_norm/two passes, f32",
                                  &layer_norm_with<&deviation_in_f32>};

Plant replace_norm(const KernelRecord& kernel) {
  return [&kernel](Context& context) {
    return context.seams.replace<KernelSeam>([&kernel](const SelectionRequest& request) {
      if (&request.op == &definition(Op::layer_norm)) return Selection{&kernel, "planted"};
      return KernelSeam::standard(request);
    });
  };
}

// The variance that a layer norm of one row worked with, from the 1 / sqrt(variance + epsilon) that
// it saves for its backward pass. Above a variance of -2^-7, epsilon keeps that root real.
double variance_used(const Tensor& row) {
  constexpr double kEpsilon = 0x1p-7 + 0x1p-10;
  double rstd = NAN;
  const auto listening =
      Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
        if (std::string_view(event.launch.label.op) != "layer_norm") return;
        rstd = read_or(event.launch.args.outputs[2], 0, NAN);
      });
  layer_norm(row, {}, {}, kEpsilon);
  return 1 / (rstd * rstd) - kEpsilon;
}

// Eight values one bf16 spacing apart, five of them the larger, in an order that the seed draws.
void close_values(const RunOptions& options, Metrics& metrics) {
  std::array<float, 8> row{1, 1, 1, 1.0078125F, 1.0078125F, 1.0078125F, 1.0078125F, 1.0078125F};
  const RandomSequence random(options.seed, stream_of("order"));
  for (size_t i = row.size() - 1; i > 0; --i) std::swap(row[i], row[random.below(i + 1, i)]);
  const Tensor x = cast(tensor<float>(std::span<const float>(row), {1, 8}), DType::bf16);

  const std::vector<double> y = layer_norm(x, {}, {}).to_vector<double>();
  metrics.measure("variance", variance_used(x));
  metrics.measure("y[0]", y[0]);
  metrics.add(Grid{"x", 1, 8, x.to_vector<double>(), {"row"}, {"feature"}});
  metrics.add(Grid{"y = layer_norm(x)", 1, 8, y, {"row"}, {"feature"}});
}

// A row of text and one of padding, which is all zeros, under the epsilon of BERT.
void padded_row(const RunOptions& options, Metrics& metrics) {
  const Tensor text = normal({1, 8}, 0, 1, options.seed, stream_of("text"));
  const Tensor x = cast(cat(std::array{text, zeros({1, 8})}, 0), DType::f16);
  const std::vector<double> y = layer_norm(x, {}, {}, 1e-12).to_vector<double>();
  metrics.measure("y of text", y[0]);
  metrics.measure("y of padding", y[8]);
  metrics.add(Grid{"y = layer_norm(x)", 2, 8, y, {"row", {"text", "padding"}}, {"feature"}});
}

// ---- the variants -------------------------------------------------------------------------------

const char* const kLater = "its training form comes with mixed precision";

void add_gradient_variants(Fault& fault) {
  fault.variant("swallow", "1,024 gradients of 2^-10 summed in bf16 give 0.25")
      .wrong([](Context& context) {
        return context.seams.replace<AccumulateSeam>(&accumulate_in_bf16);
      })
      .run(&accumulate)
      .remedy(
          [](Context& context) { return context.seams.replace<AccumulateSeam>(CompensatedSum()); })
      .expect("gradient", 0.25)
      .claimed("set_detect_anomaly, which raises at a NaN", &detect_anomaly)
      .caught_by("accumulate.absorbed")
      .not_in_training(kLater);
  fault.variant("poison", "One gradient of 70,000 in an fp16 sum makes every weight NaN")
      .wrong([](Context& context) {
        return context.seams.replace<AccumulateSeam>(&accumulate_in_fp16);
      })
      .run<OneLargeGradient>(OneLargeGradient::kSteps)
      .expect("max norm", INFINITY)
      .expect("weight", NAN)
      .claimed("set_detect_anomaly, which raises at a NaN", &detect_anomaly)
      .caught_by("accumulate.finite")
      .not_in_training(kLater);
}

void add_norm_variants(Fault& fault) {
  fault.variant("ln-variance", "A layer norm in bf16 finds a variance of -0.0078125")
      .wrong(replace_norm(kNormInBf16))
      .run(&close_values)
      .remedy(replace_norm(kNormInF32))
      .fixed_within(5e-4,
                    "the variance is read from an f32, 1 / sqrt(variance + 0.0088), of which each "
                    "rounding, by up to 2^-24, is up to 7e-5 of the variance")
      .expect("variance", -0x1p-7)
      .expect("y[0]", NAN)
      .caught_by("variance.positive")
      .not_in_training(kLater);
  fault.variant("fp16-eps", "An epsilon of 1e-12 is 0 in fp16, and padding becomes NaN")
      .wrong(replace_norm(kNormInFp16))
      .run(&padded_row)
      .remedy(replace_norm(kNormInF32))
      .expect("y of padding", NAN)
      .caught_by("variance.positive")
      .not_in_training(kLater);
}

}  // namespace

FAULT(bf16_accumulate) {
  Fault& fault = lab.fault(
      {.id = "bf16.accumulate",
       .title = "Sums kept in 16 bits stop, cancel or overflow",
       .domain = "precision",
       .seed = "000 4.3",
       .mechanism =
           "bf16 has 8 bits of significand: an addend below half an ulp of the sum changes "
           "nothing. At 0.25 an ulp is 2^-9, so adding 2^-10 is exactly a tie and rounds to even, "
           "back to 0.25. 1,024 micro-batches of 2^-10 give 0.25 in place of 1; all after the "
           "first 256 are lost (swallow). Differences of such sums are worse: of five values "
           "1.0078125 and three 1.0, bf16 has E[x^2] = 1.0078125 and E[x]^2 = 1.015625, so the "
           "variance is -0.0078125 (truly 1.43e-5) and its root NaN (ln-variance). fp16 has 11 "
           "bits and a small range: 1e-12 is 0, so a constant row divides by 0 (fp16-eps); 70,000 "
           "is infinite, the norm with it, and clipping makes every weight NaN (poison).",
       .symptom =
           "swallow: updates too small by a factor that grows with the number of micro-batches; "
           "nothing is NaN. ln-variance and fp16-eps: NaN from the first layer norm that meets a "
           "nearly constant or a padded row. poison: a good run is NaN from one step to the next.",
       .article_says =
           "bf16 reaches only from 5.96e-8 to 65504, so rounding errors grow in accumulation until "
           "they under- or overflow and become NaN: a variance underflows to 0, its inverse is "
           "inf, inf times a weight is NaN. torch._C._set_backtrace_enabled finds the node.",
       .truth =
           "That is the range of fp16. bf16 has the exponents of f32: accumulation in it loses "
           "significance and hardly ever overflows, and 1e-12 is in its range. The chain of inf "
           "and NaN is real in fp16; in bf16 a variance is lost by cancellation. The function "
           "named there does not exist, and set_detect_anomaly looks at what backward functions "
           "return, for NaN only: it is silent where a sum stops, and where a sum overflows, since "
           "joining gradients is no backward function and inf is no NaN. It speaks a step "
           "later, when the weights are NaN, and names another place.",
       .fix =
           "Accumulate gradients in f32 (a main_grad buffer), also where the forward pass is bf16; "
           "mean and variance of norms in f32 and in two passes. Where a 16-bit sum must be: Kahan "
           "summation or stochastic rounding. Where a sum may overflow, check it once per step and "
           "on failure skip the step and clear the whole window; a check that leaves the gradient "
           "uncleared hands the NaN to every later window. Leaving out the one bad micro-batch "
           "hides the NaN and changes the gradient.",
       .sources =
           // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): each source takes two lines
       {"DeepSpeed issue 2768 (2023): accumulation in bf16 diverges where fp16 does not; led "
        "to pull request 2352. https://github.com/microsoft/DeepSpeed/issues/2768",
        "Megatron-LM issues 372 and 502 (2023): bf16 now forces f32 accumulation and "
        "all-reduce. https://github.com/NVIDIA/Megatron-LM/issues/372",
        "Liger-Kernel issue 512 (2025): fused cross-entropy accumulates its weight gradient by "
        "chunks in bf16. https://github.com/linkedin/Liger-Kernel/issues/512",
        "tt-metal issue 45968 (2026-06-03): batch_norm in bf16 by E[x^2] - E[x]^2 gives NaN. "
        "https://github.com/tenstorrent/tt-metal/issues/45968",
        "PyTorch issue 41527 (2020-07-16): layer_norm of zeros in fp16 with epsilon 1e-12 is "
        "NaN. https://github.com/pytorch/pytorch/issues/41527",
        "DeepSpeed issue 581 (2020-12-05): variance + epsilon is rounded to half before the "
        "root; padding becomes NaN. https://github.com/deepspeedai/DeepSpeed/issues/581",
        "espnet pull request 3283 (2021-06-10): a step with a NaN gradient was skipped and its "
        "gradients were not cleared. https://github.com/espnet/espnet/pull/3283",
        "PyTorch issue 83537 (2022-08-16): anomaly mode does not look for inf. "
        "https://github.com/pytorch/pytorch/issues/83537"},
       .look_alikes =
           "Gradients that are too small also come from a mean of means over micro-batches of "
           "different length (then one micro-batch per step is right, and f32 does not help) or "
           "from a low clipping norm. NaN also comes from a softmax or a log of 0 (then the input "
           "of the layer norm is not finite) and from a learning rate that is too high (then norms "
           "grow for many steps before). A double sum of the same contributions refutes swallow.",
       .exercise =
           "A bf16 sum starts at 1.0. You add 1,000 times 1.5 * 2^-8. Where does it end, and "
           "where would it end exactly?",
       .answer =
           "At 2.0, exactly would be 6.859. Between 1 and 2 an ulp is 2^-7, and 1.5 * 2^-8 is "
           "three quarters of one: each addition moves the sum by a whole ulp, for 128 steps. From "
           "2 on an ulp is 2^-6 and the addend is 0.375 of it: nothing moves any more."});
  add_gradient_variants(fault);
  add_norm_variants(fault);
}

}  // namespace faultline::lab
