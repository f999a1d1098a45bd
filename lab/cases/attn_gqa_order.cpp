#include <vector>

#include "autograd/functional.h"
#include "lab/fused_attention.h"

// Shapes: H query heads, G key heads.
namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the key heads are laid out again and again, 0, 1, 0, 1, until there is one for
// each query head. So query heads h, h + G, ... read key head h.
void tiled(const KernelArgs& args) {
  const int64_t G = args.inputs[1].shape[1];
  for (int64_t h = 0; h < args.inputs[0].shape[1]; h += G) {
    KernelArgs round = args;
    round.inputs[0] = slice_of(args.inputs[0], 1, h, G);
    for (int i = 0; i < 2; ++i) round.outputs[i] = slice_of(args.outputs[i], 1, h, G);
    cpu::flash_attention(round);
  }
}
// page: end

// Its derivative: a round for each use of the key heads, whose gradients are added.
void tiled_backward(const KernelArgs& args) {
  const int64_t G = args.inputs[1].shape[1];
  const auto size = static_cast<size_t>(args.outputs[1].numel());
  std::vector<float> part(2 * size);
  std::vector<float> total(2 * size, 0.0F);
  for (int64_t h = 0; h < args.inputs[0].shape[1]; h += G) {
    KernelArgs round = args;
    for (const int i : {0, 6, 7, 8}) round.inputs[i] = slice_of(args.inputs[i], 1, h, G);
    round.outputs[0] = slice_of(args.outputs[0], 1, h, G);
    for (size_t i = 0; i < 2; ++i) {
      round.outputs[1 + i].data = reinterpret_cast<std::byte*>(&part[i * size]);
    }
    cpu::flash_attention_backward(round);
    for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  for (size_t i = 0; i < 2; ++i) {
    std::copy_n(&total[i * size], size, args.outputs[1 + i].as<float>());
  }
}

constexpr FusedKernels kTiled{{"flash_attention/tiled heads", &tiled},
                              {"flash_attention_backward/tiled heads", &tiled_backward}};

// Four query heads share two key heads, whose values are 1 and 100: one token, which sees itself.
void four_heads(const RunOptions&, Metrics& metrics) {
  constexpr int64_t kHeads = 4;
  const Tensor v = tensor<float>({1, 100}, {1, 2, 1, 1});
  const Tensor y = nn::attention(zeros({1, kHeads, 1, 1}), zeros({1, 2, 1, 1}), v, nn::Mask{});
  const std::vector<double> heads = y.to_vector<double>();
  for (size_t h = 0; h < heads.size(); ++h) {
    metrics.measure("head " + std::to_string(h), heads[h]);
  }
  std::vector<double> reads;
  for (const double value : heads) {
    reads.push_back(value == 1 ? 1 : 0);
    reads.push_back(value == 100 ? 1 : 0);
  }
  metrics.add(Grid{"query head reads key head", kHeads, 2, reads, {"query head"}, {"key head"}});
}

}  // namespace

FAULT(attn_gqa_order) {
  Fault& fault = lab.fault(
      {.id = "attn.gqa-order",
       .title = "Query heads read the key heads of other groups",
       .domain = "attention",
       .mechanism =
           "With grouped queries H query heads share G key heads: head h reads key head "
           "h / (H / G), rounded down. A kernel that wants H key heads gets them by repetition, "
           "and there are two: each head H / G times in a row (0, 0, 1, 1), or all of them again "
           "and again (0, 1, 0, 1). Only the first is what models were trained with. With four "
           "query heads and two key heads whose values are 1 and 100 the outputs are 1, 1, 100, "
           "100; tiled they are 1, 100, 1, 100.",
       .symptom =
           "All shapes fit. A model that is trained so is as good as any, for it learns this "
           "order. A loaded one speaks nonsense or nearly so, while models with one key head, or "
           "with as many as query heads, are right.",
       .truth = "Both orders are the same for G = 1 and for G = H, which is what tests often try. "
                "repeat and tile in one library are repeat_interleave and repeat in the next.",
       .fix = "Repeat each key head H / G times in a row, or give the kernel the key heads as "
              "they are. Test with 1 < G < H and values that differ by head.",
       .sources =
           {"ONNX pull request 7274 (September 2025): the definition of Attention tiled where it "
            "should repeat each head. https://github.com/onnx/onnx/pull/7274",
            "jax-js pull request 180 (August 2026): key heads should be repeated, not tiled. "
            "https://github.com/ekzhang/jax-js/pull/180",
            "onnxscript pull request 2408 (September 2025): Tile does not do what PyTorch does "
            "for grouped heads. https://github.com/microsoft/onnxscript/pull/2408"},
       .look_alikes =
           "Weights loaded with their heads in another order (the two RoPE layouts permute rows "
           "within a head, not heads) are wrong before attention: attention itself then agrees "
           "with f64. A sequence repeated along the wrong dimension changes the number of keys.",
       .exercise = "With 32 query heads and 8 key heads, how many query heads read the right key "
                   "head when they are tiled?",
       .answer = "Those where h mod 8 equals h / 4 rounded down: 0, 10, 21 and 31, four of 32."});
  fault.only_variant()
      .wrong(fused_by(kTiled))
      .remedy(&use_math)
      .run(&four_heads)
      .expect("head 1", 100)
      .expect("head 2", 1)
      .caught_by("attention.parity")
      .in_training(
          {.steps = 200,
           .needs = {{"family", "llama"}, {"num_heads", "4"}, {"num_key_value_heads", "2"}}});
}

}  // namespace faultline::lab
