#include <algorithm>
#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "nn/gpt2.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// Losses of tokens are asked for in rows [B, T]; here a row is as good as another.
Tensor flat(const Tensor& logits_BTV) { return reshape(logits_BTV, {-1, logits_BTV.shape()[-1]}); }

Tensor is_label(const Tensor& labels_N, int64_t classes) {
  const Tensor classes_V = arange(classes, 0, 1, labels_N.dtype());
  return equal(reshape(labels_N, {-1, 1}), reshape(classes_V, {1, -1}));
}
Tensor is_ignored(const Tensor& labels_N) { return less(labels_N, zeros({1}, labels_N.dtype())); }

// page: begin
// The wrong code: the formula of the loss as it stands, -log(softmax(logits)[label]).
Tensor log_of_softmax(const Tensor& logits_BTV, const Tensor& labels_BT) {
  const Tensor p_NV = softmax(flat(logits_BTV));
  const Tensor labels_N = reshape(labels_BT, {-1});
  const Tensor is_label_NV = is_label(labels_N, p_NV.size(1));
  const Tensor p_N = sum(where(is_label_NV, p_NV, zeros({1})), {1});
  return -log(where(is_ignored(labels_N), ones({1}), p_N));
}
// page: end

// The remedy by hand: the largest logit is subtracted, and log and exp cancel before they can
// underflow. Its log reads a sum of which one term is exp(0).
Tensor log_sum_exp(const Tensor& logits_BTV, const Tensor& labels_BT) {
  const Tensor logits_NV = flat(logits_BTV);
  const Tensor labels_N = reshape(labels_BT, {-1});
  const Tensor z_NV = logits_NV - amax(logits_NV, {1}, KeepDim::yes);
  const Tensor z_N = sum(where(is_label(labels_N, z_NV.size(1)), z_NV, zeros({1})), {1});
  return where(is_ignored(labels_N), zeros({1}), log(sum(exp(z_NV), {1})) - z_N);
}

// The wrong code: the mean over a micro-batch's labels, times its share of the step's labels. Right
// as long as there is a label.
Tensor share_of_mean(const Tensor& loss_sum, const train::MicroBatch& micro) {
  const auto labels = static_cast<double>(micro.batch.valid_tokens);
  const Tensor mean = loss_sum / full({}, labels);
  return mean * (labels / static_cast<double>(micro.step_labels));
}

// Labels ignored by a factor of 0, as many trainers do it: right, but 0 * NaN is NaN.
Tensor losses_times_mask(const Tensor& logits_BTV, const Tensor& labels_BT) {
  const Tensor labels_N = reshape(labels_BT, {-1});
  const Tensor none = zeros({1}, labels_N.dtype());
  const Tensor ignored_N = is_ignored(labels_N);
  const Tensor losses_N = cross_entropy_rows(flat(logits_BTV), where(ignored_N, none, labels_N));
  return losses_N * cast(logical_not(ignored_N), DType::f32);
}

// Logits [c, c + gap] and label 0: the loss is ln(1 + exp(gap)) for every c.
Tensor loss_of(const Tensor& logits_112) {
  return nn::language_model_loss(logits_112, zeros({1, 1}, DType::i32));
}

// A gap of 200, and a curve over gaps up to 120. The seed draws a c from 0 to 7.
void certain_of_the_other(const RunOptions& options, Metrics& metrics) {
  const auto c = static_cast<float>(RandomSequence(options.seed, 0).below(8, 0));
  const Tensor logits = tensor<float>({c, c + 200}, {1, 1, 2});
  set_requires_grad(logits);
  const Tensor loss = loss_of(logits);
  backward(loss);
  metrics.measure("loss", loss.item<double>());
  metrics.measure("slope", gradient(logits).to_vector<double>()[0]);

  Curve curve{"loss by gap between the logits", {}, {}};
  for (float gap = 0; gap <= 120; gap += 2) {
    const auto value = loss_of(tensor<float>({c, c + gap}, {1, 1, 2})).item<double>();
    if (!std::isfinite(value)) continue;  // nothing to draw
    curve.x.push_back(gap);
    curve.y.push_back(value);
  }
  metrics.add(curve);
}

// Three micro-batches a step, each of 4 places with logits (w, 0): 4, 2 and 2 of them have a label,
// which is the first class, and from step 10 on 4, none and 4.
class OneWithoutLabels : public TrainedExperiment {
 public:
  explicit OneWithoutLabels(const RunOptions&)
      : weight_("w", ones({1}), Decay::no), optimizer_({{{&weight_}, 0}}) {}

  void step(int64_t step) override {
    weight_.clear_gradient();
    const std::vector<int64_t> labels =
        step < kFirstWithout ? std::vector<int64_t>{4, 2, 2} : std::vector<int64_t>{4, 0, 4};
    double sum = 0;
    for (const int64_t count : labels) sum += micro_batch(step, count);
    optimizer_.step(0.5);
    objective_ = sum;
    if (!std::isfinite(sum)) return;  // nothing to draw
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(sum);
  }
  void report(Metrics& metrics) override {
    metrics.measure("objective", objective_);
    metrics.measure("w", weight_.value().item<double>());
    metrics.add(curve_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }

  double micro_batch(int64_t step, int64_t labels) {
    Batch batch;
    std::vector<int32_t> ids(kPlaces, kIgnoredLabel);
    std::fill_n(ids.begin(), labels, 0);
    batch.labels = tensor(ids, {1, kPlaces});
    batch.valid_tokens = labels;
    const Tensor logits_2 = weight_.value() * tensor<float>({1, 0});
    const Tensor loss_sum =
        nn::language_model_loss(expand(logits_2, {1, kPlaces, 2}), batch.labels);
    Context& context = Context::current();
    const Tensor objective = context.seams.call<train::NormalisationSeam>(
        loss_sum, train::MicroBatch{batch, kLabels, 3});
    context.events.emit(train::ObjectiveEvent{step, labels, loss_sum.item<double>(), objective});
    backward(objective);
    return objective.item<double>();
  }

  static constexpr int64_t kPlaces = 4;
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
           "documents. There the logged loss may still be a number at that step, and only the "
           "gradient norm NaN. Which step that is changes with the order of the data.",
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
      .remedy(
          [](Context& context) { return context.seams.replace<nn::TokenLossSeam>(&log_sum_exp); })
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
