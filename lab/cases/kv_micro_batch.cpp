#include <memory>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"
#include "train/trainer.h"

// Shapes: B batch, T positions, K slots so far, G key heads, D head size.
namespace faultline::lab {
namespace {

// A cache as programs write it without checks: what comes is put behind what is there. Rounds to
// `dtype`, and keeps values without history, for a second backward pass through them would fail.
class GrowingCache : public nn::KvCache {
 public:
  explicit GrowingCache(DType dtype = DType::f32) : dtype_(dtype) {}

  int64_t length() const override { return length_; }
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) override {
    const auto number = static_cast<size_t>(layer);
    if (number >= layers_.size()) layers_.resize(number + 1);
    All& kept = layers_[number];
    const All all{joined(kept.k_BGKD, k_BGTD), joined(kept.v_BGKD, v_BGTD)};
    kept = {all.k_BGKD.detach(), all.v_BGKD.detach()};
    if (layer == 0) growing_to_ = length_ + k_BGTD.size(2);
    return all;
  }
  void end_pass() { length_ = growing_to_; }

 private:
  Tensor joined(const Tensor& kept, const Tensor& given) const {
    const Tensor stored = cast(cast(given, dtype_), given.dtype());
    return kept.defined() ? cat(std::vector<Tensor>{kept, stored}, 2) : stored;
  }

  DType dtype_;
  int64_t length_ = 0;
  int64_t growing_to_ = 0;
  std::vector<All> layers_;
};

Tensor behind(const Tensor& before, const Tensor& now) {
  return before.defined() ? cat(std::vector<Tensor>{before, now}, 1) : now;
}

// A model's forward pass with a cache, as in generation: the mask grows with the cache.
Tensor run_with(GrowingCache& cache, nn::Mask& seen, nn::LanguageModel& model, const Batch& batch) {
  nn::Mask mask = Context::current().seams.call<train::MaskSeam>(batch);
  mask.query_offset = cache.length();
  if (mask.documents.defined()) mask.documents = behind(seen.documents, mask.documents);
  if (mask.key_valid.defined()) mask.key_valid = behind(seen.key_valid, mask.key_valid);
  seen = mask;
  Tensor logits =
      model.forward({.tokens_BT = batch.inputs, .mask = std::move(mask), .cache = &cache});
  cache.end_pass();
  return logits;
}

// page: begin
// The wrong code: the cache is emptied where the gradients are cleared, once a step. A step has
// several micro-batches, and each finds what the last one left.
struct CachedForward {
  DType dtype = DType::f32;
  int64_t step = -1;
  GrowingCache cache = GrowingCache();
  nn::Mask seen;

  Tensor operator()(nn::LanguageModel& model, const Batch& batch) {
    const Context& context = Context::current();
    if (!context.gradients) return train::ForwardSeam::standard(model, batch);
    if (step != context.step) {
      step = context.step;
      cache = GrowingCache(dtype);
      seen = {};
    }
    return run_with(cache, seen, model, batch);
  }
};
// page: end

Plant keep_for_a_step(DType dtype) {
  return [dtype](Context& context) {
    return context.seams.replace<train::ForwardSeam>(CachedForward{.dtype = dtype});
  };
}

// The remedy: a cache of its own for each micro-batch, where there must be one.
Tensor run_with_own_cache(nn::LanguageModel& model, const Batch& batch) {
  GrowingCache cache;
  nn::Mask seen;
  return run_with(cache, seen, model, batch);
}

// A model of one head whose scores are all 0, and whose values are the tokens: the result of a
// position is the mean of the tokens that it sees.
class MeanOfTokens : public nn::LanguageModel {
 public:
  explicit MeanOfTokens(uint64_t seed) : seed_(seed), key_(seed) {}
  Tensor forward(const nn::ModelInput& input) override {
    const Shape heads{input.tokens_BT.size(0), 1, input.tokens_BT.size(1), 1};
    const Tensor q = normal(heads, 0, 1, seed_, stream_of("queries"));
    const Tensor v = reshape(cast(input.tokens_BT, DType::f32), heads);
    nn::KvCache::All all{zeros(heads), v};
    if (input.cache != nullptr) all = input.cache->append(0, all.k_BGKD, all.v_BGKD);
    return nn::attention(q, all.k_BGKD, all.v_BGKD, input.mask, {.scale = 1.0});
  }
  nn::ModelShape model_shape() const override { return {}; }
  nn::DropoutKey& dropout_key() override { return key_; }

 private:
  uint64_t seed_;
  nn::DropoutKey key_;
};

Batch micro_batch(int32_t first, int32_t second) {
  Batch batch;
  batch.inputs = tensor<int32_t>({first, second}, {1, 2});
  batch.labels = tensor<int32_t>({second, kIgnoredLabel}, {1, 2});
  batch.documents = tensor<int32_t>({0, 0}, {1, 2});
  batch.valid_tokens = 1;
  return batch;
}

// A step of two micro-batches, of the tokens 1, 2 and 4, 8.
void two_micro_batches(const RunOptions& options, Metrics& metrics) {
  Context& context = Context::current();
  MeanOfTokens model(options.seed);
  std::vector<double> outputs;
  for (const Batch& batch : {micro_batch(1, 2), micro_batch(4, 8)}) {
    context.events.emit(train::BatchEvent{1, batch});
    const Tensor out = context.seams.call<train::ForwardSeam>(model, batch);
    const double sum = static_cast<double>(batch.valid_tokens);
    context.events.emit(train::ObjectiveEvent{1, batch.valid_tokens, sum, zeros({1})});
    for (const double value : out.to_vector<double>()) outputs.push_back(value);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    metrics.measure("t" + std::to_string(i), outputs[i]);
  }
  metrics.add(Curve{"output by position in the step", {0, 1, 2, 3}, outputs});
}

}  // namespace

FAULT(kv_micro_batch) {
  Fault& fault = lab.fault(
      {.id = "kv.micro-batch",
       .title = "A key-value cache outlives a micro-batch",
       .domain = "attention",
       .seed = "004 2.2",
       .mechanism =
           "A forward pass with a cache appends its keys and values and attends to all that are "
           "stored. With gradient accumulation a step has several forward passes. If the cache is "
           "emptied once a step, with the gradients, the second micro-batch attends to the first, "
           "which is another text. With equal scores and values 1, 2 and then 4, 8 the second "
           "gives (1 + 2 + 4) / 3 = 2.333333 and 15 / 4 = 3.75 in place of 4 and 6. Micro-batch n "
           "attends to n times as many keys as it has tokens; without accumulation all is well.",
       .symptom =
           "The loss depends on micro_batch_size, which should change rounding only. Memory and "
           "time grow from one micro-batch to the next within a step. Turning accumulation off "
           "mends it, and so the blame falls on accumulation or on mixed precision.",
       .article_says = "Accumulating in f16 and bf16 spreads rounding errors through the cache; "
                       "keep all of it in bf16.",
       .truth =
           "A stored key is rounded once, and nothing spreads: a cache has a rounding error of "
           "2^-9 whatever the number of micro-batches. What reaches the next micro-batch is the "
           "cache itself. With all of it in bf16 the figures are the same, as the claimed run "
           "shows.",
       .fix = "Train without a cache (use_cache = False): all keys of a sequence are there anyway. "
              "Where there must be one, make it for one forward pass. Refuse to append while "
              "gradients are on.",
       .sources =
           {"transformers pull request 9596 (January 2021): the reviewers' rule that use_cache be "
            "off in training. https://github.com/huggingface/transformers/pull/9596",
            "transformers issue 28056 (December 2023): training with a cache that is filled again. "
            "https://github.com/huggingface/transformers/issues/28056",
            "OpenTau issue 202 (April 2026): a cache that is written during training, and the "
            "order that alone keeps it right. https://github.com/TensorAuto/OpenTau/issues/202"},
       .look_alikes =
           "accum.normalisation also makes the loss depend on micro_batch_size, but every logit is "
           "right. attn.packing-leak mixes texts of one row; here they come from other batches. A "
           "checkpointed layer that appends again when it is computed anew (kv.dtype-reinterpret: "
           "checkpoint-append) changes the backward pass only.",
       .exercise =
           "A step has 4 micro-batches of 32 tokens and this fault. How many keys does the last "
           "position of the step attend to, and how many of them are its own text?",
       .answer = "128, of which 32 are its own: three quarters of what it may look at is others' "
                 "text."});
  fault.only_variant()
      .wrong(keep_for_a_step(DType::f32))
      .remedy([](Context& context) {
        return context.seams.replace<train::ForwardSeam>(&run_with_own_cache);
      })
      .claimed("keep the whole cache in bf16", keep_for_a_step(DType::bf16))
      .run(&two_micro_batches)
      .expect_within("t2", 7.0 / 3, 1e-6, "thirds are no f32 numbers")
      .expect("t3", 3.75)
      .caught_by("cache.length")
      .in_training({.steps = 200, .needs = {{"family", "llama"}, {"micro_batch_size", "2"}}});
}

}  // namespace faultline::lab
