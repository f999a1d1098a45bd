#include "nn/repetition.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "autograd/functional.h"
#include "nn/gpt2.h"

namespace faultline::nn {
namespace {

constexpr Gpt2Config kSmall{
    .vocab_size = 32, .seq_len = 24, .num_layers = 3, .num_heads = 2, .hidden_size = 16};

// Stores what it is given, and shows it through `damage`.
class PlainCache : public KvCache {
 public:
  using Damage = std::function<Tensor(int64_t layer, const Tensor& all_BGKD)>;
  explicit PlainCache(Damage damage = nullptr) : damage_(std::move(damage)) {}

  int64_t length() const override { return layers_[0].k_BGKD.defined() ? slots(0) : 0; }
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) override {
    All& own = layers_[static_cast<size_t>(layer)];
    const auto join = [](Tensor& all, const Tensor& added) {
      const Tensor both[] = {all, added};
      all = all.defined() ? cat(both, 2) : contiguous(added);
    };
    join(own.k_BGKD, k_BGTD);
    join(own.v_BGKD, v_BGTD);
    if (damage_ == nullptr) return own;
    return {damage_(layer, own.k_BGKD), own.v_BGKD};
  }

 private:
  int64_t slots(size_t layer) const { return layers_[layer].k_BGKD.size(2); }
  Damage damage_;
  std::array<All, 3> layers_;
};

std::vector<int32_t> repeating_text() {
  std::vector<int32_t> text = {9, 8, 7};
  for (int i = 0; i < 5; ++i) text.insert(text.end(), {1, 2, 3, 4});
  return text;
}

TEST(Repetition, CountsEqualNgramsAndTheLongestRepeatedEnd) {
  const auto text = repeating_text();
  const Repetition found = repetition_of(text, 4);
  // 20 n-grams: three with the beginning, and four of the cycle, each of those 4 or 5 times.
  EXPECT_EQ(found.share, 1 - 7.0 / 20);
  EXPECT_EQ(found.repeated_tail, 8);  // 16 tokens of the cycle are 8 twice
  const std::vector<int32_t> plain = {1, 2, 3, 4, 5};
  EXPECT_EQ(repetition_of(plain, 4).share, 0);
  EXPECT_EQ(repetition_of(plain, 4).repeated_tail, 0);
  EXPECT_EQ(repetition_of({}, 4).share, 0);
  EXPECT_THROW(repetition_of(plain, 0), InvalidArgument);
}

TEST(RepetitionLocator, ARightCacheLeavesTheData) {
  Gpt2 model(kSmall, 3);
  for (const int64_t prompt : {1, 3, 10}) {
    PlainCache cache;
    const RepetitionReport report = locate_repetition(model, repeating_text(), prompt, cache);
    EXPECT_EQ(report.origin, RepetitionOrigin::data) << prompt;
    EXPECT_EQ(report.difference.position, -1);
    EXPECT_GT(report.repetition.share, 0.5);
    EXPECT_EQ(place_of(report.difference, model.model_shape()), "nowhere");
  }
}

TEST(RepetitionLocator, NamesTheLayerAndThePositionOfACacheThatForgets) {
  Gpt2 model(kSmall, 3);
  // Layer 1 sees a key of zeros in slot 5 from the 12th position on.
  PlainCache cache([](int64_t layer, const Tensor& all_BGKD) {
    if (layer != 1 || all_BGKD.size(2) < 12) return all_BGKD;
    Tensor copy = clone(all_BGKD);
    fill_(slice(copy, 2, 5, 6), 10);
    return copy;
  });
  const RepetitionReport report = locate_repetition(model, repeating_text(), 4, cache);
  EXPECT_EQ(report.origin, RepetitionOrigin::cache);
  EXPECT_EQ(report.difference.position, 11);
  EXPECT_EQ(report.difference.layer, 1);
  EXPECT_GT(report.difference.largest_logit, 0);
  EXPECT_EQ(place_of(report.difference, model.model_shape()), "layer 1 at position 11");
}

TEST(RepetitionLocator, SeesANanInTheCache) {
  Gpt2 model(kSmall, 3);
  PlainCache cache([](int64_t layer, const Tensor& all_BGKD) {
    return layer == 2 && all_BGKD.size(2) == 6 ? full(all_BGKD.shape(), std::nan("")) : all_BGKD;
  });
  const RepetitionReport report = locate_repetition(model, repeating_text(), 1, cache);
  EXPECT_EQ(report.difference.position, 5);
  EXPECT_EQ(report.difference.layer, 2);
}

TEST(RepetitionLocator, ComparesTheRestBesideAnInfinity) {
  Gpt2 model(kSmall, 3);
  // A weight of infinity makes one logit of each position infinite, with a cache and without.
  {
    const NoGrad off;
    Parameter& embedding = *model.parameters()[0];
    fill_(slice(slice(embedding.value(), 0, 31, 32), 1, 0, 1), INFINITY);
  }
  PlainCache right;
  const RepetitionReport same = locate_repetition(model, repeating_text(), 4, right);
  EXPECT_EQ(same.origin, RepetitionOrigin::data) << place_of(same.difference, model.model_shape());
  EXPECT_TRUE(std::isfinite(same.difference.largest_logit)) << same.difference.largest_logit;
  // The bias of the last norm changes under way: from position 5 on other logits, the same blocks.
  PlainCache cache([&](int64_t layer, const Tensor& all_BGKD) {
    const NoGrad off;
    if (layer == 2 && all_BGKD.size(2) == 6) fill_(model.parameters().back()->value(), 1);
    return all_BGKD;
  });
  const RepetitionReport report = locate_repetition(model, repeating_text(), 4, cache);
  EXPECT_EQ(report.origin, RepetitionOrigin::cache);
  EXPECT_EQ(report.difference.position, 5);
  EXPECT_EQ(report.difference.layer, 3);  // the logits
}

// A cache whose length is off by one puts each new token at a wrong position.
class ShiftedCache : public PlainCache {
 public:
  int64_t length() const override { return std::max<int64_t>(0, PlainCache::length() - 1); }
};

TEST(RepetitionLocator, SeesAWrongPositionAtTheFirstLayer) {
  Gpt2 model(kSmall, 3);
  ShiftedCache cache;
  const RepetitionReport report = locate_repetition(model, repeating_text(), 4, cache);
  EXPECT_EQ(report.origin, RepetitionOrigin::cache);
  EXPECT_EQ(report.difference.position, 4);
  EXPECT_EQ(report.difference.layer, 0);
}

TEST(RepetitionLocator, RefusesWhatItCannotCompare) {
  Gpt2 model(kSmall, 3);
  PlainCache cache;
  EXPECT_THROW(locate_repetition(model, {}, 1, cache), InvalidArgument);
  EXPECT_THROW(locate_repetition(model, repeating_text(), 0, cache), InvalidArgument);
  EXPECT_THROW(locate_repetition(model, repeating_text(), 24, cache), InvalidArgument);
  locate_repetition(model, repeating_text(), 1, cache);
  EXPECT_THROW(locate_repetition(model, repeating_text(), 1, cache), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
