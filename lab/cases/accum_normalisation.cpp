#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: each micro-batch's own mean, divided by the number of micro-batches.
Tensor mean_of_means(const Tensor& loss_sum, const train::MicroBatch& micro) {
  return loss_sum * (1.0 / static_cast<double>(micro.batch.valid_tokens * micro.count));
}
// page: end

// Two micro-batches a step: 10 tokens with loss 2 each, and 10, 20, ..., 1000 tokens with loss 1
// each, in an order that the seed draws. Of two classes with logits (b, x) the label is the first,
// so that its loss is ln(1 + exp(x - b)), and the slope of b is exp(-loss) - 1. SGD moves b, and x
// is chosen anew for each loss: what an objective does to b is there at the end, losses stay.
class ShortAndLong : public TrainedExperiment {
 public:
  explicit ShortAndLong(const RunOptions& options)
      : short_first_(RandomSequence(options.seed, 0).below(2, 0) == 0),
        bias_("b", zeros({1}), Decay::no),
        optimizer_({{{&bias_}, 0}}) {}

  void step(int64_t step) override {
    bias_.clear_gradient();
    const Batch few = labels_of(kShort);
    const Batch many = labels_of(kShort * step);
    const int64_t labels = few.valid_tokens + many.valid_tokens;
    double sum = 0;
    objective_ = 0;
    for (const bool is_short : {short_first_, !short_first_}) {
      const train::MicroBatch micro{is_short ? few : many, labels, 2};
      sum += micro_batch(step, micro, is_short ? 2 : 1);
    }
    optimizer_.step(kLearningRate);
    const double loss = sum / static_cast<double>(labels);
    Context::current().events.emit(train::StepEndEvent{step, loss, 0, kLearningRate, labels});
    objectives_.x.push_back(static_cast<double>(many.valid_tokens));
    objectives_.y.push_back(objective_);
  }
  void report(Metrics& metrics) override {
    metrics.measure("objective", objective_);
    metrics.measure("slope", bias_.gradient().item<double>());
    metrics.measure("b", bias());
    metrics.add(objectives_);
  }

 private:
  static constexpr int64_t kShort = 10;
  static constexpr double kLearningRate = 1e-3;

  optim::Optimizer& optimizer() override { return optimizer_; }
  double bias() const { return bias_.value().item<double>(); }

  static Batch labels_of(int64_t count) {
    Batch batch;
    batch.labels = zeros({1, count}, DType::i32);
    batch.valid_tokens = count;
    return batch;
  }

  // Adds to the objective; returns the sum of the token losses, of `loss` each.
  double micro_batch(int64_t step, const train::MicroBatch& micro, double loss) {
    const int64_t labels = micro.batch.valid_tokens;
    const auto x = static_cast<float>(bias() + std::log(std::expm1(loss)));
    const Tensor logits_2 = bias_.value() * tensor<float>({1, 0}) + tensor<float>({0, x});
    const Tensor loss_sum =
        nn::language_model_loss(expand(logits_2, {1, labels, 2}), micro.batch.labels);
    Context& context = Context::current();
    const Tensor objective = context.seams.call<train::NormalisationSeam>(loss_sum, micro);
    const auto sum = loss_sum.item<double>();
    context.events.emit(train::ObjectiveEvent{step, labels, sum, objective});
    objective_ += objective.item<double>();
    backward(objective);
    return sum;
  }

  bool short_first_;
  Parameter bias_;
  optim::Sgd optimizer_;
  double objective_ = 0;
  Curve objectives_{"objective by length of the long micro-batch", {}, {}};
};

}  // namespace

FAULT(accum_normalisation) {
  Fault& fault = lab.fault(
      {.id = "accum.normalisation",
       .title = "Gradient accumulation averages means of unequal micro-batches",
       .domain = "loss",
       .mechanism =
           "The loss of a step is the sum over its tokens divided by their number. Accumulation "
           "that takes each micro-batch's mean and divides by K gives a token of micro-batch i the "
           "weight 1 / (K n_i). With 10 tokens of loss 2 and 1000 tokens of loss 1 that is (2 + "
           "1) / 2 = 1.5; the right mean is (20 + 1000) / 1010 = 1.0099. A token of the short one "
           "weighs 100 times as much as one of the long one. With equal lengths both agree, so "
           "tests on packed data pass.",
       .symptom =
           "Nothing breaks. The loss is other than without accumulation, the more so the more "
           "lengths differ, and the model prefers what short sequences say: short answers.",
       .truth =
           "transformers, and trainers that followed it, did so until October 2024. Dividing by K "
           "alone is right only where every micro-batch has as many labels. The first repairs "
           "divided twice or not at all, which is a factor of exactly K.",
       .fix = "Sum the token losses in each micro-batch, and divide by the valid labels of the "
              "whole step, counted over all micro-batches and ranks before the first backward.",
       .sources =
           {"transformers pull request 34191 (2024-10): Fix Gradient Accumulation issue. "
            "https://github.com/huggingface/transformers/pull/34191",
            "Hugging Face blog, pull request 2414 (2024-10-16): where it comes from, and the "
            "formula. https://github.com/huggingface/blog/pull/2414",
            "transformers issue 37766 (2025-04-24): a loss that grows with the number of "
            "accumulation steps. https://github.com/huggingface/transformers/issues/37766"},
       .look_alikes =
           "A loss scaled by K is divided too little or too often: there every token still weighs "
           "the same. Dropout keyed by micro-batch changes the loss at random, in no direction. "
           "A reordered f32 sum differs in the last bits only. loss.log-zero:all-ignored divides "
           "by the same count, of 0. Where every sequence is meant to weigh the same, a mean by "
           "sequence is a choice and no fault. Refuted when objective / loss sum is one number for "
           "all micro-batches of a step.",
       .exercise = "Four micro-batches have 100, 100, 100 and 1 valid labels, all of loss 2 but "
                   "the last one of loss 6. What is the right loss, and what is the mean of means?",
       .answer = "Right: (3 * 200 + 6) / 301 = 2.0133. Mean of means: (2 + 2 + 2 + 6) / 4 = 3. One "
                 "token in 301 has a quarter of the weight."});

  const char* reason = "the losses 2 and 1 come from logits that are rounded to f32";
  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<train::NormalisationSeam>(&mean_of_means);
      })
      .run<ShortAndLong>(100)
      .expect_within("objective", 1.5, 1e-6, reason)
      .expect_within("slope", (std::exp(-2) + std::exp(-1)) / 2 - 1, 1e-6, reason)
      .caught_by("objective.weights")
      // One verse in 25 is shorter than 64 bytes, so a step of four rows is uneven once in six
      // times.
      .in_training({.steps = 200,
                    .needs = {{"micro_batch_size", "1"},
                              {"seq_len", "64"},
                              {"pack", "false"},
                              {"documents", "verse"}}});
}

}  // namespace faultline::lab
