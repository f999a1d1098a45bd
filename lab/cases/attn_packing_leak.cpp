#include "autograd/functional.h"
#include "core/context.h"
#include "core/rng.h"
#include "lab/case.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the rows are packed with several documents, and the mask is causal and hides
// padding, as it was before anybody packed.
nn::Mask forget_documents(const Batch& batch) {
  return {.causal = true, .key_valid = batch.key_valid};
}
// page: end

constexpr int64_t kTokens = 4;
constexpr int32_t kEnd = 0;

// The remedy: the packed row says itself where a document ends. As many end tokens as stand before
// a position, so many documents do.
nn::Mask count_end_tokens(const Batch& batch) {
  std::vector<int32_t> tokens = batch.inputs.to_vector<int32_t>();
  const auto length = static_cast<size_t>(batch.inputs.size(1));
  std::vector<int32_t> documents(tokens.size(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i % length == 0) continue;
    documents[i] = documents[i - 1] + (tokens[i - 1] == kEnd ? 1 : 0);
  }
  return {.causal = true,
          .key_valid = batch.key_valid,
          .documents = tensor(documents, batch.inputs.shape())};
}

// A row of two documents of two tokens, the second of which ends it.
Batch two_documents() {
  Batch batch;
  batch.inputs = tensor<int32_t>({5, kEnd, 7, kEnd}, {1, kTokens});
  batch.labels = tensor<int32_t>({kEnd, kIgnoredLabel, kEnd, kIgnoredLabel}, {1, kTokens});
  batch.documents = tensor<int32_t>({0, 0, 1, 1}, {1, kTokens});
  batch.valid_tokens = 2;
  return batch;
}

// All scores are 0, so a position's output is the mean of the values that it sees.
Tensor attend(const RunOptions& options, const Batch& batch, const Tensor& v) {
  Context& context = Context::current();
  context.events.emit(train::BatchEvent{1, batch});
  const nn::Mask mask = context.seams.call<train::MaskSeam>(batch);
  const Tensor q = normal({1, 1, kTokens, 1}, 0, 1, options.seed, stream_of("queries"));
  return nn::attention(q, zeros({1, 1, kTokens, 1}), v, mask, {.scale = 1.0});
}

void packed_row(const RunOptions& options, Metrics& metrics) {
  const Batch batch = two_documents();
  const Tensor powers = tensor<float>({1, 2, 4, 8}, {1, 1, kTokens, 1});
  const auto out = attend(options, batch, powers).to_vector<double>();
  for (size_t i = 0; i < out.size(); ++i) metrics.measure("t" + std::to_string(i), out[i]);

  // The same with another text in the first document: the second should not notice.
  const Tensor moved = tensor<float>({101, 102, 4, 8}, {1, 1, kTokens, 1});
  const auto other = attend(options, batch, moved).to_vector<double>();
  metrics.measure("t3 moved by", other[3] - out[3]);

  const Tensor identity =
      cast(equal(reshape(arange(kTokens), {kTokens, 1}), arange(kTokens)), DType::f32);
  const Tensor weights = attend(options, batch, reshape(identity, {1, 1, kTokens, kTokens}));
  metrics.add(Grid{"attention weights", kTokens, kTokens, weights.to_vector<double>()});
}

}  // namespace

FAULT(attn_packing_leak) {
  Fault& fault = lab.fault(
      {.id = "attn.packing-leak",
       .title = "Documents packed into one row attend to each other",
       .domain = "attention",
       .mechanism =
           "Packing fills a row with several documents to waste no padding. A mask that is only "
           "causal lets each of them see all that come before it in the row. With equal scores and "
           "the values 1, 2, 4, 8 of two documents of two tokens the outputs are 1, 1.5, 2.333333 "
           "and 3.75 in place of 1, 1.5, 4 and 6: the second document is mixed with the first. "
           "Adding 100 to both values of the first document moves the last output by 2 x 100 / 4 = "
           "50; it should not move at all. Numbering positions anew in each document changes the "
           "scores, and still shows the other document.",
       .symptom =
           "Nothing crashes and the loss looks normal. It is a little higher than it could be, "
           "depends on which documents happened to share a row, and a fine-tuned model behaves "
           "differently when each example stands alone.",
       .truth =
           "The document of a position is part of the mask's predicate, like causality. Kernels "
           "that take the lengths of sequences cannot leak; a dense mask leaks unless it "
           "says which document each key belongs to.",
       .fix = "Give attention the document of every position (or the lengths), let a query see "
              "keys of its own document only, and predict nothing across a boundary.",
       .sources =
           {"transformers pull request 31629 (June 2024): packing without attention across "
            "examples, through positions and FlashAttention only. "
            "https://github.com/huggingface/transformers/pull/31629",
            "trl issue 805 (September 2023): do packed examples attend to each other? "
            "https://github.com/huggingface/trl/issues/805",
            "trl pull request 3526 (June 2025): packing passes sequence lengths so that examples "
            "do not contaminate each other. https://github.com/huggingface/trl/pull/3526"},
       .look_alikes =
           "attn.mask-broadcast gives weight to keys that attention's own mask forbids; here the "
           "mask that attention was told allows them, and it is the batch that disagrees. Labels "
           "that cross a boundary (predicting a document's first token from the one before) raise "
           "the loss as well, with attention in order.",
       .exercise =
           "Before you look at any mask: which single experiment on a trained model, with two "
           "documents in a row, shows the leak beyond doubt, and what must the result be without "
           "it?",
       .answer =
           "Replace the first document by another of the same length and compare the logits of the "
           "second, bit by bit. They must not change at all. Position numbers stay as they were, "
           "so nothing else can explain a difference."});

  // Verses are about 130 bytes: rows of 32 bytes cross from one into the next often.
  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<train::MaskSeam>(&forget_documents);
      })
      .remedy([](Context& context) {
        return context.seams.replace<train::MaskSeam>(&count_end_tokens);
      })
      .run(&packed_row)
      .expect_within("t2", 7.0 / 3, 1e-6, "thirds are no f32 numbers")
      .expect("t3", 3.75)
      .expect("t3 moved by", 50)
      .caught_by("attention.documents")
      .in_training({.steps = 200, .needs = {{"pack", "true"}, {"documents", "verse"}}});
}

}  // namespace faultline::lab
