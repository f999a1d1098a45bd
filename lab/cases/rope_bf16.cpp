#include <cmath>
#include <set>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/rope.h"

// Shapes: B batch, T positions, P pairs, N all positions of a batch.
namespace faultline::lab {
namespace {

using nn::RopeConfig;
using nn::RopeTables;

RopeTables tables_of(const std::vector<double>& angles, double magnitude, const Shape& shape) {
  std::vector<float> cosines, sines;
  for (const double angle : angles) {
    cosines.push_back(static_cast<float>(magnitude * std::cos(angle)));
    sines.push_back(static_cast<float>(magnitude * std::sin(angle)));
  }
  return {tensor(cosines, shape), tensor(sines, shape)};
}

// [1 or B, T, P]
Shape shape_for(const Tensor& positions, int64_t head_size) {
  return {positions.rank() == 2 ? positions.size(0) : 1, positions.size(-1), head_size / 2};
}

// page: begin
// The wrong code: the model was cast to bf16 as a whole, so the frequencies are bf16; positions
// take their dtype, and an angle is their product.
RopeTables in_bf16(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                   int64_t length) {
  const auto exact = nn::rope_frequencies(config, head_size, length);
  const Tensor frequencies_P =
      cast(tensor(std::vector<float>(exact.begin(), exact.end()), {head_size / 2}), DType::bf16);
  const Tensor positions_N1 = cast(reshape(positions, {-1, 1}), DType::bf16);
  return tables_of((positions_N1 * frequencies_P).to_vector<double>(), nn::rope_magnitude(config),
                   shape_for(positions, head_size));
}
// page: end

// The remedy: one table of all positions, made in f64 before anything is cast, in which a forward
// pass looks its positions up.
RopeTables looked_up(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                     int64_t length) {
  const auto frequencies = nn::rope_frequencies(config, head_size, length);
  std::vector<double> angles;
  for (int64_t p = 0; p < length; ++p) {
    for (const double frequency : frequencies) {
      angles.push_back(static_cast<double>(p) * frequency);
    }
  }
  const RopeTables all =
      tables_of(angles, nn::rope_magnitude(config), Shape{length, head_size / 2});
  const auto of_positions = [&](const Tensor& table) {
    return reshape(index_select(table, 0, reshape(positions, {-1})),
                   shape_for(positions, head_size));
  };
  return {of_positions(all.cosines), of_positions(all.sines)};
}

Plant tables_by(RopeTables (*by)(const RopeConfig&, int64_t, const Tensor&, int64_t)) {
  return [by](Context& context) { return context.seams.replace<nn::RopeTablesSeam>(by); };
}

// The positions below 4096, of a head of two elements that turns by one radian a position; and the
// score of a query 257 positions behind a key, both (1, 0), which is cos 257.
void four_thousand_positions(const RunOptions&, Metrics& metrics) {
  constexpr int64_t kPositions = 4096;
  const Tensor positions = arange(kPositions, 0, 1, DType::i32);
  const RopeTables tables = nn::rope_tables({}, 2, positions, kPositions);
  const auto cosines = tables.cosines.to_vector<float>();
  const auto sines = tables.sines.to_vector<float>();
  std::set<std::pair<float, float>> distinct;
  for (size_t p = 0; p < cosines.size(); ++p) distinct.emplace(cosines[p], sines[p]);
  metrics.count("distinct positions", static_cast<double>(distinct.size()));
  metrics.measure("score 257 apart", cosines[257]);
  Curve curve{"score by distance", {}, {}};
  for (size_t p = 250; p < 350; ++p) {
    curve.x.push_back(static_cast<double>(p));
    curve.y.push_back(cosines[p]);
  }
  metrics.add(curve);
}

}  // namespace

FAULT(rope_bf16) {
  Fault& fault = lab.fault(
      {.id = "rope.bf16",
       .title = "Rotary positions and angles in bf16",
       .domain = "attention",
       .mechanism =
           "bf16 has 8 bits of significand: integers are exact up to 256, then every second one, "
           "from 512 on every fourth, and so on. Of the positions below 4096 only 256 + 4 x 128 + "
           "1 = 769 remain distinct. A position is multiplied by a frequency and the product is "
           "rounded again, by up to 2^-9 of itself: at an angle of 1000 radians that is 2, and "
           "the cosine is arbitrary. Position 257 becomes 256, so a query 257 behind its key "
           "scores cos 256 = -0.039791 in place of cos 257 = 0.819306. Frequencies that were cast "
           "with the model are off by up to 2^-9 too, from the first position on.",
       .symptom =
           "Short texts train well, for small angles are nearly right. Loss and perplexity get "
           "worse with the length; after a change of the code or the dtype the same weights say "
           "something else at long distances.",
       .truth = "Rounding the turned queries and keys to bf16 is harmless, it costs 2^-9 of each. "
                "Rounding what goes into a cosine is not: the error of an angle grows with the "
                "position, and a cosine knows nothing of how large its argument was.",
       .fix = "Keep positions as integers; compute frequencies and angles in f32 at least, outside "
              "of autocast and of a cast of the whole model; round after the turn.",
       .sources =
           {"transformers pull request 29285 (February 2024): autocast takes the angles of Llama "
            "and Gemma to bfloat16. https://github.com/huggingface/transformers/pull/29285",
            "transformers issue 29496 (March 2024): inv_freq in bf16 makes wrong tables beyond the "
            "stored length. https://github.com/huggingface/transformers/issues/29496",
            "gpt-neox pull request 1016 (August 2023): in bf16 256 and 257 are one position. "
            "https://github.com/EleutherAI/gpt-neox/pull/1016"},
       .look_alikes =
           "rope.layout is wrong from position 1 on, by as much at short distances as at long "
           "ones. A wrong theta or scaling also gets worse with distance, but all positions stay "
           "distinct. Extrapolation beyond the trained length is bad with exact tables as well.",
       .exercise = "How many distinct positions below 4096 does f16 leave, which has 11 bits?",
       .answer =
           "3073: all 2048 below 2048, every second one from there to 4096, which are 1024, and "
           "4095, which rounds up to 4096."});
  fault.only_variant()
      .wrong(tables_by(&in_bf16))
      .remedy(tables_by(&looked_up))
      .run(&four_thousand_positions)
      .expect("distinct positions", 769)
      .expect_within("score 257 apart", std::cos(256.0), 0x1p-24, "a rounding to f32")
      .caught_by("rope.angles")
      .in_training({.steps = 200, .needs = {{"family", "llama"}}});
}

}  // namespace faultline::lab
