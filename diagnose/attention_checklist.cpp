#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/context.h"
#include "core/error.h"
#include "diagnose/attention_checks.h"
#include "diagnose/model_runs.h"

namespace faultline::diagnose {

namespace {

struct DispatchCounts {
  int64_t calls = 0;
  int64_t wrong = 0;
  std::string first;  // what is wrong with the first of them
};

// What is wrong with a call; "" for nothing.
std::string complaint(const nn::DispatchRecord& record, const nn::AttentionPolicy& expected) {
  using Kind = nn::AttentionPolicy::Kind;
  const auto& asked = record.requested;
  if (asked.kind != expected.kind ||
      (asked.kind != Kind::automatic && asked.which != expected.which)) {
    return fmt::format("the policy was {}, not {}", to_string(asked), to_string(expected));
  }
  const bool obeys = asked.kind != Kind::require || record.chosen == asked.which;
  const bool refrains = asked.kind != Kind::forbid || record.chosen != asked.which;
  if (!obeys || !refrains)
    return fmt::format("{} ran under '{}'", name(record.chosen), to_string(asked));
  if (record.reason == "the first that can") {
    for (const auto& other : record.rejected) {
      if (other.reason.empty())
        return fmt::format("{} was passed over without a reason", name(other.which));
    }
  }
  return "";
}

DispatchCounts count_calls(CheckedModel& checked, const nn::AttentionPolicy& expected) {
  DispatchCounts counts;
  const auto listening =
      Context::current().events.subscribe<nn::DispatchEvent>([&](const nn::DispatchEvent& event) {
        ++counts.calls;
        const std::string complaint_of_it = complaint(event.record, expected);
        if (complaint_of_it.empty()) return;
        ++counts.wrong;
        if (counts.first.empty()) counts.first = complaint_of_it;
      });
  checked.logits({checked.text(checked.positions(), 0)});
  return counts;
}

bool weights_are_replaced() {
  for (const char* seam : Context::current().seams.replaced()) {
    if (std::string_view(seam) == nn::AttentionWeightsSeam::name) return true;
  }
  return false;
}

constexpr const char* kNoFlash =
    "the seam 'attention weights' is replaced, and flash has no weights to show it";

}  // namespace

AttentionCheck check_dispatch(nn::LanguageModel& model, const nn::AttentionPolicy& expected) {
  AttentionCheck check{.id = "dispatch",
                       .compared = "attention calls, and what was asked for (calls)",
                       .reason = "a record a layer, chosen as asked"};
  CheckedModel checked(model);
  const auto add = [&](const nn::AttentionPolicy& policy) {
    const DispatchCounts counts = count_calls(checked, policy);
    const int64_t missing = std::abs(checked.shape().num_layers - counts.calls);
    check.difference += static_cast<double>(counts.wrong + missing);
    if (!check.what.empty()) return;
    if (counts.wrong > 0) check.what = fmt::format("In a call {}.", counts.first);
    if (missing > 0) {
      check.what = fmt::format("{} layers made {} attention calls.", checked.shape().num_layers,
                               counts.calls);
    }
  };
  add(expected);
  for (const auto which : {nn::AttentionImplementation::math, nn::AttentionImplementation::flash}) {
    if (which == nn::AttentionImplementation::flash && weights_are_replaced()) continue;
    const nn::AttentionPolicy wanted = nn::AttentionPolicy::require(which);
    const auto replaced =
        Context::current().seams.replace<nn::AttentionPolicySeam>([wanted] { return wanted; });
    add(wanted);
  }
  if (!check.ok()) check.cause = "kernel.silent-fallback:slow-path";
  return check;
}

namespace {

AttentionCheck skipped(const std::string& id, const std::string& reason) {
  AttentionCheck check{.id = id};
  check.skipped = reason;
  return check;
}

// An error inside a check is a failure of what it checks.
AttentionCheck attempt(const std::string& id, const std::function<AttentionCheck()>& run) {
  try {
    AttentionCheck check = run();
    check.id = id;
    if (check.ok()) check.what.clear();
    return check;
  } catch (const InvalidArgument& error) {
    AttentionCheck check{.id = id, .compared = "what was computed, with an error"};
    check.difference = std::numeric_limits<double>::quiet_NaN();
    check.reason = "none may come";
    check.what = error.what();
    return check;
  }
}

AttentionCheck answers_of(nn::AttentionImplementation which) {
  const std::string id = fmt::format("parity.{}", name(which));
  if (which == nn::AttentionImplementation::flash && weights_are_replaced()) {
    return skipped(id, kNoFlash);
  }
  return attempt(id, [&] {
    return check_answers(id, framework_attention(nn::AttentionPolicy::require(which)));
  });
}

// Where a check of the model knows no cause, that of the answers is the best guess there is.
void share_causes(std::vector<AttentionCheck>& checks) {
  const auto found = std::find_if(checks.begin(), checks.end(), [](const AttentionCheck& check) {
    return check.failed() && !check.cause.empty();
  });
  if (found == checks.end()) return;
  const std::string cause = found->cause;
  for (AttentionCheck& check : checks) {
    if (check.failed() && check.cause.empty()) check.cause = cause;
  }
}

}  // namespace

std::vector<AttentionCheck> check_attention(nn::LanguageModel& model,
                                            const nn::AttentionPolicy& expected) {
  CheckedModel{model};  // throws where the model cannot be checked
  std::vector<AttentionCheck> checks;
  const auto add = [&](const std::string& id, const std::function<AttentionCheck()>& run) {
    checks.push_back(attempt(id, run));
  };
  const AttentionFunction attend = framework_attention();
  add("visibility", [&] { return check_visibility(attend); });
  checks.push_back(answers_of(nn::AttentionImplementation::math));
  checks.push_back(answers_of(nn::AttentionImplementation::flash));
  add("fresh-output", [&] { return check_fresh_output(attend); });
  add("varlen", [&] { return check_varlen(); });
  add("rope.angles", [&] { return check_rope_angles(model); });
  add("rope.shift", [&] { return check_rope_shift(model); });
  add("dispatch", [&] { return check_dispatch(model, expected); });
  add("causality", [&] { return check_causality(model); });
  add("padding", [&] { return check_padding_contents(model); });
  add("batched", [&] { return check_batched(model); });
  add("neighbours", [&] { return check_neighbours(model); });
  add("documents", [&] { return check_documents(model); });
  add("page-dtypes", [&] { return check_page_dtypes(model); });
  add("prefixes", [&] { return check_prefixes(); });
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::paged}) {
    const std::string suffix = kind == CacheKind::paged ? ".paged" : ".contiguous";
    add("cache-contents" + suffix, [&] { return check_cache_contents(model, kind); });
    add("canaries" + suffix, [&] { return check_canaries(model, kind); });
    add("cached" + suffix, [&] { return check_cached(model, kind); });
    add("generation" + suffix, [&] { return check_generation(model, kind); });
  }
  add("merge", [&] { return check_merge(model); });
  share_causes(checks);
  return checks;
}

}  // namespace faultline::diagnose
