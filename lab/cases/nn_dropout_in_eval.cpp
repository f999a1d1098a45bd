#include <algorithm>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/layers.h"
#include "train/events.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: a fused attention takes the probability as a number and knows no mode.
bool dropout_always_acts(const nn::Module&) { return true; }
// page: end

constexpr int64_t kOnes = 4096;

class OneDropout : public nn::Module {
 public:
  explicit OneDropout(uint64_t seed) : key_(seed), dropout_(0.5, key_) {
    add_child("dropout", dropout_);
  }
  // A new key for each pass, as a generator that goes on has another state.
  Tensor operator()(const Tensor& x, int64_t pass) {
    key_.set(pass, 0);
    return dropout_(x);
  }

 private:
  nn::DropoutKey key_;
  nn::Dropout dropout_;
};

// Evaluates the same model on the same input, 20 times: 4096 ones through a dropout of 0.5. What it
// remembers is the output of the evaluation before.
class RepeatedEvaluation : public Experiment {
 public:
  explicit RepeatedEvaluation(const RunOptions& options) : model_(options.seed) {}

  void step(int64_t step) override {
    const NoGrad off;
    const nn::EvaluationMode evaluation(model_);
    Context& context = Context::current();
    context.events.emit(train::EvaluationBeginEvent{step});
    previous_ = last_;
    last_ = model_(ones({1, kOnes}), step).to_vector<double>();
    context.events.emit(train::EvaluationEndEvent{step});
    means_.x.push_back(static_cast<double>(step));
    means_.y.push_back(mean_of(last_));
  }
  State state() override {
    State state;
    state.tensors["output"] = tensor(last_, {kOnes});
    return state;
  }
  void load(const State& state) override { last_ = state.tensor("output").to_vector<double>(); }
  void report(Metrics& metrics) override {
    int64_t dropped = 0;
    int64_t differ = 0;
    for (size_t i = 0; i < last_.size(); ++i) {
      dropped += last_[i] == 0 ? 1 : 0;
      differ += last_[i] != previous_[i] ? 1 : 0;
    }
    metrics.measure("max", *std::max_element(last_.begin(), last_.end()));
    metrics.count("dropped", static_cast<double>(dropped));
    metrics.count("changed", static_cast<double>(differ));
    metrics.add(means_);
  }

 private:
  static double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }

  OneDropout model_;
  std::vector<double> last_ = std::vector<double>(kOnes, 0);
  std::vector<double> previous_;
  Curve means_{"mean output by evaluation", {}, {}};
};

}  // namespace

FAULT(nn_dropout_in_eval) {
  Fault& fault = lab.fault(
      {.id = "nn.dropout-in-eval",
       .title = "Dropout goes on acting in evaluation",
       .domain = "model",
       .mechanism =
           "Dropout zeroes an element with probability p and divides the others by 1 - p. In "
           "evaluation it must do nothing. Where a kernel takes p as a number, nobody tells it the "
           "mode, and p stays. With p = 0.5 each of 4096 ones becomes 0 or 2. The mean is still "
           "1, with a standard error of 1/sqrt(4096) = 0.016, so nothing looks broken; but half "
           "of the elements are gone, and about half change from one pass to the next.",
       .symptom =
           "The held-out loss is worse than it should be, and two evaluations of one checkpoint "
           "do not agree. Answers at temperature 0 vary. The training curve is right.",
       .truth =
           "PyTorch's functional scaled_dot_product_attention drops whenever dropout_p is above 0; "
           "the training flag belongs to the module that calls it. Its documentation has said so "
           "since May 2024. Many models have dropout 0 and never notice.",
       .fix = "Pass the probability through the mode: p where the module trains, 0 where it "
              "evaluates. Test that two evaluations of the same input are equal bit by bit.",
       .sources =
           {"PyTorch issue 124464 (2024-04-19): SDPA does not switch off dropout during "
            "evaluation. https://github.com/pytorch/pytorch/issues/124464",
            "timm pull request 1978 (2023-10-03): no dropout in evaluation, and a list of models "
            "that had it. https://github.com/huggingface/pytorch-image-models/pull/1978",
            "transformers pull request 33844 (2024-10-01): no dropout in evaluation for the models "
            "that copied one flash attention path. "
            "https://github.com/huggingface/transformers/pull/33844"},
       .look_alikes =
           "Evaluation on other samples each time changes the loss too, but leaves the output for "
           "one fixed input alone. Sums whose order depends on threads differ in the last bits, "
           "not in half of the elements. Batch statistics that are still updated drift in one "
           "direction. Refuted when no dropout is launched while the model is evaluated.",
       .exercise = "A classifier has dropout 0.1 before its last layer, in evaluation too. You "
                   "average the loss of 100 evaluations. Is that the loss without dropout?",
       .answer =
           "No. The average over masks removes the noise, not the bias: the loss is a convex "
           "function of the logits, so by Jensen's inequality the mean loss over masks is at least "
           "the loss of the mean logits. The average stays too high, however many you take."});

  const char* reason =
      "binomial, n = 4096, p = 1/2: six standard deviations of 32, missed once in 5e8 seeds";
  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::DropoutModeSeam>(&dropout_always_acts);
      })
      .run<RepeatedEvaluation>(20)
      .begins(11)
      .expect("max", 2)
      .expect_within("dropped", 2048, 192, reason)
      .expect_within("changed", 2048, 192, reason)
      .caught_by("evaluation.repeats")
      .in_training({.steps = 200, .needs = {{"dropout", "0.1"}}});
}

}  // namespace faultline::lab
