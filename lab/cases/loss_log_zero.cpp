#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/gpt2.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the formula of the loss as it stands, -log(softmax(logits)[label]).
Tensor log_of_softmax(const Tensor& logits_NV, const Tensor& labels_N) {
  const Tensor classes = arange(logits_NV.size(1), 0, 1, labels_N.dtype());
  const Tensor is_label_NV = equal(reshape(labels_N, {-1, 1}), reshape(classes, {1, -1}));
  const Tensor p_N = sum(where(is_label_NV, softmax(logits_NV), zeros({1})), {1});
  const Tensor is_ignored_N = less(labels_N, zeros({1}, labels_N.dtype()));
  return -log(where(is_ignored_N, ones({1}), p_N));
}
// page: end

// The wrong code: the mean over a micro-batch's labels, times its share of the step's labels. Right
// as long as there is a label.
Tensor share_of_mean(const Tensor& loss_sum, const train::MicroBatch& micro) {
  const auto labels = static_cast<double>(micro.batch.valid_tokens);
  const Tensor mean = loss_sum / full({}, labels);
  return mean * (labels / static_cast<double>(micro.step_labels));
}

// Labels ignored by a factor of 0, as many trainers do it: right, but 0 * NaN is NaN.
Tensor losses_times_mask(const Tensor& logits_NV, const Tensor& labels_N) {
  const Tensor none = zeros({1}, labels_N.dtype());
  const Tensor is_ignored_N = less(labels_N, none);
  const Tensor losses_N = cross_entropy_rows(logits_NV, where(is_ignored_N, none, labels_N));
  return losses_N * cast(logical_not(is_ignored_N), DType::f32);
}

// Logits [c, c + gap] and label 0: the loss is ln(1 + exp(gap)) for every c.
Tensor loss_of(const Tensor& logits_12) {
  return sum(Context::current().seams.call<nn::TokenLossSeam>(logits_12, tensor<int32_t>({0})));
}

// A gap of 200, and a curve over gaps up to 120. The seed draws a c from 0 to 7.
void certain_of_the_other(const RunOptions& options, Metrics& metrics) {
  const auto c = static_cast<float>(RandomSequence(options.seed, 0).below(8, 0));
  const Tensor logits = tensor<float>({c, c + 200}, {1, 2});
  set_requires_grad(logits);
  const Tensor loss = loss_of(logits);
  backward(loss);
  metrics.measure("loss", loss.item<double>());
  metrics.measure("slope", gradient(logits).to_vector<double>()[0]);

  Curve curve{"loss by gap between the logits", {}, {}};
  for (float gap = 0; gap <= 120; gap += 2) {
    const auto value = loss_of(tensor<float>({c, c + gap}, {1, 2})).item<double>();
    if (!std::isfinite(value)) continue;  // nothing to draw
    curve.x.push_back(gap);
    curve.y.push_back(value);
  }
  metrics.add(curve);
}

// Three micro-batches a step, each of 4 places with loss w: 4, 2 and 2 of them have labels, and
// from step 10 on 4, none and 4. The loss is linear in w, so that plain descent is exact.
class OneWithoutLabels : public Experiment {
 public:
  explicit OneWithoutLabels(const RunOptions&)
      : weight_("w", ones({1}), Decay::no), optimizer_({{{&weight_}, 0}}) {}

  void step(int64_t step) override {
    weight_.clear_gradient();
    const std::vector<int64_t> labels =
        step < kFirstWithout ? std::vector<int64_t>{4, 2, 2} : std::vector<int64_t>{4, 0, 4};
    double sum = 0;
    for (const int64_t count : labels) sum += micro_batch(step, count);
    optimizer_.step(0x1p-6);
    objective_ = sum;
    if (!std::isfinite(sum)) return;  // nothing to draw
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(sum);
  }
  State state() override {
    State state;
    state.tensors["w"] = weight_.value();
    state.add("optimizer", optimizer_.state());
    return state;
  }
  void load(const State& state) override {
    copy_(weight_.value().detach(), state.tensor("w"));
    optimizer_.load(state.part("optimizer"));
  }
  void report(Metrics& metrics) override {
    metrics.measure("objective", objective_);
    metrics.measure("w", weight_.value().item<double>());
    metrics.add(curve_);
  }

 private:
  double micro_batch(int64_t step, int64_t labels) {
    Batch batch;
    batch.valid_tokens = labels;
    const Tensor mask =
        cast(less(arange(4), full({1}, static_cast<double>(labels), DType::i64)), DType::f32);
    const Tensor loss_sum = sum(weight_.value() * mask);
    Context& context = Context::current();
    const Tensor objective = context.seams.call<train::NormalisationSeam>(
        loss_sum, train::MicroBatch{batch, kLabels, 3});
    context.events.emit(train::ObjectiveEvent{step, labels, loss_sum.item<double>(), objective});
    backward(objective);
    return objective.item<double>();
  }

  static constexpr int64_t kLabels = 8;
  static constexpr int64_t kFirstWithout = 10;

  Parameter weight_;
  optim::Sgd optimizer_;
  double objective_ = 0;
  Curve curve_{"objective by step", {}, {}};
};

}  // namespace

FAULT(loss_log_zero) {
  Fault& fault = lab.fault(
      {.id = "loss.log-zero",
       .title = "log(0), or 0/0, in the loss",
       .domain = "loss",
       .seed = "000 1",
       .mechanism =
           "exp(x) is 0 in f32 below x = -103.97, so a label whose logit lies more than that below "
           "the largest gets probability 0, and log(0) = -inf. Logits [0, 200] with label 0: "
           "-log(softmax) is inf, and backward has 0 * inf = NaN. Computed as max + log(sum "
           "exp(x - max)) - x[label] the same loss is 200, with slope -1. The other zero is below "
           "a fraction: the mean over labels of which all are ignored is 0/0 = NaN. Where labels "
           "are ignored by a factor of 0, backward multiplies it by NaN, and one such micro-batch "
           "makes every parameter NaN. Where they are ignored by an index, their rows get slope 0 "
           "and only the number that is logged is NaN.",
       .symptom =
           "The loss is inf, then NaN, all at once: at the first label that the model holds for "
           "impossible, or at the first micro-batch of nothing but padding, prompts or ends of "
           "documents. Which step that is changes with the order of the data.",
       .article_says = "The softmax input is too large, a division by zero, or log(0); the check "
                       "is torch.isfinite(loss).all().",
       .truth =
           "All three exist, and the check tells none from the others. log_softmax and "
           "cross_entropy of a framework never compute log(0). PyTorch's mean is NaN on purpose "
           "where every label is ignored, since 1.11.",
       .fix = "Take the loss from the logits with log_softmax or cross_entropy. Sum the losses and "
              "divide once, by the labels of the whole step; check that count before dividing.",
       .sources =
           {"PyTorch issue 70348 (2021-12-23): NaN where all labels are ignored, by design. "
            "https://github.com/pytorch/pytorch/issues/70348",
            "OLMo-core pull request 657 (2026-04-10): a rank without labels makes all ranks NaN. "
            "https://github.com/allenai/OLMo-core/pull/657",
            "annotated-transformer issue 109 (2023-04-10): log of probabilities with zeros. "
            "https://github.com/harvardnlp/annotated-transformer/issues/109",
            "allennlp issue 2797 (2019-05-03): log of a softmax that is exactly 0. "
            "https://github.com/allenai/allennlp/issues/2797"},
       .look_alikes =
           "softmax.overflow makes NaN inside of the softmax: there its output is not finite, "
           "here it is finite and holds a 0. softmax.masked-row is a row of attention without a "
           "visible key. A diverging run grows over several steps before it is inf. "
           "accum.normalisation divides by the same count and is never NaN. Refuted for log(0) "
           "when every input of the log is above 0, for 0/0 when the micro-batch has a label.",
       .exercise = "Someone repairs log(softmax) by log(softmax + 1e-9). What are loss and "
                   "gradient for logits [0, 200] with label 0, and what does the model learn?",
       .answer = "The loss is -log(1e-9) = 20.7 in place of 200. The slope is p (1 - p) / (p + "
                 "1e-9) with p = 0, so it is exactly 0: finite, and blind to the labels that it "
                 "is most wrong about."});

  fault.variant("log-of-softmax", "-log(softmax) of an impossible label is inf")
      .wrong([](Context& context) {
        return context.seams.replace<nn::TokenLossSeam>(&log_of_softmax);
      })
      .run(&certain_of_the_other)
      .expect("loss", INFINITY)
      .expect("slope", NAN)
      .caught_by("log.of-zero")
      // Logits of a fresh model lie within 1 of each other; weights this large spread them over
      // more than 104.
      .in_training({.steps = 200, .needs = {{"init_std", "4"}}});
  fault.variant("all-ignored", "The mean over the labels of a micro-batch without any is 0/0")
      .wrong([](Context& context) {
        const auto mask = context.seams.replace<nn::TokenLossSeam>(&losses_times_mask);
        const auto mean = context.seams.replace<train::NormalisationSeam>(&share_of_mean);
        return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(mask,
                                                                                         mean);
      })
      .run<OneWithoutLabels>(20)
      .expect("objective", NAN)
      .expect("w", NAN)
      .caught_by("objective.weights")
      // Nothing is predicted from the end of a verse, so a micro-batch of one position has no label
      // once in 142 times: some 11 of these 1600, and no whole step of 8.
      .in_training({.steps = 200,
                    .needs = {{"seq_len", "1"},
                              {"batch_size", "8"},
                              {"micro_batch_size", "1"},
                              {"documents", "verse"}}});
}

}  // namespace faultline::lab
