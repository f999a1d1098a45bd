#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "autograd/functional.h"
#include "data/text_decoder.h"
#include "nn/attention.h"
#include "nn/checkpoint.h"
#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/prefix_cache.h"
#include "tests/diagnose/watched.h"
#include "train/generation.h"
#include "train/prompt_loss.h"

// The detectors of cached generation and of its input: each fires on a crafted violation and is
// silent on its near miss. All detectors watch.
namespace faultline::diagnose {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr nn::Gpt2Config kGpt2{.vocab_size = 64,
                               .seq_len = 24,
                               .num_layers = 2,
                               .num_heads = 2,
                               .hidden_size = 32,
                               .init_std = 0.2};
constexpr nn::LlamaConfig kLlama{.vocab_size = 64,
                                 .seq_len = 24,
                                 .num_layers = 2,
                                 .num_heads = 4,
                                 .num_key_value_heads = 2,
                                 .hidden_size = 32,
                                 .intermediate_size = 48,
                                 .init_std = 0.2};

const std::vector<train::Request> kRows{
    {.prompt = {1, 2, 3, 4, 5}, .tokens = 8, .sampling = {.temperature = 0}},
    {.prompt = {9, 8, 7}, .tokens = 8, .sampling = {.temperature = 0}}};

template <class Model, class Config>
std::vector<std::string> said_of(const Config& config, const train::GenerationOptions& options,
                                 size_t rows = 2) {
  return names_of(watched([&](Context& context) {
    context.step = -1;
    Model model(config, 5);
    train::generate(model, std::span(kRows).first(rows), options);
  }));
}

// ---- silent on what is right
// -----------------------------------------------------------------------------------

TEST(GenerationDetectors, AreSilentOnEveryRightWayToGenerate) {
  using Kind = train::KvStorage::Kind;
  for (const Kind kind : {Kind::none, Kind::contiguous, Kind::paged}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const train::GenerationOptions how{.storage = {.kind = kind, .dtype = dtype}};
      EXPECT_THAT((said_of<nn::Gpt2>(kGpt2, how)), IsEmpty()) << name(dtype);
      EXPECT_THAT((said_of<nn::Llama>(kLlama, how)), IsEmpty()) << name(dtype);
    }
  }
}

TEST(GenerationDetectors, AreSilentWhereTheWindowSlides) {
  for (const auto policy : {nn::ContextPolicy::keep_tail, nn::ContextPolicy::sink_tail}) {
    const train::GenerationOptions how{.policy = policy, .sinks = 1, .positions = 6};
    EXPECT_THAT((said_of<nn::Gpt2>(kGpt2, how)), IsEmpty());
  }
}

TEST(GenerationDetectors, AreSilentOnALossOfAPrompt) {
  EXPECT_THAT(names_of(watched([](Context&) {
                nn::Gpt2 model(kGpt2, 5);
                train::prompt_loss(model, kRows[0].prompt);
              })),
              IsEmpty());
}

// ---- cache.equivalence
// -----------------------------------------------------------------------------------

// Half of each stored value is lost; nothing is announced, so only the logits tell.
TEST(CacheEquivalence, FiresOnACacheThatNobodyKnowsToBeWrong) {
  const auto said = names_of(watched([](Context& context) {
    context.step = -1;
    const auto lossy = context.seams.replace<nn::KvReadSeam>(
        [](const Tensor& slots, int64_t filled) { return slice(slots, 2, 0, filled) * 0.5; });
    nn::Gpt2 model(kGpt2, 5);
    train::generate(model, kRows);
  }));
  EXPECT_THAT(said, ElementsAre("cache.equivalence -> "));
}

// ---- cache.past
// -----------------------------------------------------------------------------------

TEST(CachePast, FiresOnPositionsThatForgetThePaddingOnly) {
  const auto slots = [](const nn::LeftPadding& padding, int64_t first, int64_t count) {
    const auto B = static_cast<int64_t>(padding.pads().size());
    const Tensor row = arange(count, static_cast<double>(first), 1, DType::i32);
    return clone(expand(reshape(row, {1, count}), {B, count}));
  };
  const auto said = [&](size_t rows) {
    return names_of(watched([&](Context& context) {
      context.step = -1;
      const auto wrong = context.seams.replace<train::GenerationPositionsSeam>(slots);
      nn::Gpt2 model(kGpt2, 5);
      train::generate(model, std::span(kRows).first(rows));
    }));
  };
  EXPECT_THAT(said(2), Contains("cache.past -> attn.past-ignored"));
  EXPECT_THAT(said(1), IsEmpty()) << "without padding slots are positions";
}

TEST(CachePast, IsSilentOnCrossAttentionFromTheTopLeft) {
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor k = normal({1, 1, 5, 4}, 0, 1, 1, 1);
                nn::attention(slice(k, 2, 0, 2), k, k, {.top_left = true});
              })),
              IsEmpty());
}

// ---- attention.alignment
// -----------------------------------------------------------------------------------

std::vector<std::string> laid_by(int64_t offset, int64_t told) {
  return names_of(watched([&](Context& context) {
    const auto laid = context.seams.replace<nn::AttentionWeightsSeam>(
        [&](const Tensor& scores, const nn::Mask& mask, double scale) {
          nn::Mask other = mask;
          other.query_offset = offset;
          return nn::AttentionWeightsSeam::standard(scores, other, scale);
        });
    const Tensor k = normal({2, 2, 7, 4}, 0, 1, 1, 1);
    nn::attention(slice(k, 2, 0, 3), k, k, {.query_offset = told, .top_left = true});
  }));
}

TEST(AttentionAlignment, FiresOnTheOtherCornerAndOnNoOtherPlace) {
  const std::string named = "attention.alignment -> attn.causal-align";
  EXPECT_THAT(laid_by(0, 4), Contains(named));
  EXPECT_THAT(laid_by(4, 4), IsEmpty());
  EXPECT_THAT(laid_by(0, 0), IsEmpty());
  EXPECT_THAT(laid_by(2, 4), testing::Not(Contains(named)));
}

// ---- cache.content
// -----------------------------------------------------------------------------------

std::vector<std::string> reused(bool same_owner, int32_t first_token) {
  return names_of(watched([&](Context& context) {
    const NoGrad off;
    const auto any = context.seams.replace<nn::PrefixMatchSeam>(
        [](const nn::PrefixBlock&, const nn::PrefixBlock&) { return true; });
    const auto flat = context.seams.replace<nn::BlockHashSeam>(
        [](uint64_t, std::span<const int32_t>, const nn::PrefixOwner&) { return uint64_t{1}; });
    const nn::PageShape page{.num_layers = 1, .num_heads = 1, .head_size = 2, .slots = 2};
    const auto pool = std::make_shared<nn::PagePool>(page, 4, 4);
    nn::PrefixCache prefixes(pool, 4);
    const nn::PagePool::Page taken = pool->take();
    const std::vector<int32_t> kept{1, 2};
    prefixes.keep(kept, {"base"}, {&taken, 1});
    pool->release(taken);
    const std::vector<int32_t> asked{first_token, 2};
    prefixes.find(asked, {same_owner ? "base" : "adapter"});
  }));
}

TEST(CacheContent, FiresOnAHitForOtherTokensOrAnotherOwner) {
  const auto named = ElementsAre("cache.content -> kv.prefix-collision");
  EXPECT_THAT(reused(true, 3), named);
  EXPECT_THAT(reused(false, 1), named);
  EXPECT_THAT(reused(true, 1), IsEmpty());
}

// Takes keys and values while gradients are on, as ours does not.
class GrowingCache : public nn::KvCache {
 public:
  int64_t length() const override { return layers_[0].k_BGKD.defined() ? slots() : 0; }
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) override {
    All& all = layers_.at(static_cast<size_t>(layer));
    const auto join = [](Tensor& kept, const Tensor& more) {
      const Tensor both[] = {kept, more.detach()};
      kept = kept.defined() ? cat(both, 2) : contiguous(more.detach());
    };
    join(all.k_BGKD, k_BGTD);
    join(all.v_BGKD, v_BGTD);
    return all;
  }

 private:
  int64_t slots() const { return layers_[0].k_BGKD.size(2); }
  std::array<All, 2> layers_;
};

// The pass that runs again has 20 positions behind 20 of 24, and never comes to attention.
TEST(CacheContent, FiresBeforeAPassIsLongerThanTheModel) {
  const auto said = names_of(watched([](Context& context) {
    nn::Gpt2 model(kGpt2, 5);
    GrowingCache cache;
    const auto planted =
        context.seams.replace<train::GradientCacheSeam>([&]() -> nn::KvCache* { return &cache; });
    EXPECT_THROW(train::prompt_loss(model, std::vector<int32_t>(21, 1)), InvalidArgument);
  }));
  EXPECT_THAT(said, Contains("cache.content -> kv.dtype-reinterpret"));
}

TEST(CacheContent, IsSilentOnASegmentThatRunsAgainWithoutACache) {
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor k = normal({1, 1, 5, 4}, 0, 1, 1, 1);
                set_requires_grad(k);
                backward(nn::checkpoint([&] { return sum(nn::attention(k, k, k, {})); }));
              })),
              IsEmpty());
}

// ---- input.checks
// -----------------------------------------------------------------------------------

TEST(InputChecks, FiresOnAFitThatHidesWhatItDropped) {
  const auto said = [](nn::ContextFit fit) {
    return names_of(watched([&](Context& context) {
      const nn::ContextWindow window{.positions = 8};
      context.events.emit(nn::ContextFitEvent{12, 1, window, fit});
    }));
  };
  const auto named = ElementsAre("input.checks -> input.context-overflow");
  const nn::ContextFit right{.requested = 12, .used = 8, .kept = {{4, 12}}, .dropped = {{0, 4}}};
  EXPECT_THAT(said(right), IsEmpty());
  nn::ContextFit wrong = right;
  wrong.dropped.clear();
  EXPECT_THAT(said(wrong), named);
  wrong = right;
  wrong.used = 12;
  EXPECT_THAT(said(wrong), named);
  EXPECT_THAT(said({.requested = 12, .used = 12, .kept = {{0, 12}}, .dropped = {}}), named)
      << "more than the window holds";
}

TEST(InputChecks, FiresOnADecoderThatIsRightForLettersOnly) {
  const auto said = [](std::function<TextDecodingSeam::Signature> decode) {
    return names_of(watched([&](Context& context) {
      const auto by = context.seams.replace<TextDecodingSeam>(decode);
      const TextDecoder decoder;
    }));
  };
  EXPECT_THAT(said(&TextDecodingSeam::standard), IsEmpty());
  EXPECT_THAT(said([](Utf8Stream&, std::string_view bytes) { return std::string(bytes); }),
              ElementsAre("input.checks -> input.bad-utf8"));
}

}  // namespace
}  // namespace faultline::diagnose
