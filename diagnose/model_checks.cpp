#include <algorithm>
#include <cmath>

#include "autograd/functional.h"
#include "core/context.h"
#include "diagnose/attention_checks.h"
#include "diagnose/model_runs.h"
#include "nn/left_padding.h"
#include "nn/lora.h"
#include "train/prompt_loss.h"
#include "train/trainer.h"

// Shapes: B batch, T positions, K keys.
namespace faultline::diagnose {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

Tensor valid_to(const std::vector<int64_t>& lengths, int64_t positions) {
  Tensor valid = empty({std::ssize(lengths), positions}, DType::boolean);
  size_t i = 0;
  for (bool& each : valid.mutable_data<bool>()) {
    const auto b = static_cast<int64_t>(i) / positions;
    each = static_cast<int64_t>(i++) % positions < lengths[static_cast<size_t>(b)];
  }
  return valid;
}

void keep_larger(AttentionCheck& check, double difference, const std::string& what) {
  if (difference <= check.difference || std::isnan(check.difference)) return;
  check.difference = difference;
  check.what = what;
}

}  // namespace

AttentionCheck check_causality(nn::LanguageModel& model) {
  AttentionCheck check{.id = "causality",
                       .compared = "logits before token t, and with another token t (bits)",
                       .reason = kSameBits};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const auto text = checked.text(T, 0);
  const Tensor before = checked.logits({text});
  for (const int64_t t : {int64_t{1}, T / 2, T - 1}) {
    const Tensor after = checked.logits({checked.changed(text, t)});
    const double apart =
        largest_difference(positions_of(before, 0, 0, t), positions_of(after, 0, 0, t));
    keep_larger(check, apart, fmt::format("Token {} changed logits before it.", t));
  }
  return check;
}

AttentionCheck check_padding_contents(nn::LanguageModel& model) {
  AttentionCheck check{.id = "padding",
                       .compared = "logits of text, and with other tokens as padding (bits)",
                       .reason = kSameBits};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const int64_t length = T - 3;
  const auto left = [&](uint64_t number) {  // padding before the text
    auto row = checked.text(3, number);
    const auto text = checked.text(length, 0);
    row.insert(row.end(), text.begin(), text.end());
    return row;
  };
  const auto right = [&](uint64_t number) {
    auto row = checked.text(length, 0);
    const auto padding = checked.text(3, number);
    row.insert(row.end(), padding.begin(), padding.end());
    return row;
  };
  const nn::Mask right_mask{.key_valid = valid_to({length, T}, T), .documents = {}};
  const auto other = checked.text(T, 9);
  const double apart_right =
      largest_difference(positions_of(checked.logits({right(1), other}, right_mask), 0, 0, length),
                         positions_of(checked.logits({right(2), other}, right_mask), 0, 0, length));
  keep_larger(check, apart_right, "Tokens behind a row's end changed its logits.");

  const nn::Mask left_mask{.key_valid = nn::LeftPadding({length, T}).key_valid(T), .documents = {}};
  const double apart_left =
      largest_difference(positions_of(checked.logits({left(1), other}, left_mask), 0, 3, T),
                         positions_of(checked.logits({left(2), other}, left_mask), 0, 3, T));
  keep_larger(check, apart_left, "Tokens before a row's beginning changed its logits.");
  return check;
}

AttentionCheck check_batched(nn::LanguageModel& model) {
  AttentionCheck check{.id = "batched",
                       .compared = "logits of a row padded in a batch, and alone",
                       .reason = kRoundingReason};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const std::vector<int64_t> lengths = {T - 3, T, T - 1};
  const nn::LeftPadding padding(lengths);
  std::vector<int32_t> tokens;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const auto text = checked.text(lengths[b], b);
    tokens.insert(tokens.end(), static_cast<size_t>(padding.pads()[b]), 0);
    tokens.insert(tokens.end(), text.begin(), text.end());
  }
  const Tensor together =
      checked.forward({.tokens_BT = tensor(tokens, {std::ssize(lengths), T}),
                       .mask = {.key_valid = padding.key_valid(T), .documents = {}},
                       .positions_BT = padding.positions(0, T)});
  for (size_t b = 0; b < lengths.size(); ++b) {
    const Tensor alone = checked.logits({checked.text(lengths[b], b)});
    check.bound = std::max(check.bound, checked.rounding(alone));
    const double apart =
        largest_difference(positions_of(together, static_cast<int64_t>(b), padding.pads()[b], T),
                           positions_of(alone, 0, 0, lengths[b]));
    keep_larger(check, apart, fmt::format("Row {} is another one in the batch.", b));
  }
  return check;
}

AttentionCheck check_neighbours(nn::LanguageModel& model) {
  AttentionCheck check{.id = "neighbours",
                       .compared = "logits of a row, and among other rows (bits)",
                       .reason = kSameBits};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  // As many rows as heads, and as many as positions: sizes that a mask may be confused by.
  for (const int64_t B : {std::min<int64_t>(checked.shape().num_heads, T) + 1, T}) {
    const auto batch = [&](uint64_t others) {
      Rows rows;
      for (int64_t b = 0; b < B; ++b) {
        rows.push_back(checked.text(T, b == 1 ? 1 : others + static_cast<uint64_t>(b)));
      }
      return checked.logits(rows);
    };
    const double apart = largest_difference(positions_of(batch(100), 1, 0, T),  //
                                            positions_of(batch(200), 1, 0, T));
    keep_larger(check, apart, fmt::format("In a batch of {} a row depends on the others.", B));
  }
  return check;
}

AttentionCheck check_documents(nn::LanguageModel& model) {
  AttentionCheck check{.id = "documents",
                       .compared = "logits of a document, and behind another one (bits)",
                       .reason = kSameBits};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const int64_t first = T / 2;
  bool leaks = false;        // by the mask; else by whoever applies it
  bool only_causal = false;  // which is a tensor
  const auto second_logits = [&](uint64_t number) {
    auto row = checked.text(first, number);
    const auto second = checked.text(T - first, 0);
    row.insert(row.end(), second.begin(), second.end());
    std::vector<int32_t> documents(static_cast<size_t>(T), 0);
    std::fill(documents.begin() + first, documents.end(), 1);
    Batch batch;
    batch.inputs = tensor(row, {1, T});
    batch.labels = batch.inputs;
    batch.documents = tensor(documents, {1, T});
    batch.valid_tokens = T;
    const nn::Mask mask = Context::current().seams.call<train::MaskSeam>(batch);
    leaks = nn::VisiblePairs(mask, {1, 1, T, T})(0, 0, first, first - 1);
    only_causal = is_causal_tensor(mask, T);
    return positions_of(checked.logits({row}, mask), 0, first, T);
  };
  check.difference = largest_difference(second_logits(1), second_logits(2));
  if (check.ok()) return check;
  check.what = "The second document sees the first.";
  check.proven = leaks;
  if (leaks) check.cause = only_causal ? "sdpa.fallback" : "attn.packing-leak";
  return check;
}

AttentionCheck check_micro_batches(nn::LanguageModel& model) {
  AttentionCheck check{.id = "micro-batches",
                       .compared = "logits of a batch in training, and behind another one (bits)",
                       .reason = kSameBits};
  CheckedModel checked(model);
  const int64_t T = checked.positions() / 2;  // room for two of them
  Context& context = Context::current();
  const auto batch_of = [&](uint64_t number) {
    Batch batch;
    batch.inputs = tensor(checked.text(T, number), {1, T});
    batch.labels = batch.inputs;
    batch.documents = zeros({1, T}, DType::i32);
    batch.valid_tokens = T;
    return batch;
  };
  const auto forward = [&](const Batch& batch) {
    const Scoped<bool> on(context.gradients, true);
    return context.seams.call<train::ForwardSeam>(model, batch).detach();
  };
  forward(batch_of(1));
  const Batch second = batch_of(2);
  check.difference = largest_difference(
      forward(second), model(second.inputs, context.seams.call<train::MaskSeam>(second)));
  if (check.ok()) return check;
  check.what = "A batch finds what an earlier one left.";
  check.cause = "kv.micro-batch";
  return check;
}

// ---- gradients ----------------------------------------------------------------------------------

namespace {

// The gradient norm of the mean loss of a text, with the whole forward pass kept.
double gradient_norm(nn::LanguageModel& model, const std::vector<int32_t>& text) {
  const int64_t T = std::ssize(text) - 1;
  const std::span<const int32_t> tokens(text);
  const Tensor inputs_BT = tensor(tokens.first(static_cast<size_t>(T)), {1, T});
  const Tensor labels_BT = tensor(tokens.subspan(1), {1, T});
  model.clear_gradients();
  const Scoped<bool> on(Context::current().gradients, true);
  backward(nn::language_model_loss(model(inputs_BT, nn::Mask{}), labels_BT) *
           (1.0 / static_cast<double>(T)));
  double sum = 0;
  for (const Parameter* parameter : nn::trainable_parameters(model)) {
    const Tensor gradient = parameter->gradient();
    if (!gradient.defined()) continue;
    for (const double x : gradient.to_vector<double>()) sum += x * x;
  }
  model.clear_gradients();
  return std::sqrt(sum);
}

}  // namespace

AttentionCheck check_recomputed(nn::LanguageModel& model) {
  AttentionCheck check{.id = "recomputed",
                       .compared = "gradient norm of segments computed anew, and kept",
                       .reason = kRoundingReason};
  CheckedModel checked(model);
  const auto text = checked.text(checked.positions(), 0);
  const double kept = gradient_norm(model, text);
  const Scoped<bool> on(Context::current().gradients, true);
  check.difference = std::abs(train::prompt_loss(model, text).gradient_norm - kept);
  check.bound = checked.rounding(tensor<float>({static_cast<float>(kept)}));
  if (check.ok()) return check;
  check.what = "The pass that is computed anew sees other keys.";
  check.cause = "kv.dtype-reinterpret:checkpoint-append";
  return check;
}

}  // namespace faultline::diagnose
