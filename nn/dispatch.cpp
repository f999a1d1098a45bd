#include "nn/dispatch.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/context.h"

namespace faultline::nn {
namespace {

using Implementation = AttentionImplementation;
using Kind = AttentionPolicy::Kind;

// ---- the table ----------------------------------------------------------------------------------

// Something that an implementation does not do.
struct Rule {
  bool (*refuses)(const AttentionCall& call);
  std::string (*reason)(const AttentionCall& call);
};

constexpr Rule kFlashRules[] = {
    {[](const AttentionCall& call) { return call.weights_are_replaced; },
     [](const AttentionCall&) -> std::string {
       return "the seam 'attention weights' is replaced, and flash has no weights to show it";
     }},
    {[](const AttentionCall& call) {
       return call.dtype != DType::f32 && call.dtype != DType::f16 && call.dtype != DType::bf16;
     },
     [](const AttentionCall& call) {
       return fmt::format("flash computes in f32, f16 or bf16, got {}; cast the inputs",
                          faultline::name(call.dtype));
     }},
    {[](const AttentionCall& call) { return call.mask.keep.defined(); },
     [](const AttentionCall& call) {
       return fmt::format(
           "the mask is a keep tensor {}; flash takes causal, window, prefix, sinks, padding and "
           "documents",
           call.mask.keep);
     }},
    {[](const AttentionCall& call) { return call.mask.bias.defined(); },
     [](const AttentionCall& call) {
       return fmt::format("the mask adds a bias tensor {}; flash adds none", call.mask.bias);
     }},
    {[](const AttentionCall& call) { return call.k_BGKD != call.v_BGKE; },
     [](const AttentionCall& call) {
       return fmt::format("keys {} and values {} differ in size; flash takes one head size",
                          call.k_BGKD, call.v_BGKE);
     }},
    {[](const AttentionCall& call) { return numel(call.q_BHQD) == 0 || numel(call.k_BGKD) == 0; },
     [](const AttentionCall& call) {
       return fmt::format("queries {} and keys {} leave nothing to tile", call.q_BHQD, call.k_BGKD);
     }},
};

struct Candidate {
  Implementation which;
  std::span<const Rule> rules;  // the first that refuses gives the reason
};

// In the order in which `auto` tries them; the last takes every call.
constexpr std::array kCandidates = {
    Candidate{Implementation::flash, kFlashRules},
    Candidate{Implementation::math, {}},
};

// ---- the choice ---------------------------------------------------------------------------------

const Rule* refusal(const Candidate& candidate, const AttentionCall& call) {
  for (const Rule& rule : candidate.rules) {
    if (rule.refuses(call)) return &rule;
  }
  return nullptr;
}

bool is_allowed(const Candidate& candidate, const AttentionPolicy& policy) {
  if (policy.kind == Kind::require) return candidate.which == policy.which;
  return policy.kind != Kind::forbid || candidate.which != policy.which;
}

// The candidates in the order in which the policy tries them.
std::array<Candidate, kCandidates.size()> in_order(const AttentionPolicy& policy) {
  auto order = kCandidates;
  if (policy.kind != Kind::prefer) return order;
  std::stable_partition(order.begin(), order.end(),
                        [&](const Candidate& c) { return c.which == policy.which; });
  return order;
}

const Candidate* first_that_can(std::span<const Candidate> order, const AttentionCall& call,
                                const AttentionPolicy& policy) {
  for (const Candidate& candidate : order) {
    if (is_allowed(candidate, policy) && refusal(candidate, call) == nullptr) return &candidate;
  }
  return nullptr;
}

// Why a candidate did not run; `chosen` is null when none did.
std::string why_not(const Candidate& candidate, const Candidate* chosen, const AttentionCall& call,
                    const AttentionPolicy& policy) {
  if (const Rule* rule = refusal(candidate, call)) return rule->reason(call);
  if (!is_allowed(candidate, policy)) return "the policy is " + to_string(policy);
  return fmt::format("{} is tried first", name(chosen->which));
}

std::vector<RejectedImplementation> rejections(std::span<const Candidate> order,
                                               const Candidate* chosen, const AttentionCall& call,
                                               const AttentionPolicy& policy) {
  std::vector<RejectedImplementation> rejected;
  for (const Candidate& candidate : order) {
    if (&candidate == chosen) continue;
    rejected.push_back({candidate.which, why_not(candidate, chosen, call, policy)});
  }
  return rejected;
}

std::string why(const Candidate& chosen, std::span<const Candidate> order,
                const AttentionPolicy& policy) {
  if (policy.kind == Kind::require) return "required";
  if (policy.kind == Kind::prefer && chosen.which == policy.which) return "preferred";
  if (&chosen == order.data()) return "tried first";
  return "the first that can";
}

void tell(const Candidate& chosen, std::span<const Candidate> order, const AttentionCall& call,
          const AttentionPolicy& policy) {
  const Context& context = Context::current();
  if (!context.events.wanted<DispatchEvent>()) return;
  const DispatchRecord record{.module = context.module,
                              .dtype = call.dtype,
                              .q_BHQD = call.q_BHQD,
                              .k_BGKD = call.k_BGKD,
                              .v_BGKE = call.v_BGKE,
                              .mask = kind(call.mask),
                              .requested = policy,
                              .chosen = chosen.which,
                              .reason = why(chosen, order, policy),
                              .rejected = rejections(order, &chosen, call, policy),
                              .rows_without_keys = rows_without_keys(call.mask, call.sizes())};
  context.events.emit(DispatchEvent{record});
}

}  // namespace

const char* name(AttentionImplementation implementation) {
  return implementation == Implementation::math ? "math" : "flash";
}

std::string to_string(const AttentionPolicy& policy) {
  constexpr const char* kKinds[] = {"auto", "prefer ", "require ", "forbid "};
  const std::string kind = kKinds[static_cast<int>(policy.kind)];
  return policy.kind == Kind::automatic ? kind : kind + name(policy.which);
}

AttentionPolicy attention_policy_from_name(const std::string& name) {
  if (name == "auto") return {};
  for (const Candidate& candidate : kCandidates) {
    if (name == nn::name(candidate.which)) return AttentionPolicy::require(candidate.which);
    for (const Kind kind : {Kind::prefer, Kind::require, Kind::forbid}) {
      const AttentionPolicy policy{kind, candidate.which};
      if (name == to_string(policy)) return policy;
    }
  }
  fail(
      "attention: must be auto, math or flash, or prefer, require or forbid one of these, got '{}'",
      name);
}

AttentionImplementation choose(const AttentionCall& call, const AttentionPolicy& policy) {
  const auto order = in_order(policy);
  const Candidate* chosen = first_that_can(order, call, policy);
  if (chosen == nullptr) {
    std::string reasons;
    for (const RejectedImplementation& rejected : rejections(order, nullptr, call, policy)) {
      if (policy.kind == Kind::require && rejected.which != policy.which) continue;
      reasons += fmt::format("; {}: {}", name(rejected.which), rejected.reason);
    }
    fail("attention: the policy '{}' leaves no implementation{}", to_string(policy), reasons);
  }
  tell(*chosen, order, call, policy);
  return chosen->which;
}

}  // namespace faultline::nn
