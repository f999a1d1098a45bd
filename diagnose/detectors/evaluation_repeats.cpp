// evaluation.repeats: while a model is only evaluated, the same question has the same answer.
//
// Sees, between EvaluationBeginEvent and EvaluationEndEvent:
//   - launches of dropout, and of attention with dropout inside. Fires at the first with a
//   probability above 0: it makes the output
//     depend on a mask that neither the parameters nor the input determine. nn.dropout-in-eval.
//   - the losses of cross_entropy, and what they were computed from: all numbers that launches read
//     since the last losses and none of them wrote (weights, ids, labels, masks), ids and labels in
//     any case, and the numbers that masks, scales and fills carry as attributes. Fires when the
//     same numbers are given again and one loss differs, in any bit: every op gives the same bits
//     for the same input, whatever the threads. So launches in between drew numbers. Without a
//     dropout it can not say which, and names no cause.
// Of a large tensor of floats 4,096 elements are compared. Answers are forgotten at the first
// launch outside of an evaluation, so that a run of any length keeps few. A program that never
// evaluates the same text twice in a row is judged by its dropout.
// Silent: dropout in training, dropout of probability 0, and a program that samples masks on
// purpose (Monte Carlo dropout) and therefore does not announce an evaluation; other weights,
// another mask or other features under the same ids; numbers that the host draws, or a state that
// an evaluation leaves to the next, for nothing tells them from other input.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kCompared = 4096;  // of a tensor of floats

using Values = std::vector<double>;

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

uint64_t mixed(uint64_t hash, double value) {
  hash = (hash ^ std::bit_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

uint64_t mixed(uint64_t hash, const Values& values) {
  hash = mixed(hash, static_cast<double>(values.size()));
  for (const double value : values) hash = mixed(hash, value);
  return hash;
}

// An odd stride, so that it walks over all columns of a matrix.
int64_t stride_of(const TensorView& view) {
  return is_floating(view.dtype) ? view.numel() / kCompared | 1 : 1;
}

Values numbers(const MaskAttributes& mask) {
  return {mask.causal ? 1.0 : 0.0,
          static_cast<double>(mask.query_offset),
          mask.scale,
          static_cast<double>(mask.window),
          static_cast<double>(mask.prefix),
          static_cast<double>(mask.sinks)};
}

// The probability with which a launch drops elements.
double dropout_of(const Launch& launch) {
  const std::string_view op = launch.label.op;
  const Attributes& attributes = launch.args.attributes;
  if (op == "dropout") return attributes.as<DropoutAttributes>().p;
  return op == "flash_attention" ? attributes.as<FlashAttentionAttributes>().dropout.p : 0;
}

// The numbers that a launch carries as attributes, of those that programs vary.
Values settings_of(const Launch& launch) {
  const std::string_view op = launch.label.op;
  const Attributes& attributes = launch.args.attributes;
  if (op == "attention" || op == "masked_softmax") return numbers(attributes.as<MaskAttributes>());
  if (op == "flash_attention") {
    const auto flash = attributes.as<FlashAttentionAttributes>();
    Values values = numbers(flash.mask);
    values.push_back(flash.softcap);
    return values;
  }
  if (op == "affine") {
    const auto affine = attributes.as<AffineAttributes>();
    return {affine.scale, affine.offset};
  }
  if (op == "fill") return {attributes.as<FillAttributes>().value};
  return {};
}

// Memory that was written, as disjoint ranges.
class WrittenMemory {
 public:
  void add(ByteRange range) {
    auto next = ranges_.upper_bound(range.begin);
    if (next != ranges_.begin() && std::prev(next)->second > range.begin) --next;
    while (next != ranges_.end() && next->first < range.end) {
      range = {std::min(range.begin, next->first), std::max(range.end, next->second)};
      next = ranges_.erase(next);
    }
    ranges_.emplace(range.begin, range.end);
  }
  bool holds(const ByteRange& range) const {
    const auto next = ranges_.upper_bound(range.begin);
    return next != ranges_.begin() && std::prev(next)->second >= range.end;
  }

 private:
  std::map<const std::byte*, const std::byte*> ranges_;  // their ends by their beginnings
};

// What losses are computed from, as a hash.
class Question {
 public:
  void add(const Launch& launch) {
    const std::string_view op = launch.label.op;
    const bool has_text = op == "embedding" || op == "cross_entropy";
    for (int i = 0; i < launch.args.input_count; ++i) {
      const TensorView& input = launch.args.inputs[i];
      const bool is_text = has_text && i == 1;
      if (input.data == nullptr || (!is_text && written_.holds(byte_range(input)))) continue;
      hash_ = mixed(hash_, sample(input, stride_of(input)));
    }
    hash_ = mixed(hash_, settings_of(launch));
    for (const ByteRange& range : launch.writes()) written_.add(range);
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0;
  WrittenMemory written_;
};

struct Answer {
  uint64_t losses;  // as a hash
  double mean;
};

class EvaluationRepeats : public Watcher {
 public:
  EvaluationRepeats(Context& context, Findings& findings)
      : Watcher(context, findings, "evaluation.repeats") {
    on(&EvaluationRepeats::evaluation_begins);
    on(&EvaluationRepeats::evaluation_ends);
    on(&EvaluationRepeats::launched);
  }

 private:
  void evaluation_begins(const train::EvaluationBeginEvent&) {
    ++open_;
    looked();
  }
  void evaluation_ends(const train::EvaluationEndEvent&) {
    --open_;
    question_ = {};
  }

  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    if (open_ == 0) {
      answers_.clear();
      return;
    }
    const std::string_view op = launch.label.op;
    if (dropout_of(launch) > 0) acts(launch);
    if (dropped_) return;
    question_.add(launch);
    if (op != "cross_entropy") return;
    const uint64_t asked = std::exchange(question_, {}).hash();
    const Values losses = sample(launch.args.outputs[0]);
    if (!losses.empty()) judge(asked, {mixed(0, losses), mean_of(losses)});
  }

  void acts(const Launch& launch) {
    dropped_ = true;
    const char* module = launch.label.module;
    report("nn.dropout-in-eval", 0.98, "dropout",
           fmt::format("dropout of {} ran on {} elements{}{} while the model was evaluated",
                       dropout_of(launch), launch.args.outputs[0].numel(),
                       *module != 0 ? " in " : "", module));
  }

  void judge(uint64_t asked, const Answer& answer) {
    const auto [known, is_new] = answers_.emplace(asked, answer);
    const Answer& before = known->second;
    if (is_new || before.losses == answer.losses) return;
    report("", 0.9, "cross_entropy",
           fmt::format("the same text was evaluated twice with the same parameters, and its losses "
                       "differ (mean {:.9g}, then {:.9g}); no dropout ran: something else draws "
                       "numbers",
                       before.mean, answer.mean));
  }

  int open_ = 0;
  bool dropped_ = false;
  Question question_;
  std::unordered_map<uint64_t, Answer> answers_;
};

}  // namespace

DETECTOR(evaluation_repeats) {
  return {"evaluation.repeats",
          WatchLevel::light,
          {{"nn.dropout-in-eval",
            "Dropout acts although the model is only evaluated: the result depends on a random "
            "mask, and is worse than the model is.",
            "Pass dropout's probability only in training mode, and 0 in evaluation.",
            "No dropout is launched during an evaluation; two evaluations are equal bit by bit."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<EvaluationRepeats>(context, findings);
          }};
}

}  // namespace faultline::diagnose
