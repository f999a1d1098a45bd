#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "autograd/functional.h"
#include "core/float16.h"
#include "core/rng.h"
#include "kernels/attributes.h"
#include "lab/catalogue.h"
#include "optim/optimizer.h"
#include "tests/diagnose/watched.h"

// What the detectors of sums, norms and updates in few bits see, and where they are silent.
namespace faultline::diagnose {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What `action` shows while the code of a fault of the lab is in place.
std::vector<std::string> with_fault(const char* fault, const std::function<void()>& action) {
  return names_of(watched([&](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find(fault).plant(context);
    action();
  }));
}

// ---- accumulate.finite --------------------------------------------------------------------------

// Adds gradients of these sizes to each element of a leaf whose gradient is kept in `kept`.
std::vector<std::string> added(const std::vector<double>& gradients, DType kept,
                               int64_t elements = 1) {
  return names_of(watched([&](Context& context) {
    const auto planted = context.seams.replace<AccumulateSeam>(
        [kept](const Tensor& held, const Tensor& contribution) {
          const Tensor rounded = cast(contribution, kept);
          return held.defined() ? add(held, rounded) : rounded;
        });
    const Tensor x = ones({elements});
    set_requires_grad(x);
    for (const double size : gradients) {
      context.events.emit(GradientEvent{"", x, full({1}, size), full({1}, size), true});
    }
    clear_gradient(x);
    for (const double size : gradients) backward(sum(x * size));
  }));
}

TEST(AccumulateFinite, FiresWhereFiniteGradientsOverflowTheirSum) {
  EXPECT_THAT(added({70000}, DType::f16),
              testing::Contains("accumulate.finite -> bf16.accumulate"));
  EXPECT_THAT(added({40000, 40000}, DType::f16),
              testing::Contains("accumulate.finite -> bf16.accumulate"));
}

TEST(AccumulateFinite, IsSilentInTheRangeOfBf16AndF32) {
  EXPECT_THAT(added({70000, 1e30}, DType::f32), IsEmpty());
  EXPECT_THAT(added({70000, 70000}, DType::bf16), IsEmpty());
}

TEST(AccumulateFinite, LeavesAGradientThatArrivesBrokenToOthers) {
  EXPECT_THAT(added({INFINITY, 1}, DType::f32), ElementsAre("finite.first -> "));
  EXPECT_THAT(added({1, NAN, 1}, DType::f32), ElementsAre("finite.first -> "));
}

// ---- accumulate.absorbed ------------------------------------------------------------------------

// A bf16 sum and, in bf16 as well, what it owes: Kahan's summation.
class Compensated {
 public:
  Tensor operator()(const Tensor& held, const Tensor& contribution) {
    if (!held.defined()) {
      owed_ = zeros(contribution.shape(), DType::f32);
      return cast(contribution, DType::bf16);
    }
    const Tensor exact = cast(held, DType::f32) + cast(contribution, DType::f32) + owed_;
    const Tensor rounded = cast(exact, DType::bf16);
    owed_ = cast(cast(exact - cast(rounded, DType::f32), DType::bf16), DType::f32);
    return rounded;
  }

 private:
  Tensor owed_;
};

TEST(AccumulateAbsorbed, IsSilentOnACompensatedSumOfSmallAddends) {
  for (const double addend : {0x1p-10, 1e-3, 1.5e-4}) {
    EXPECT_THAT(names_of(watched([&](Context& context) {
                  const auto planted = context.seams.replace<AccumulateSeam>(
                      [sum = std::make_shared<Compensated>()](const Tensor& held,
                                                              const Tensor& contribution) {
                        return (*sum)(held, contribution);
                      });
                  const Tensor x = ones({4});
                  set_requires_grad(x);
                  for (int i = 0; i < 1024; ++i) backward(sum(x * addend));
                })),
                IsEmpty())
        << addend;
  }
}

// bf16, rounded up with the probability of what is cut off, at each element by itself.
class RoundedStochastically {
 public:
  Tensor operator()(const Tensor& held, const Tensor& contribution) {
    if (!held.defined()) return cast(contribution, DType::bf16);
    std::vector<float> sums = (cast(held, DType::f32) + contribution).to_vector<float>();
    for (float& sum : sums) {
      const auto dither = static_cast<uint32_t>(random_.below(1U << 16, drawn_++));
      sum = std::bit_cast<float>((std::bit_cast<uint32_t>(sum) + dither) & 0xffff0000U);
    }
    return cast(tensor(sums, held.shape()), DType::bf16);
  }

 private:
  RandomSequence random_{1, stream_of("rounding")};
  uint64_t drawn_ = 0;
};

TEST(AccumulateAbsorbed, IsSilentOnSumsThatAreRoundedStochastically) {
  for (const int64_t elements : {1, 4, 4096}) {
    for (const double addend : {0x1p-10, -1e-3}) {
      EXPECT_THAT(names_of(watched([&](Context& context) {
                    const auto planted = context.seams.replace<AccumulateSeam>(
                        [sum = std::make_shared<RoundedStochastically>()](
                            const Tensor& held, const Tensor& contribution) {
                          return (*sum)(held, contribution);
                        });
                    const Tensor x = ones({elements});
                    set_requires_grad(x);
                    for (int i = 0; i < 1024; ++i) backward(sum(x * addend));
                  })),
                  IsEmpty())
          << elements << " of " << addend;
    }
  }
}

// Adds 1 and then `count` times 2^-9, a quarter of a spacing of bf16 at 1, which moves nothing.
std::vector<std::string> absorbing(int count, int64_t elements) {
  std::vector<double> gradients(static_cast<size_t>(count), 0x1p-9);
  gradients.insert(gradients.begin(), 1);
  return added(gradients, DType::bf16, elements);
}

TEST(AccumulateAbsorbed, FiresWhereMoreIsLostThanTwoRoundings) {
  EXPECT_THAT(absorbing(3, 4096), IsEmpty());  // 3 * 2^-9 of 1.006 is less than 2^-7
  EXPECT_THAT(absorbing(8, 4096), ElementsAre("accumulate.absorbed -> bf16.accumulate"));
}

// One element that is rounded stochastically may not move eight times: 0.75^8 is 10 %.
TEST(AccumulateAbsorbed, WantsMoreOfFewElements) {
  EXPECT_THAT(absorbing(8, 1), IsEmpty());
  EXPECT_THAT(absorbing(150, 1), ElementsAre("accumulate.absorbed -> bf16.accumulate"));
}

// 2^-12 is a quarter of a spacing of fp16 at 1; four are 9.8e-4 of it.
TEST(AccumulateAbsorbed, AllowsNoMoreThanAThousandthInF16) {
  EXPECT_THAT(added({1, 0x1p-12, 0x1p-12, 0x1p-12, 0x1p-12}, DType::f16, 4096), IsEmpty());
  EXPECT_THAT(added({1, 0x1p-12, 0x1p-12, 0x1p-12, 0x1p-12, 0x1p-12, 0x1p-12}, DType::f16, 4096),
              ElementsAre("accumulate.absorbed -> bf16.accumulate"));
}

TEST(AccumulateAbsorbed, IsSilentOnASumThatIsInfinite) {
  EXPECT_THAT(added({70000, 1, 1, 1, 1}, DType::f16),
              ElementsAre("accumulate.finite -> bf16.accumulate", "finite.first -> "));
}

// ---- variance.positive --------------------------------------------------------------------------

void normalise(const std::vector<float>& row, DType dtype, double epsilon) {
  layer_norm(cast(tensor(row, {1, static_cast<int64_t>(row.size())}), dtype), {}, {}, epsilon);
}

const std::vector<float> kCloseRow{1, 1.0078125F, 1,          1.0078125F,
                                   1, 1.0078125F, 1.0078125F, 1.0078125F};

// Runs with layer_norm replaced by one that finds this variance in every row.
std::vector<std::string> with_variance(double (*variance)(const std::vector<float>& row),
                                       const std::vector<float>& row, double epsilon) {
  static double (*found)(const std::vector<float>&) = nullptr;
  found = variance;
  static constexpr KernelRecord kKernel{
      "layer_norm/test", [](const KernelArgs& args) {
        const int64_t n = args.inputs[0].shape[-1];
        const float* x = args.inputs[0].as<float>();
        const double inside =
            found(std::vector<float>(x, x + n)) + args.attributes.as<LayerNormAttributes>().epsilon;
        *args.outputs[1].as<float>() = 0;
        *args.outputs[2].as<float>() = static_cast<float>(1 / std::sqrt(inside));
        std::fill_n(args.outputs[0].as<float>(), n, 0.0F);
      }};
  return names_of(watched([&](Context& context) {
    const auto planted = context.seams.replace<KernelSeam>([](const SelectionRequest& request) {
      if (&request.op == &definition(Op::layer_norm)) return Selection{&kKernel, "test"};
      return KernelSeam::standard(request);
    });
    normalise(row, DType::f32, epsilon);
  }));
}

std::vector<float> alternating(float mean, float deviation) {
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(mean + (i % 2 == 0 ? deviation : -deviation));
  return row;
}

double one_pass_in_f32(const std::vector<float>& row) {
  float sum = 0;
  float squares = 0;
  for (const float x : row) {
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<float>(row.size());
  return squares / n - sum / n * (sum / n);
}

TEST(VariancePositive, FiresOnNaNAndOnInfinityFromAFiniteRow) {
  const auto named = testing::Contains("variance.positive -> bf16.accumulate");
  EXPECT_THAT(
      with_fault("bf16.accumulate:ln-variance", [] { normalise(kCloseRow, DType::bf16, 1e-5); }),
      named);
  EXPECT_THAT(with_fault("bf16.accumulate:fp16-eps",
                         [] {
                           normalise({3, 3, 3, 3}, DType::f16, 1e-12);
                         }),
              named);
}

// 4096 +- 0.01: the squares agree in all 24 bits, so the variance is 0 and epsilon alone decides.
TEST(VariancePositive, FiresWhereCancellationLeavesAFiniteNumberThatIsWrong) {
  EXPECT_THAT(with_variance(&one_pass_in_f32, alternating(4096, 0.01F), 1e-7),
              testing::Contains("variance.positive -> bf16.accumulate"));
}

TEST(VariancePositive, IsSilentOnTheSameCodeWhereItIsGoodEnough) {
  EXPECT_THAT(with_variance(&one_pass_in_f32, alternating(1, 0.5F), 1e-5), IsEmpty());
  EXPECT_THAT(with_variance(&one_pass_in_f32, alternating(10, 0.5F), 1e-5), IsEmpty());
}

TEST(VariancePositive, IsSilentOnAnotherMistakeThanCancellation) {
  const auto twice_too_large = [](const std::vector<float>&) { return 100.0; };
  EXPECT_THAT(with_variance(twice_too_large, alternating(0, 1), 1e-5), IsEmpty());
}

TEST(VariancePositive, IsSilentOnTheFrameworksNormOfTheSameRows) {
  const auto all = [] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      normalise(kCloseRow, dtype, 1e-5);
      normalise({3, 3, 3, 3}, dtype, 1e-12);
    }
    normalise(alternating(4096, 0.01F), DType::f32, 1e-12);
    normalise(alternating(1e7F, 1), DType::f32, 1e-12);
  };
  EXPECT_THAT(names_of(watched([&](Context&) { all(); })), IsEmpty());
}

TEST(VariancePositive, LeavesARowThatWasNotFiniteAndAnEpsilonOfZeroToOthers) {
  EXPECT_THAT(names_of(watched([](Context&) {
                normalise({INFINITY, 1, 2, 3}, DType::f32, 1e-5);
              })),
              ElementsAre("finite.first -> "));
  EXPECT_THAT(names_of(watched([](Context&) {
                normalise({3, 3, 3, 3}, DType::f32, 0);
              })),
              ElementsAre("finite.first -> "));
}

// ---- denominator.zero ---------------------------------------------------------------------------

// One AdamW step of one weight with this gradient, scaled by `factor`.
void adamw_step(double gradient, double factor = 1, optim::AdamWOptions options = {}) {
  Parameter parameter("p", ones({1}), Decay::no);
  optim::AdamW optimizer({{{&parameter}, 0}}, options);
  backward(parameter.value() * gradient);
  optimizer.step(1e-3, full({1}, factor, DType::f64));
}

TEST(DenominatorZero, FiresWhereEpsilonAndTheSecondMomentAreZeroInFp16) {
  const auto named = ElementsAre("denominator.zero -> adam.fp16-eps");
  EXPECT_THAT(with_fault("adam.fp16-eps", [] { adamw_step(0); }), named);
  EXPECT_THAT(with_fault("adam.fp16-eps", [] { adamw_step(1e-8); }), named);
  EXPECT_THAT(with_fault("adam.fp16-eps", [] { adamw_step(1e-3); }), named) << "infinite";
}

TEST(DenominatorZero, IsSilentWhereFp16IsGoodEnough) {
  EXPECT_THAT(with_fault("adam.fp16-eps", [] { adamw_step(0.1); }), IsEmpty());
  EXPECT_THAT(with_fault("adam.fp16-eps", [] { adamw_step(0, 1, {.epsilon = 1e-4}); }), IsEmpty());
}

TEST(DenominatorZero, LeavesWhatWasBrokenBeforeToOthers) {
  EXPECT_THAT(names_of(watched([](Context&) { adamw_step(0, NAN); })),
              testing::Not(testing::Contains(HasSubstr("denominator.zero"))));
  EXPECT_THAT(names_of(watched([](Context&) { adamw_step(NAN); })),
              testing::Not(testing::Contains(HasSubstr("denominator.zero"))));
  EXPECT_THAT(names_of(watched([](Context&) { adamw_step(0, 1, {.epsilon = 0}); })),
              testing::Not(testing::Contains(HasSubstr("denominator.zero"))));
}

// Even where the update itself divides by 0.
TEST(DenominatorZero, LeavesWeightsThatWereNaNBeforeTheUpdateToOthers) {
  const auto step_on_nan = [] {
    Parameter parameter("p", tensor<float>({NAN, 1}), Decay::no);
    optim::AdamW optimizer({{{&parameter}, 0}});
    backward(sum(parameter.value() * 1e-8));
    optimizer.step(1e-3);
  };
  const auto silent = testing::Not(testing::Contains(HasSubstr("denominator.zero")));
  EXPECT_THAT(names_of(watched([&](Context&) { step_on_nan(); })), silent);
  EXPECT_THAT(with_fault("adam.fp16-eps", step_on_nan), silent);
}

TEST(DenominatorZero, IsSilentOnTheSmallestGradientsInF32) {
  for (const double gradient : {0.0, 1e-8, 1e-20, 1e-30}) {
    EXPECT_THAT(names_of(watched([&](Context&) { adamw_step(gradient); })), IsEmpty()) << gradient;
  }
}

// ---- update.lost --------------------------------------------------------------------------------

// AdamW on N(0, 0.02) weights in bf16 under a constant gradient.
void train_weights(double lr, int steps, int64_t count = 4096) {
  const Tensor start = normal({count}, 0, 0.02, 1, 1);
  Parameter weights("weights", cast(cast(start, DType::bf16), DType::f32), Decay::no);
  optim::AdamW optimizer({{{&weights}, 0}});
  for (int i = 0; i < steps; ++i) {
    weights.clear_gradient();
    backward(sum(weights.value() * 0.1));
    optimizer.step(lr);
  }
}

TEST(UpdateLost, FiresWhereMostWeightsWaitForEver) {
  EXPECT_THAT(with_fault("bf16.weights-frozen", [] { train_weights(1e-5, 50); }),
              ElementsAre("update.lost -> bf16.weights-frozen"));
}

TEST(UpdateLost, IsSilentOnF32AtAnyLearningRate) {
  for (const double lr : {1e-4, 1e-5, 1e-6, 1e-9}) {
    EXPECT_THAT(names_of(watched([&](Context&) { train_weights(lr, 50); })), IsEmpty()) << lr;
  }
}

TEST(UpdateLost, IsSilentWhereBf16LosesLittle) {
  EXPECT_THAT(with_fault("bf16.weights-frozen", [] { train_weights(1e-4, 100); }), IsEmpty());
}

// Rounded up with the probability of the part above, a bf16 weight waits and then moves.
TEST(UpdateLost, IsSilentOnStochasticRoundingOfManyWeightsAndOfFew) {
  for (const int64_t count : {1, 4, 16, 4096}) {
    EXPECT_THAT(names_of(watched([&](Context& context) {
                  const lab::Catalogue catalogue;
                  const lab::Variant& variant = catalogue.find("bf16.weights-frozen:stochastic");
                  const auto wrong = variant.plant(context);
                  const auto remedy = variant.remedy_plant()(context);
                  train_weights(1e-5, 1000, count);
                })),
                IsEmpty())
        << count;
  }
}

// Two parameters side by side under a constant gradient.
struct Kept {
  int64_t count;
  float value;
};
std::vector<Detection> trained_together(Kept a, Kept b, double lr, int steps) {
  return watched([&](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find("bf16.weights-frozen").plant(context);
    Parameter first("first", full({a.count}, a.value), Decay::no);
    Parameter second("second", full({b.count}, b.value), Decay::no);
    optim::AdamW optimizer({{{&first, &second}, 0}});
    for (int i = 0; i < steps; ++i) {
      first.clear_gradient();
      second.clear_gradient();
      backward(sum(first.value() * 0.1) + sum(second.value() * 0.1));
      optimizer.step(lr);
    }
  });
}

// At an update of 1e-3 a gain of 1 stands still (half a spacing below it is 2^-9), and a weight of
// 0.0117 moves, to -0.07 in the end. Four gains wait for 9 spacings, which are 71 steps.
TEST(UpdateLost, SeesAFewFrozenGainsBesideManyWeightsThatMove) {
  const auto detections = trained_together({4096, 0.01171875F}, {4, 1}, 1e-3, 80);
  ASSERT_THAT(names_of(detections), ElementsAre("update.lost -> bf16.weights-frozen"));
  EXPECT_THAT(detections[0].evidence, HasSubstr("4 of 4 weights of a parameter"));
}

TEST(UpdateLost, SeesManyFrozenWeightsBesideAFewThatMove) {
  const auto detections = trained_together({4096, 0.75F}, {8, 0.01171875F}, 1e-4, 150);
  ASSERT_THAT(names_of(detections), ElementsAre("update.lost -> bf16.weights-frozen"));
  EXPECT_THAT(detections[0].evidence, HasSubstr("4096 of 4096 weights of a parameter"));
}

TEST(UpdateLost, IsSilentOnAFewWeightsThatMove) {
  EXPECT_THAT(names_of(trained_together({4, 0.01171875F}, {1, 0.01171875F}, 1e-4, 90)), IsEmpty());
}

// An optimizer that forgets to write is not one that rounds: its weights have all their bits.
TEST(UpdateLost, IsSilentOnF32WeightsThatNobodyWrites) {
  static constexpr KernelRecord kForgetful{
      "adamw/forgetful", [](const KernelArgs& args) {
        const auto* const table = reinterpret_cast<const UpdateTensors*>(args.inputs[0].data);
        std::fill_n(table->first, table->count, 0.1F);
        std::fill_n(table->second, table->count, 0.01F);
      }};
  EXPECT_THAT(names_of(watched([](Context& context) {
                const auto planted = context.seams.replace<optim::UpdateKernelSeam>(
                    [](const KernelRecord&) { return &kForgetful; });
                Parameter weights("weights", normal({4096}, 0, 0.02, 1, 1), Decay::no);
                Parameter gains("gains", ones({16}), Decay::no);
                optim::AdamW optimizer({{{&weights, &gains}, 0}});
                for (int i = 0; i < 50; ++i) {
                  weights.clear_gradient();
                  gains.clear_gradient();
                  backward(sum(weights.value() * 0.1) + sum(gains.value() * 0.1));
                  optimizer.step(1e-3);
                }
              })),
              IsEmpty());
}

// ---- training -----------------------------------------------------------------------------------

std::vector<std::string> trained(double lr, int steps, const char* fault = nullptr) {
  return names_of(watched([&](Context& context) {
    const lab::Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (fault != nullptr) planted = catalogue.find(fault).plant(context);
    train::Config config = tiny_config();
    config.lr = lr;
    train::Trainer trainer(config, uniform_tokens(60000));
    for (int i = 0; i < steps; ++i) trainer.step();
  }));
}

// At 3e-4 an f32 model also has weights that do not move: rows of the embedding whose token does
// not occur, whose gradient is 0.
TEST(PrecisionDetectors, AreSilentOnRealTrainingAtUsualAndSmallLearningRates) {
  EXPECT_THAT(trained(3e-4, 100), IsEmpty());
  EXPECT_THAT(trained(1e-5, 50), IsEmpty());
}

TEST(PrecisionDetectors, NameWeightsThatAreFrozenInRealTraining) {
  EXPECT_THAT(trained(2e-5, 200, "bf16.weights-frozen"),
              ElementsAre("update.lost -> bf16.weights-frozen"));
}

TEST(PrecisionDetectors, NameAdamInFp16InRealTraining) {
  EXPECT_THAT(trained(1e-3, 2, "adam.fp16-eps"),
              testing::Contains("denominator.zero -> adam.fp16-eps"));
}

}  // namespace
}  // namespace faultline::diagnose
