#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/fused_attention.h"
#include "train/trainer.h"

// Shapes: B batch, H heads, T positions, K keys, D head size.
namespace faultline::lab {
namespace {

// ---- unchecked-launch ---------------------------------------------------------------------------

// page: begin
// A block of threads may have so much shared memory, where it asks for it (sm_86 and sm_89). The
// kernel holds a tile of queries, one of keys and one of values in it, in 16 bits.
constexpr int64_t kSharedBytes = 101376;
int64_t tile_bytes(int64_t queries, int64_t keys, int64_t head_size) {
  return (queries + 2 * keys) * head_size * 2;
}

// False, as cudaErrorInvalidValue: then nothing ran.
bool launch_tiles(const KernelArgs& args, int64_t queries, int64_t keys) {
  if (tile_bytes(queries, keys, args.inputs[0].shape[3]) > kSharedBytes) return false;
  cpu::flash_attention(args);
  return true;
}

// The wrong code: nobody looks at the status.
void unchecked(const KernelArgs& args) { launch_tiles(args, 128, 64); }
// page: end

// The remedy: where the tile does not fit, a smaller one runs.
void checked(const KernelArgs& args) {
  if (!launch_tiles(args, 128, 64)) require(launch_tiles(args, 64, 64), "flash: no tile fits");
}

constexpr FusedKernels kUnchecked{{"flash_attention/128 x 64 tiles, unchecked", &unchecked}};
constexpr FusedKernels kChecked{{"flash_attention/a tile that fits", &checked}};

// Scores are 0, so every row is the mean of four values.
Tensor mean_of_four(const Tensor& q_BHTD, const Tensor& v_BHKD) {
  return nn::attention(q_BHTD, zeros(v_BHKD.shape()), v_BHKD, {.causal = false});
}

Tensor powers_of_two(int64_t head_size, double times) {
  const Tensor column = tensor<float>({1, 2, 4, 8}, {1, 1, 4, 1}) * times;
  return column * ones({1, 1, 1, head_size});
}

// Two calls whose outputs have one size, so that the second gets the memory of the first. The
// second has a head size of 256, whose tile does not fit, and doubled values.
void two_calls(const RunOptions& options, Metrics& metrics) {
  const Tensor q_64 = normal({1, 1, 4, 64}, 0, 1, options.seed, stream_of("queries"));
  const Tensor q_256 = normal({1, 1, 1, 256}, 0, 1, options.seed, stream_of("more queries"));
  const Tensor v_64 = powers_of_two(64, 1);
  const Tensor v_256 = powers_of_two(256, 2);
  Curve calls{"output by call", {1, 2}, {}};
  const Tensor k_256 = zeros(v_256.shape());
  {
    const Tensor y = mean_of_four(q_64, v_64);
    calls.y.push_back(y.to_vector<double>()[0]);
  }
  const Tensor y = nn::attention(q_256, k_256, v_256, {.causal = false});
  calls.y.push_back(y.to_vector<double>()[0]);
  metrics.measure("second call", calls.y[1]);
  metrics.add(calls);
}

// ---- dropped-feature ----------------------------------------------------------------------------

// The wrong code: the path that runs in place of the fused one knows neither.
void forget(FlashAttentionAttributes& attributes) {
  attributes.softcap = 0;
  attributes.mask.window = 0;
}
void forgetful(const KernelArgs& args) { cpu::flash_attention(changed(args, &forget)); }
void forgetful_backward(const KernelArgs& args) {
  cpu::flash_attention_backward(changed(args, &forget));
}
constexpr FusedKernels kForgetful{{"flash_attention/plain", &forgetful},
                                  {"flash_attention_backward/plain", &forgetful_backward}};

// Scores of 100 and 98 under a soft-cap of 50; and a window of 4 over eight values 2^key.
void two_features(const RunOptions& options, Metrics& metrics) {
  const Tensor k = tensor<float>({10, 9.8F}, {1, 1, 2, 1});
  const Tensor first = tensor<float>({1, 0}, {1, 1, 2, 1});
  const Tensor weight = nn::attention(full({1, 1, 1, 1}, 10), k, first, {.causal = false},
                                      {.scale = 1.0, .softcap = 50});
  metrics.measure("weight of 100 beside 98", weight.item<double>());

  const Shape shape{1, 1, 8, 1};
  const Tensor q = normal(shape, 0, 1, options.seed, stream_of("queries"));
  const Tensor v = tensor<float>({1, 2, 4, 8, 16, 32, 64, 128}, shape);
  const std::vector<double> rows =
      nn::attention(q, zeros(shape), v, {.causal = true, .window = 4}).to_vector<double>();
  metrics.measure("last row of the window", rows[7]);
  Curve curve{"output by row", {}, rows};
  for (size_t i = 0; i < rows.size(); ++i) curve.x.push_back(static_cast<double>(i));
  metrics.add(curve);
}

// ---- slow-path ----------------------------------------------------------------------------------

// The wrong code: the mask's rules are spelled out, one bool for each query and key, which says
// nothing that the rules did not and which no fused kernel takes.
nn::Mask spelled_out(const Batch& batch) {
  const nn::Mask mask = train::MaskSeam::standard(batch);
  const int64_t B = batch.inputs.size(0);
  const int64_t T = batch.inputs.size(1);
  const std::vector<uint8_t> visible = nn::visibility(mask, B, T, T);
  const Tensor numbers = tensor(std::vector<float>(visible.begin(), visible.end()), {B, 1, T, T});
  return {.causal = false, .keep = cast(numbers, DType::boolean)};
}

// The remedy: a tensor that says no more than "causal" becomes the rule again.
nn::Mask rules_again(const Batch& batch) {
  const nn::Mask dense = spelled_out(batch);
  const int64_t B = batch.inputs.size(0);
  const int64_t T = batch.inputs.size(1);
  const nn::Mask causal{.causal = true};
  return nn::visibility(dense, B, T, T) == nn::visibility(causal, B, T, T) ? causal : dense;
}

Batch one_text(int64_t length) {
  Batch batch;
  batch.inputs = zeros({1, length}, DType::i32);
  return batch;
}

// Four texts, each twice as long as the one before, under the policy "prefer flash".
void four_lengths(const RunOptions& options, Metrics& metrics) {
  Context& context = Context::current();
  int64_t by_math = 0;
  const auto count = context.events.subscribe<nn::DispatchEvent>([&](const auto& event) {
    if (event.record.chosen == nn::AttentionImplementation::math) ++by_math;
  });
  Curve scores{"scores kept by text length", {}, {}};
  double sum = 0;
  for (const int64_t T : {8, 16, 32, 64}) {
    const int64_t before = by_math;
    const Tensor q = normal({1, 1, T, 8}, 0, 1, options.seed, stream_of("queries"));
    const nn::Mask mask = context.seams.call<train::MaskSeam>(one_text(T));
    const Tensor y =
        nn::attention(q, zeros(q.shape()), ones(q.shape()), mask,
                      {.policy = nn::AttentionPolicy::prefer(nn::AttentionImplementation::flash)});
    sum += y.to_vector<double>()[0];
    scores.x.push_back(static_cast<double>(T));
    scores.y.push_back(by_math > before ? static_cast<double>(T * T) : 0);
  }
  metrics.count("calls by math", static_cast<double>(by_math));
  metrics.measure("sum of first outputs", sum);
  metrics.add(scores);
}

}  // namespace

FAULT(kernel_silent_fallback) {
  Fault& fault = lab.fault(
      {.id = "kernel.silent-fallback",
       .title = "The kernel that was asked for did not run, and nobody said so",
       .domain = "attention",
       .seed = "000 2.5",
       .mechanism =
           "A tile of 128 queries and 64 keys of 256 numbers in 16 bits takes (128 + 2 x 64) x 256 "
           "x 2 = 131072 bytes of shared memory; a block may have 101376 on sm_89. The launch "
           "fails, its status is dropped, and the output is what its memory held: 3.75 of the "
           "call before, where 7.5 is due. Or another path runs and lacks a feature: without a "
           "soft-cap of 50 scores of 100 and 98 weigh 0.880797 to 0.119203 in place of 0.536656 to "
           "0.463344; without its window a row gives 31.875 for 60. Or the path is right and slow: "
           "a mask spelled out as a tensor sends every call to the implementation that keeps all "
           "T x T scores.",
       .symptom = "A head size, a mask or another GPU changes results, or halves the speed and "
                  "multiplies memory, without an error.",
       .article_says =
           "More than 48 KiB of shared memory on an A100 silently downgrades FlashAttention to a "
           "naive v1 kernel, under a rewritten kernel name.",
       .truth =
           "FlashAttention-2 has no second kernel to fall back to: it checks dtype, head size and "
           "device, asks for more than 48 KiB and checks the answer. 48 KiB is what a kernel has "
           "without asking, not an A100's limit, and CUPTI observes names, it rewrites none. What "
           "is silent are launchers that drop the status, and dispatchers that choose another "
           "path.",
       .fix = "Check the status of every attribute and launch. Let a path refuse what it lacks. "
              "Record what was requested and what ran, and require what you count on.",
       .sources =
           {"sparkinfer pull request 713 (August 2026): 76,032 bytes asked for once a process, "
            "statuses dropped, stale output reported as success. "
            "https://github.com/gittensor-ai-lab/sparkinfer/pull/713",
            "sparkinfer pull request 724 (August 2026): the same for 98,816 bytes. "
            "https://github.com/gittensor-ai-lab/sparkinfer/pull/724",
            "flash-attention issue 1016 (June 2024): Gemma 2 needs a soft-cap that fused "
            "attention lacks. https://github.com/Dao-AILab/flash-attention/issues/1016",
            "mistral.rs pull request 1928 (February 2026): Gemma 3n ran without its soft-cap. "
            "https://github.com/EricLBuehler/mistral.rs/pull/1928",
            "sam2 issue 329 (December 2024): sdpa_kernel does not warn when it falls back. "
            "https://github.com/facebookresearch/sam2/issues/329"},
       .look_alikes =
           "An output that is stale only sometimes may be a race: then the same call repeated "
           "gives different numbers, and a kernel that runs alone writes all of its output. A slow "
           "step may be a slow machine; the dispatch record says which path ran.",
       .exercise =
           "Your test compares a kernel with a reference, both write into the same preallocated "
           "tensor, the reference first. Why can it not fail?",
       .answer =
           "A kernel that never runs leaves the reference's answer in place. Fill the output with "
           "NaN before each of them."});

  fault.variant("unchecked-launch", "A launch fails, and the output is that of the call before")
      .wrong(fused_by(kUnchecked))
      .remedy(fused_by(kChecked))
      .run(&two_calls)
      .expect("second call", 3.75)
      .caught_by("attention.parity")
      // One head of 200 takes 102400 bytes.
      .in_training({.steps = 200,
                    .needs = {{"hidden_size", "200"}, {"num_heads", "1"}, {"num_layers", "1"}}});
  fault.variant("dropped-feature", "Another path runs and knows no soft-cap and no window")
      .wrong(fused_by(kForgetful))
      .remedy(&use_math)
      .run(&two_features)
      .expect_within("weight of 100 beside 98", 1 / (1 + std::exp(-2.0)), 1e-5,
                     "9.8 is no f32 number, and f32 has 7 digits of 98")
      .expect("last row of the window", 31.875)
      .fixed_within(1e-5, "another implementation rounds otherwise")
      .caught_by("attention.parity")
      .in_training({.steps = 200, .needs = {{"window", "8"}}});
  fault.variant("slow-path", "A mask spelled out as a tensor sends every call to the slow path")
      .wrong([](Context& context) { return context.seams.replace<train::MaskSeam>(&spelled_out); })
      .remedy([](Context& context) { return context.seams.replace<train::MaskSeam>(&rules_again); })
      .run(&four_lengths)
      .expect("calls by math", 4)
      .caught_by("dispatch.audit")
      .in_training({.steps = 200, .needs = {{"attention", "prefer flash"}}});
}

}  // namespace faultline::lab
