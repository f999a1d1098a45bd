#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "nn/lora.h"
#include "optim/optimizer.h"
#include "tests/diagnose/watched.h"

// What the detectors of adapters see, and where they are silent.
namespace faultline::diagnose {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

// A layer of random numbers with an adapter, in a dtype.
struct Layer {
  nn::DropoutKey key{1};
  nn::Linear linear;

  explicit Layer(double product_deviation, DType dtype = DType::f32, int64_t in = 48,
                 int64_t out = 48, const nn::LoraConfig& config = {.rank = 16, .alpha = 16})
      : linear(in, out, nn::Bias::no) {
    const NoGrad off;
    linear.weight().set_value(normal({out, in}, 0, 0.02, 1, 1, dtype));
    nn::add_lora(linear, "own", config, key, 1);
    const Shape a{config.rank, in};
    const Shape b{out, config.rank};
    copy_(factor(0).value(), normal(a, 0, 0.25, 1, 2));  // deviation 1 over 16 ranks
    copy_(factor(1).value(), normal(b, 0, product_deviation, 1, 3));
  }
  Parameter& factor(size_t i) { return *linear.adapters().front()->parameters()[i]; }
};

std::vector<std::string> merged(double product_deviation, DType dtype, int64_t out = 48) {
  return names_of(watched([&](Context&) {
    Layer layer(product_deviation, dtype, 48, out);
    nn::merge_adapters(layer.linear, nn::Originals::drop);
  }));
}

// ---- merge.product ------------------------------------------------------------------------------

TEST(MergeProduct, IsSilentOnAMergeInF32HoweverSmallTheProduct) {
  EXPECT_THAT(merged(0.01, DType::f32), IsEmpty());
  EXPECT_THAT(merged(1e-5, DType::f32, 20), IsEmpty());
  EXPECT_THAT(merged(1e-9, DType::f32), IsEmpty());
}

TEST(MergeProduct, FiresWhenBf16RoundsASmallProductAway) {
  EXPECT_THAT(merged(1e-5, DType::bf16), ElementsAre("merge.product -> lora.merge-bf16"));
  EXPECT_THAT(merged(1e-2, DType::bf16), IsEmpty());
}

// What `add` makes of a merge of a layer with so many outputs.
std::vector<std::string> merged_by(std::function<Tensor(const Tensor&, const Tensor&)> add,
                                   int64_t out = 48, double weight = 1) {
  return names_of(watched([&](Context& context) {
    const auto planted = context.seams.replace<nn::LoraMergeSeam>(std::move(add));
    Layer layer(0.01, DType::f32, 48, out);
    layer.linear.weight().set_value(layer.linear.weight().value() * weight);
    nn::merge_adapters(layer.linear, nn::Originals::drop);
  }));
}

TEST(MergeProduct, TellsTwiceFromTransposed) {
  const auto twice = [](const Tensor& w, const Tensor& p) { return w + p + p; };
  const auto turned = [](const Tensor& w, const Tensor& p) { return w + transpose(p, 0, 1); };
  EXPECT_THAT(merged_by(twice), ElementsAre("merge.product -> lora.merge-twice"));
  EXPECT_THAT(merged_by(twice, 20), ElementsAre("merge.product -> lora.merge-twice"));
  EXPECT_THAT(merged_by(turned), ElementsAre("merge.product -> lora.fan-in-out"));
}

TEST(MergeProduct, NamesNoCauseForAnotherMerge) {
  const auto half = [](const Tensor& w, const Tensor& p) { return w + p * 0.5; };
  EXPECT_THAT(merged_by(half), IsEmpty());  // the outputs tell, and nobody compared them
  const auto probed = names_of(watched([](Context& context) {
    const Tensor beside = ones({1, 2, 4});
    context.events.emit(train::MergeProbeEvent{1, beside, beside * 1.01});
  }));
  EXPECT_THAT(probed, ElementsAre("merge.product -> "));
}

TEST(MergeProduct, IsSilentOnRoundingOfTheOutputs) {
  const auto probed = names_of(watched([](Context& context) {
    const Tensor beside = ones({1, 2, 4});
    context.events.emit(train::MergeProbeEvent{1, beside, beside * 1.0001});
  }));
  EXPECT_THAT(probed, IsEmpty());
}

TEST(MergeProduct, SeesNanThatAMergeMakes) {
  const auto probed = [](double before, double after) {
    return names_of(watched([&](Context& context) {
      const Tensor beside = ones({1, 2, 4});
      const Tensor merged = ones({1, 2, 4});
      fill_(slice(beside, 2, 1, 2), before);
      fill_(slice(merged, 2, 1, 2), after);
      context.events.emit(train::MergeProbeEvent{1, beside, merged});
    }));
  };
  // finite.first speaks too, of a launch and not of the merge.
  const auto says = Contains("merge.product -> ");
  EXPECT_THAT(probed(1, std::nan("")), says);
  EXPECT_THAT(probed(1, INFINITY), says);
  EXPECT_THAT(probed(std::nan(""), std::nan("")), Not(says));  // it was there before
  // A weight of NaN only has no more bits than bf16, and is none for that.
  const auto ruined = [](const Tensor& w, const Tensor&) { return w * std::nan(""); };
  EXPECT_THAT(merged_by(ruined), says);
  EXPECT_THAT(merged_by(ruined), Not(Contains("merge.product -> lora.merge-bf16")));
}

// ---- adapter.scale ------------------------------------------------------------------------------

std::vector<std::string> run_with(const nn::LoraConfig& made, const std::string& asked) {
  return names_of(watched([&](Context& context) {
    train::Config config = tiny_config();
    config.lora = asked;
    const std::vector<Parameter*> none;
    context.events.emit(train::RunEvent{config, none});
    Layer layer(0.01, DType::f32, 8, 8, made);
    layer.linear(ones({1, 8}));
  }));
}

TEST(AdapterScale, FiresWhenTheRuleIsNotTheOneThatTheRunAsksFor) {
  const auto by_root = nn::LoraScaling::by_root_of_rank;
  EXPECT_THAT(run_with({.rank = 4, .alpha = 8}, "r=4,alpha=8,rslora=true"),
              ElementsAre("adapter.scale -> lora.scale"));
  EXPECT_THAT(run_with({.rank = 4, .alpha = 8, .scaling = by_root}, "r=4,alpha=8"),
              ElementsAre("adapter.scale -> lora.scale"));
}

TEST(AdapterScale, IsSilentOnBothRulesAndAtRankOne) {
  const auto by_root = nn::LoraScaling::by_root_of_rank;
  EXPECT_THAT(run_with({.rank = 3, .alpha = 7}, "r=3,alpha=7"), IsEmpty());
  EXPECT_THAT(run_with({.rank = 3, .alpha = 7, .scaling = by_root}, "r=3,alpha=7,rslora=true"),
              IsEmpty());
  EXPECT_THAT(run_with({.rank = 1, .alpha = 7}, "r=1,alpha=7,rslora=true"), IsEmpty());
}

// ---- adapter.zero -------------------------------------------------------------------------------

// One step of an adapter whose factors are these times random numbers.
std::vector<std::string> stepped(double a, double b) {
  return names_of(watched([&](Context&) {
    Layer layer(0.01, DType::f32, 8, 8);
    {
      const NoGrad off;
      copy_(layer.factor(0).value(), layer.factor(0).value() * a);
      copy_(layer.factor(1).value(), layer.factor(1).value() * b);
    }
    optim::AdamW optimizer({{nn::trainable_parameters(layer.linear), 0}});
    backward(sum(layer.linear(ones({1, 8}))));
    optimizer.step(1e-3);
  }));
}

TEST(AdapterZero, FiresInTheFirstStepWhenBothFactorsAreZero) {
  EXPECT_THAT(stepped(0, 0), ElementsAre("adapter.zero -> lora.both-zero"));
}

TEST(AdapterZero, IsSilentWhenOneFactorIsZero) {
  EXPECT_THAT(stepped(1, 0), IsEmpty());
  EXPECT_THAT(stepped(0, 1), IsEmpty());
}

// ---- parameter.alignment ------------------------------------------------------------------------

// A parameter that begins so many elements into its block, read by an op if `op` is there.
std::vector<std::string> read_at(int64_t offset, const char* name,
                                 const std::function<void(const Tensor&)>& op) {
  return names_of(watched([&](Context& context) {
    const NoGrad off;
    const Tensor block = zeros({64});
    Parameter parameter(name, block.alias({4, 3}, {3, 1}, offset), Decay::yes);
    const std::vector<Parameter*> all = {&parameter};
    context.events.emit(train::StepBeginEvent{1, all});
    if (op) op(parameter.value());
  }));
}

TEST(ParameterAlignment, FiresWhenAFactorIsReadOffSixteenBytes) {
  const auto read = [](const Tensor& b) { linear(ones({1, 3}), b); };
  EXPECT_THAT(read_at(2, "h.lora_B.weight", read),
              ElementsAre("parameter.alignment -> lora.misaligned"));
  EXPECT_THAT(read_at(1, "h.weight", read), ElementsAre("parameter.alignment -> "));
}

TEST(ParameterAlignment, IsSilentOnRowsOffSixteenBytesAndOnWhatNobodyReads) {
  const auto read = [](const Tensor& b) { linear(ones({1, 3}), b); };
  EXPECT_THAT(read_at(4, "h.lora_B.weight", read), IsEmpty());  // rows of 12 bytes
  EXPECT_THAT(read_at(2, "h.lora_B.weight", nullptr), IsEmpty());
}

}  // namespace
}  // namespace faultline::diagnose
