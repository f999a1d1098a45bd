#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/rope.h"

// Shapes: B batch, H heads, T positions, D head size.
namespace faultline::lab {
namespace {

using nn::RopeTables;

// page: begin
// The wrong code: someone else's rotary kernel, which pairs elements as its own weights want it.
// These weights want the other pairs.
Tensor turn_other_pairs(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout) {
  const bool halves = layout == RopeLayout::half_split;
  return rope(x_BHTD, tables.cosines, tables.sines,
              halves ? RopeLayout::interleaved : RopeLayout::half_split);
}
// page: end

// The remedy: the kernel stays, and what it gets is reordered, so that its pairs are those of the
// weights. Queries and keys stay in that order; their products do not notice.
Tensor reorder_and_turn(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout) {
  const Shape& x = x_BHTD.shape();
  const bool halves = layout == RopeLayout::half_split;
  const Shape pairs =
      halves ? Shape{x[0], x[1], x[2], 2, x[3] / 2} : Shape{x[0], x[1], x[2], x[3] / 2, 2};
  const Tensor reordered = reshape(transpose(reshape(x_BHTD, pairs), -2, -1), x);
  return turn_other_pairs(reordered, tables, layout);
}

Plant turn_by(Tensor (*by)(const Tensor&, const RopeTables&, RopeLayout)) {
  return [by](Context& context) { return context.seams.replace<nn::RotarySeam>(by); };
}

// A head of 4 elements, (1, 2, 3, 4) as query and key, of weights in Meta's order: the pairs are
// (1, 2), which turns by a radian a position, and (3, 4), by a hundredth. The seed says where key 0
// stands; scores must not depend on it.
void four_elements(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 8;
  const auto first = static_cast<double>(options.seed % 1000);
  const Tensor positions = arange(kTokens, first, 1, DType::i32);
  const nn::RopeConfig config{.layout = RopeLayout::interleaved};
  const RopeTables tables =
      nn::rope_tables(config, 4, positions, static_cast<int64_t>(first) + kTokens);
  const Tensor x =
      contiguous(expand(tensor<float>({1, 2, 3, 4}, {1, 1, 1, 4}), {1, 1, kTokens, 4}));
  const Tensor q = nn::rotary(x, tables, config.layout);
  const Tensor k = nn::rotary(x, tables, config.layout);
  const auto scores = matmul(q, transpose(k, -2, -1)).to_vector<double>();
  metrics.measure("score at distance 0", scores[0]);
  metrics.measure("score at distance 1", scores[kTokens]);
  Curve curve{"score by distance", {}, {}};
  for (int64_t d = 0; d < kTokens; ++d) {
    curve.x.push_back(static_cast<double>(d));
    curve.y.push_back(scores[static_cast<size_t>(d * kTokens)]);
  }
  metrics.add(curve);
}

}  // namespace

FAULT(rope_layout) {
  Fault& fault = lab.fault(
      {.id = "rope.layout",
       .title = "Weights with interleaved rotary pairs are read as half-split ones",
       .domain = "attention",
       .mechanism =
           "Rotary positions turn pairs of a head's elements. The paper and Meta's Llama pair "
           "neighbours, 2i and 2i + 1; GPT-NeoX and the files of Hugging Face pair halves, i and i "
           "+ D/2. Both are right for weights that were trained or permuted for them. With the "
           "other layout each frequency turns the wrong two numbers. For query and key (1, 2, 3, "
           "4), with frequencies 1 and 0.01, at distance 1: pairs (1, 2) and (3, 4) give 5 cos 1 + "
           "25 cos 0.01 = 27.700260, pairs (1, 3) and (2, 4) give 10 cos 1 + 20 cos 0.01 = "
           "25.402023. At distance 0 both give 30.",
       .symptom =
           "A converted model speaks, but much worse than the original: short texts look almost "
           "sane, and perplexity is several times too high. Shapes, names and norms all agree. "
           "Trained from the beginning either layout works, and the error waits for the export.",
       .truth =
           "A score depends on the distance alone in both layouts, so the usual test of rotary "
           "positions passes. Only the weights know which pairs they were made for, and no tensor "
           "in the file says it.",
       .fix = "Keep the layout with the weights, and permute the rows of q_proj and k_proj (not of "
              "v_proj) where a file goes from one to the other.",
       .sources =
           {"transformers issue 25199 (July 2023): Llama's rotary embedding differs from Meta's, "
            "and the conversion permutes the weights for it. "
            "https://github.com/huggingface/transformers/issues/25199",
            "flash-attention issue 288 (June 2023): interleaved for Meta's weights, not for those "
            "that were converted. https://github.com/Dao-AILab/flash-attention/issues/288",
            "transformers pull request 47403 (July 2026): an interleaved model was turned by "
            "halves. https://github.com/huggingface/transformers/pull/47403"},
       .look_alikes =
           "rope.bf16 is right at short distances and gets worse; here distance 1 is as wrong as "
           "any. Heads in a wrong order, or key heads that serve the wrong query heads, are wrong "
           "at distance 0 too, where this fault is not.",
       .exercise =
           "You have a model that may have this fault, and no reference. Why does shifting all "
           "positions by 100 tell you nothing, and what single token sequence has equal logits in "
           "both layouts?",
       .answer =
           "Turning is relative in both layouts: a shift turns query and key alike. A sequence of "
           "one token has equal logits, for its only distance is 0."});
  fault.only_variant()
      .wrong(turn_by(&turn_other_pairs))
      .remedy(turn_by(&reorder_and_turn))
      .run(&four_elements)
      .expect_within("score at distance 1", 10 * std::cos(1.0) + 20 * std::cos(0.01), 1e-5,
                     "elements below 5 and products below 25 are rounded to f32, a few 1e-6 each")
      .fixed_within(1e-6, "the products are summed in another order")
      .caught_by("rope.layout")
      .in_training({.steps = 200, .needs = {{"family", "llama"}}});
}

}  // namespace faultline::lab
