#include "diagnose/attention_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace faultline::diagnose {
namespace {

// The largest difference; NaN where one side is NaN and the other is not. Two NaN agree: a mistake
// may predict them.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;  // equal infinities
    const double apart = std::abs(a[i] - b[i]);
    if (!(apart <= largest)) largest = apart;
    if (std::isnan(apart)) return apart;
  }
  return largest;
}

// An answer is a mean of values, each below 5 here, by weights that come from a sum over D products
// and one over K weights, in f32 at least: their roundings stay below a hundred units. A score of
// 600 loses 600 units more, of which exp makes a relative error of the weight. 16-bit kernels round
// the weights and the answer to their dtype too, and give each rounding a part of its own.
double bound_of(const AttentionProbe& probe, DType dtype) {
  constexpr double kLargestValue = 5;
  const double f32_units = probe.name == "large-scores" ? 700 : 104;
  const double sixteen_bit = dtype == DType::f16    ? 4 * 0x1p-11
                             : dtype == DType::bf16 ? 4 * 0x1p-8
                                                    : 0;
  return kLargestValue * (f32_units * 0x1p-23 + sixteen_bit);
}

// What a mistake predicts, or the right answer, for every probe that was answered.
class Answers {
 public:
  Answers(const std::vector<AttentionProbe>& probes, const std::map<std::string, Tensor>& given) {
    for (const AttentionProbe& probe : probes) {
      const auto found = given.find(probe.name);
      if (found == given.end()) continue;
      const Tensor& y = found->second;
      const Shape shape{probe.batch, probe.heads, probe.queries, probe.head_size};
      require(y.shape() == shape && is_floating(y.dtype()) && y.dtype() != DType::c128,
              "attention probes: the answer '{}' must be {} of f64, f32, f16 or bf16, got {}",
              probe.name, shape, y);
      items_.push_back({&probe, y.to_vector<double>(), bound_of(probe, y.dtype())});
    }
  }

  struct Item {
    const AttentionProbe* probe;
    std::vector<double> y;
    double bound;
  };
  const std::vector<Item>& items() const { return items_; }

  static double error(const Item& item, const AttentionRules& rules) {
    return difference(item.y, compute_attention(*item.probe, rules));
  }
  static bool agrees(const Item& item, const AttentionRules& rules) {
    return error(item, rules) <= item.bound;
  }

 private:
  std::vector<Item> items_;
};

void check_names(const std::vector<AttentionProbe>& probes,
                 const std::map<std::string, Tensor>& answers) {
  for (const auto& answer : answers) {
    const std::string& name = answer.first;
    const bool known = std::any_of(probes.begin(), probes.end(),
                                   [&](const AttentionProbe& probe) { return probe.name == name; });
    require(known, "attention probes: there is no probe '{}'; name each answer after its probe",
            name);
  }
  require(!answers.empty(),
          "attention probes: there is no answer; store one tensor a probe, named after it");
}

bool explains_all(const Answers& given, const AttentionRules& rules) {
  return std::all_of(given.items().begin(), given.items().end(),
                     [&](const Answers::Item& item) { return Answers::agrees(item, rules); });
}

// A program with a wrong mask often has its own habit with a row that sees nothing, and with what
// hidden values hold. The habit is not the mistake.
bool explains_beside_habits(const Answers& given, AttentionRules rules) {
  for (const EmptyRow row : {EmptyRow::zeros, EmptyRow::mean_of_values, EmptyRow::nan}) {
    rules.empty_row = row;
    for (const auto& [skips, nan_is_zero] :
         {std::pair{true, false}, {false, false}, {false, true}}) {
      rules.skips_forbidden = skips;
      rules.nan_is_zero = nan_is_zero;
      if (explains_all(given, rules)) return true;
    }
  }
  return false;
}

void name_beside_habits(const Answers& given, AttentionVerdict& verdict) {
  for (const AttentionMistake& mistake : attention_mistakes()) {
    if (!explains_beside_habits(given, mistake.rules)) continue;
    verdict.named.push_back(&mistake);
    return;
  }
}

}  // namespace

const std::vector<AttentionMistake>& attention_mistakes() {
  static const std::vector<AttentionMistake> mistakes = {
      {"attn.mask-broadcast:inverted",
       "The mask keeps what it should hide.",
       "Turn the mask round; true means visible here, hidden in nn.MultiheadAttention.",
       {.mask = MaskUse::inverted}},
      {"attn.mask-broadcast:query-axis",
       "The padding mask lies along the queries.",
       "Give padding as [B, 1, 1, K].",
       {.padding = PaddingAxis::query}},
      {"attn.mask-broadcast:b-eq-t",
       "A padding mask [B, K] is read as [Q, K].",
       "Give padding as [B, 1, 1, K].",
       {.padding = PaddingAxis::batch_as_query}},
      {"attn.mask-broadcast:b-eq-h",
       "A mask [B, Q, K] is read as [H, Q, K].",
       "Give it as [B, 1, Q, K].",
       {.padding = PaddingAxis::batch_as_head}},
      {"attn.mask-broadcast:additive-bool",
       "The hidden keys get 1 added to their scores.",
       "Add minus infinity there, or select.",
       {.mask = MaskUse::add_forbidden}},
      {"attn.mask-broadcast:additive-float",
       "The visible keys get 1 added to their scores.",
       "Add 0 where visible and minus infinity where not.",
       {.mask = MaskUse::add_keep}},
      {"attn.mask-multiply:pre",
       "Hidden scores are multiplied to 0, which is not hidden.",
       "Set them to minus infinity before the softmax.",
       {.mask = MaskUse::multiply_scores}},
      {"attn.mask-multiply:post",
       "Weights are masked after the softmax and do not sum to 1.",
       "Mask before the softmax.",
       {.mask = MaskUse::multiply_weights}},
      {"", "No mask is applied at all.", "Pass the mask on.", {.mask = MaskUse::none}},
      {"", "Padding is ignored.", "Pass the padding mask on.", {.padding = PaddingAxis::ignored}},
      {"attn.causal-align",
       "Causality counts from the first query, whatever the cache holds.",
       "Align the last query with the last key.",
       {.aligned_top_left = true}},
      {"attn.window-off-by-one",
       "The window holds one key too many.",
       "A window of W holds the query and the W - 1 keys before it.",
       {.wider_window = 1}},
      {"attn.window-off-by-one",
       "The window holds one key too few.",
       "A window of W holds the query and the W - 1 keys before it.",
       {.wider_window = -1}},
      {"attn.packing-leak",
       "Packed documents see each other.",
       "Let a query see the keys of its own document only.",
       {.one_document = true}},
      {"attn.gqa-order",
       "Key heads are tiled where they should be repeated.",
       "Query head h reads key head h / (H / G).",
       {.heads_tiled = true}},
      {"attn.scale-twice",
       "Scores are divided by sqrt(D) twice.",
       "Scale once.",
       {.scale_uses = 2}},
      {"attn.scale-twice",
       "Scores are never divided by sqrt(D).",
       "Scale by 1 / sqrt(D).",
       {.scale_uses = 0}},
      {"kernel.silent-fallback:dropped-feature",
       "The soft cap is left out.",
       "Apply softcap * tanh(score / softcap) before the mask, on every path.",
       {.softcap_left_out = true}},
      {"kernel.silent-fallback:dropped-feature",
       "The window is left out.",
       "Pass the window on, on every path.",
       {.wider_window = int64_t{1} << 40}},
      {"kernel.silent-fallback:dropped-feature",
       "The prefix is left out.",
       "Let every query see the first keys, on every path.",
       {.prefix_left_out = true}},
      {"kernel.silent-fallback:dropped-feature",
       "The sinks are left out.",
       "Keep the first keys visible beyond the window, on every path.",
       {.sinks_left_out = true}},
      {"kernel.silent-fallback:dropped-feature",
       "Beyond 64 keys causality counts and nothing else of the mask.",
       "Pass the whole mask on, on the path of long texts too.",
       {.only_causal_beyond = 64}},
      {"softmax.overflow:naive",
       "exp is taken of scores as they stand, which overflows.",
       "Subtract the largest score of the row first.",
       {.subtracts_largest = false}},
      {"softmax.masked-row",
       "A row that sees no key becomes NaN.",
       "Give zeros there.",
       {.empty_row = EmptyRow::nan}},
      {"softmax.masked-row",
       "A row that sees no key becomes the mean of all values.",
       "Hide with minus infinity and give zeros where nothing is left.",
       {.empty_row = EmptyRow::mean_of_values}},
      {"attn.nan-in-masked-v",
       "A hidden value takes part with weight 0, and 0 times NaN is NaN.",
       "Skip hidden keys, or fill their values with 0.",
       {.skips_forbidden = false}},
      {"",
       "Weights and their sum are rounded to bfloat16.",
       "Sum in f32.",
       {.sums_in_bfloat16 = true}},
  };
  return mistakes;
}

int64_t AttentionVerdict::wrong() const {
  return std::count_if(probes.begin(), probes.end(),
                       [](const ProbeVerdict& p) { return p.answered && !p.right(); });
}

int64_t AttentionVerdict::answered() const {
  return std::count_if(probes.begin(), probes.end(),
                       [](const ProbeVerdict& p) { return p.answered; });
}

std::vector<std::string> AttentionVerdict::missing() const {
  std::vector<std::string> names;
  for (const ProbeVerdict& probe : probes) {
    if (!probe.answered && probe.probe != "softcap") names.push_back(probe.probe);
  }
  return names;
}

AttentionVerdict judge_attention(const std::vector<AttentionProbe>& probes,
                                 const std::map<std::string, Tensor>& answers) {
  check_names(probes, answers);
  const Answers given(probes, answers);
  AttentionVerdict verdict;
  std::vector<const Answers::Item*> wrong;
  for (const AttentionProbe& probe : probes) verdict.probes.push_back({probe.name, probe.asks});
  for (const Answers::Item& item : given.items()) {
    const auto place = std::find_if(verdict.probes.begin(), verdict.probes.end(),
                                    [&](const auto& p) { return p.probe == item.probe->name; });
    place->answered = true;
    place->error = Answers::error(item, {});
    place->bound = item.bound;
    if (!place->right()) wrong.push_back(&item);
  }
  if (wrong.empty()) return verdict;
  std::vector<const AttentionMistake*> of_the_wrong;  // those that explain all wrong answers
  for (const AttentionMistake& mistake : attention_mistakes()) {
    const int64_t count = std::count_if(wrong.begin(), wrong.end(), [&](const auto* item) {
      return Answers::agrees(*item, mistake.rules);
    });
    if (count > verdict.nearest_explains) {
      verdict.nearest = &mistake;
      verdict.nearest_explains = count;
    }
    if (count == std::ssize(wrong)) of_the_wrong.push_back(&mistake);
    if (explains_all(given, mistake.rules)) verdict.named.push_back(&mistake);
  }
  if (verdict.named.empty()) name_beside_habits(given, verdict);
  // Made on some paths only, so that answers are right that should be wrong with it.
  if (verdict.named.empty() && of_the_wrong.size() == 1) verdict.named = of_the_wrong;
  return verdict;
}

std::map<std::string, Tensor> probe_tensors(const std::vector<AttentionProbe>& probes) {
  std::map<std::string, Tensor> tensors;
  for (const AttentionProbe& probe : probes) {
    const int64_t B = probe.batch;
    const int64_t D = probe.head_size;
    tensors[probe.name + ".q"] = tensor(probe.q, {B, probe.heads, probe.queries, D});
    tensors[probe.name + ".k"] = tensor(probe.k, {B, probe.key_heads, probe.keys, D});
    tensors[probe.name + ".v"] = tensor(probe.v, {B, probe.key_heads, probe.keys, D});
    Tensor mask = empty({B, 1, probe.queries, probe.keys}, DType::boolean);
    const std::vector<uint8_t> visible = probe.mask();
    std::copy(visible.begin(), visible.end(), mask.mutable_data<bool>().begin());
    tensors[probe.name + ".mask"] = mask;
  }
  return tensors;
}

}  // namespace faultline::diagnose
