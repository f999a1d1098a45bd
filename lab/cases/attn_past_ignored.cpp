#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"
#include "nn/rope.h"
#include "train/generation.h"

// Shapes: B batch, G heads, T new slots, C capacity, K keys, D head size.
namespace faultline::lab {
namespace {

// page: begin
// The wrong code. The mask of new tokens, as if nothing came before them:
nn::Mask local_mask(const nn::LeftPadding& padding, int64_t first, int64_t count) {
  return {.key_valid = padding.key_valid(first + count), .top_left = true};
}

// the whole of a static cache, whose free slots are zeros, and no mask for a single query:
Tensor all_slots(const Tensor& slots_BGCD, int64_t filled) {
  fill_(slice(slots_BGCD, 2, filled, slots_BGCD.size(2)), 0);
  return slots_BGCD;
}

// arange(new tokens) as the slots to write:
nn::SlotRange slots_from_zero(int64_t, int64_t count) { return {0, count}; }
// page: end

nn::Mask no_mask_for_one(const nn::LeftPadding&, int64_t first, int64_t count) {
  return {.causal = count > 1, .query_offset = first, .top_left = true};
}

// cache_position, one list for all rows, as the positions of a padded batch. The prompt's own were
// counted from the mask.
Tensor positions_of_slots(const nn::LeftPadding& padding, int64_t first, int64_t count) {
  if (first == 0) return padding.positions(first, count);
  const auto B = static_cast<int64_t>(padding.pads().size());
  const Tensor slots = arange(count, static_cast<double>(first), 1, DType::i32);
  return clone(expand(reshape(slots, {1, count}), {B, count}));
}

// ---- remedies -----------------------------------------------------------------------------------

// The diagonal at the bottom right.
nn::Mask lower_right(const nn::LeftPadding& padding, int64_t first, int64_t count) {
  nn::Mask mask = nn::causal_mask(count, first + count, nn::CausalAlign::bottom_right);
  mask.key_valid = padding.key_valid(first + count);
  return mask;
}

// A mask also for one query: it ends at the query's own slot, and the free ones lie behind.
nn::Mask mask_for_all(const nn::LeftPadding&, int64_t first, int64_t) {
  return {.query_offset = first, .top_left = true};
}

// past + arange(new tokens).
nn::SlotRange slots_from_past(int64_t past, int64_t count) { return {past, past + count}; }

// cumsum(mask) - 1, and no less than 0.
Tensor count_the_text(const nn::LeftPadding& padding, int64_t first, int64_t count) {
  const Tensor valid = padding.key_valid(first + count);
  if (!valid.defined()) return {};
  const std::vector<int32_t> text = cast(valid, DType::i32).to_vector<int32_t>();
  const int64_t B = valid.size(0);
  std::vector<int32_t> positions;
  for (int64_t b = 0; b < B; ++b) {
    int32_t seen = -1;
    for (int64_t slot = 0; slot < first + count; ++slot) {
      seen += text[static_cast<size_t>(b * (first + count) + slot)];
      if (slot >= first) positions.push_back(std::max(seen, 0));
    }
  }
  return tensor(positions, {B, count});
}

template <class Seam, class Behaviour>
std::shared_ptr<void> replaced_by(Context& context, Behaviour behaviour) {
  return context.seams.replace<Seam>(behaviour);
}

std::shared_ptr<void> plant_zero_slots(Context& context) {
  using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Both>(replaced_by<nn::KvReadSeam>(context, &all_slots),
                                replaced_by<train::GenerationMaskSeam>(context, &no_mask_for_one));
}

// ---- runs ---------------------------------------------------------------------------------------

constexpr int64_t kRowSlots = 8;

// One row that is decoded through a cache in passes. All scores are 0 and value j is 2^j, so that
// an output is the mean of the values that its query sees.
class PowersDecoded {
 public:
  explicit PowersDecoded(const RunOptions& options)
      : options_(options),
        cache_(
            {.num_layers = 1, .batch = 1, .num_heads = 1, .head_size = 1, .capacity = kRowSlots}) {}

  // The outputs of `count` new tokens.
  std::vector<double> pass(int64_t count) {
    const Context& context = Context::current();
    const NoGrad off;
    const int64_t first = cache_.length();
    const nn::LeftPadding padding({seen_ + count});
    const nn::Mask mask = context.seams.call<train::GenerationMaskSeam>(padding, first, count);
    std::vector<float> powers;
    for (int64_t i = 0; i < count; ++i)
      powers.push_back(std::ldexp(1.0F, static_cast<int>(seen_++)));
    const Shape one{1, 1, count, 1};
    const auto all = cache_.append(0, zeros(one), tensor(powers, one));
    const Tensor q = normal(one, 0, 1, options_.seed, stream_of("queries"));
    return nn::attention(q, all.k_BGKD, all.v_BGKD, mask, {.scale = 1.0}).to_vector<double>();
  }

 private:
  RunOptions options_;
  nn::ContiguousKvCache cache_;
  int64_t seen_ = 0;  // tokens
};

void three_then_two(const RunOptions& options, Metrics& metrics) {
  PowersDecoded row(options);
  row.pass(3);
  const std::vector<double> out = row.pass(2);
  metrics.measure("q3", out[0]);
  metrics.measure("q4", out[1]);
  metrics.add(Curve{"mean of the values seen", {3, 4}, out});
}

void four_then_one(const RunOptions& options, Metrics& metrics) {
  PowersDecoded row(options);
  row.pass(4);
  metrics.measure("q4", row.pass(1)[0]);
}

void three_then_one(const RunOptions& options, Metrics& metrics) {
  PowersDecoded row(options);
  row.pass(3);
  metrics.measure("q3", row.pass(1)[0]);
}

// A vector of one pair turned by its position.
Tensor turned(const Tensor& positions_BT) {
  const nn::RopeTables tables = Context::current().seams.call<nn::RopeTablesSeam>(
      nn::RopeConfig{}, 2, positions_BT, kRowSlots);
  const int64_t B = positions_BT.size(0), T = positions_BT.size(1);
  const Tensor ones_B1TD = clone(expand(tensor<float>({1, 0}, {1, 1, 1, 2}), {B, 1, T, 2}));
  return rope(ones_B1TD, tables.cosines, tables.sines, RopeLayout::half_split);
}

// Two rows of 2 and 4 tokens, padded to 4 slots; then one token more. The score of that token of
// the short row with the row's first one, both (1, 0) before their rotation.
void decode_padded_row(const RunOptions& options, Metrics& metrics) {
  const Context& context = Context::current();
  const auto positions = [&](const nn::LeftPadding& padding, int64_t first, int64_t count) {
    return context.seams.call<train::GenerationPositionsSeam>(padding, first, count);
  };
  const nn::LeftPadding padding({2, 4});
  const auto word = static_cast<int32_t>(options.seed % 100);
  const train::TokenRows texts{{word, 2, 3}, {1, 2, 3, 4, 5}};
  const Tensor keys = turned(positions(padding, 0, 4));
  nn::ModelInput input{.tokens_BT = tensor<int32_t>({3, 5}, {2, 1}),
                       .mask = {.query_offset = 4, .key_valid = padding.key_valid(5)}};
  input.positions_BT = positions(padding, 4, 1);
  context.events.emit(train::GenerationInputEvent{texts, 4, input});
  const auto query = turned(input.positions_BT).to_vector<double>();
  const auto key = slice(slice(keys, 0, 0, 1), 2, 2, 3).to_vector<double>();
  metrics.measure("score", query[0] * key[0] + query[1] * key[1]);
}

}  // namespace

FAULT(attn_past_ignored) {
  Fault& fault = lab.fault(
      {.id = "attn.past-ignored",
       .title = "A pass with a cache forgets what came before it",
       .domain = "attention",
       .seed = "000 2.2",
       .mechanism =
           "With a cache a pass computes only new tokens; the past enters by number: as the queries' "
           "offset, the slot to write, the position. With equal scores and values 1, 2, 4, 8, 16 a "
           "query that sees n keys gives 1, 1.5, 2.333333, 3.75, 6.2. Three tokens are cached and two "
           "come: a mask built for the new ones alone gives 1 and 1.5 for 3.75 and 6.2. A static cache "
           "read whole adds three empty slots whose score is 0, and exp(0) = 1: 31 / 8 = 3.875 for 31 "
           "/ 5. A new key written to slot 0 replaces the first: (8 + 2 + 4) / 3 = 4.666667 for 3.75. "
           "A row with two slots of padding, whose third token takes its slot 4 as its position, "
           "turns by 4 in place of 2: cos 4 = -0.653644 for cos 2 = -0.416147.",
       .symptom =
           "The first token after the prompt is right, and the text falls apart from the second on; "
           "or only the shorter rows of a batch do. Training and evaluation, which use no cache, "
           "look healthy.",
       .article_says =
           "That transformers 4.39 ignored the past length and set keys and values to zero with "
           "torch.where(mask, kv, 0).",
       .truth =
           "No such release is known: code of that time compares keys with cache_position. But the "
           "family is real and large: each library that keeps a cache has had one of these four.",
       .fix =
           "Count the tokens of each row that the cache holds, and derive the mask's offset, the "
           "slots to write and the positions from that one number.",
       .sources =
           {"Meta Llama pull request 900 (November 2023) puts start_pos zeros before the mask of a "
            "chunk. https://github.com/meta-llama/llama/pull/900",
            "transformers pull request 30437 (2024): a static cache whose unused slots no mask hid. "
            "https://github.com/huggingface/transformers/pull/30437",
            "Unsloth issue 3699 (9 December 2025): left-padded batches decode with cache_position "
            "as position_ids. https://github.com/unslothai/unsloth/issues/3699",
            "vLLM pull request 43869 (2026): padding tokens of a captured graph written through "
            "slot -1. https://github.com/vllm-project/vllm/pull/43869"},
       .look_alikes =
           "attn.causal-align has the same outputs, 1 and 1.5, from a right record: there the "
           "kernel laid the diagonal elsewhere than it was told. Rounding of a cache in 16 bits "
           "also moves logits, by 1e-2 at most, and not by whole values.",
       .exercise =
           "A row of padding shifts all positions of a row by the same number, in the prompt "
           "and in decoding. Does a model with rotary positions notice? One with learned "
           "positions?",
       .answer =
           "Rotary scores depend on differences only, so a constant shift cancels: the bug needs "
           "prompt and decoding to disagree. Learned absolute positions are looked up, so any shift "
           "is another input."});

  fault.variant("local-causal", "The mask of new tokens starts at key 0")
      .wrong([](Context& context) {
        return replaced_by<train::GenerationMaskSeam>(context, &local_mask);
      })
      .remedy([](Context& context) {
        return replaced_by<train::GenerationMaskSeam>(context, &lower_right);
      })
      .run(&three_then_two)
      .expect("q3", 1)
      .expect("q4", 1.5)
      .caught_by("cache.past")
      .in_generation({});

  fault.variant("zero-slots", "Free slots of a static cache are attended to")
      .wrong(&plant_zero_slots)
      .remedy([](Context& context) {
        return replaced_by<train::GenerationMaskSeam>(context, &mask_for_all);
      })
      .run(&four_then_one)
      .expect("q4", 3.875)
      .fixed_within(1e-6,
                    "eight slots, three of them hidden, are summed in another order than five")
      .caught_by("cache.past")
      .in_generation({});

  fault.variant("write-index", "New keys are written over the first ones")
      .wrong(
          [](Context& context) { return replaced_by<nn::KvSlotsSeam>(context, &slots_from_zero); })
      .remedy(
          [](Context& context) { return replaced_by<nn::KvSlotsSeam>(context, &slots_from_past); })
      .run(&three_then_one)
      .expect_within("q3", 14.0 / 3, 1e-6, "thirds are no f32 numbers")
      .caught_by("cache.past")
      .in_generation({});

  fault.variant("left-pad", "A padded row decodes at its slot, not at its position")
      .wrong([](Context& context) {
        return replaced_by<train::GenerationPositionsSeam>(context, &positions_of_slots);
      })
      .remedy([](Context& context) {
        return replaced_by<train::GenerationPositionsSeam>(context, &count_the_text);
      })
      .run(&decode_padded_row)
      .expect_within("score", std::cos(4.0), 1e-6, "cosines are stored in f32")
      .caught_by("cache.past")
      .in_generation({.needs = {{"beside", "And God saw that it was good"}}});
}

}  // namespace faultline::lab
