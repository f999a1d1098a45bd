#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/error.h"
#include "core/launch.h"
#include "diagnose/attention_checks.h"
#include "diagnose/detector.h"
#include "diagnose/model_runs.h"
#include "nn/sdpa_rules.h"
#include "train/trainer.h"

namespace faultline::diagnose {

namespace {

bool weights_are_replaced() {
  for (const char* seam : Context::current().seams.replaced()) {
    if (std::string_view(seam) == nn::AttentionWeightsSeam::name) return true;
  }
  return false;
}

struct DispatchCounts {
  int64_t calls = 0;
  int64_t wrong = 0;
  std::string first;  // what is wrong with the first of them
};

// What is wrong with a call of which this ran; "" for nothing.
std::string complaint(const nn::DispatchRecord& record, nn::AttentionImplementation ran,
                      const nn::AttentionPolicy& expected) {
  using Kind = nn::AttentionPolicy::Kind;
  const auto& asked = record.requested;
  if (asked.kind != expected.kind ||
      (asked.kind != Kind::automatic && asked.which != expected.which)) {
    return fmt::format("the policy was {}, not {}", to_string(asked), to_string(expected));
  }
  if (ran != record.chosen) {
    return fmt::format("{} ran where the record says {}", name(ran), name(record.chosen));
  }
  if (asked.kind == Kind::prefer && ran != asked.which && !weights_are_replaced()) {
    return fmt::format("{} ran although {} was preferred: {}", name(ran), name(asked.which),
                       record.rejected.at(0).reason);
  }
  if ((asked.kind == Kind::require && ran != asked.which) ||
      (asked.kind == Kind::forbid && ran == asked.which)) {
    return fmt::format("{} ran under '{}'", name(ran), to_string(asked));
  }
  return "";
}

// Compares each record of a choice with what is launched next: the fused kernel, or a product.
class LaunchAudit {
 public:
  explicit LaunchAudit(const nn::AttentionPolicy& expected) : expected_(expected) {
    EventBus& events = Context::current().events;
    subscriptions_.push_back(events.subscribe<nn::DispatchEvent>(
        [this](const nn::DispatchEvent& event) { begin(event.record); }));
    subscriptions_.push_back(events.subscribe<LaunchEvent>(
        [this](const LaunchEvent& event) { see(event.launch.label.op); }));
  }

  DispatchCounts counts() {
    end();
    return counts_;
  }

 private:
  void begin(const nn::DispatchRecord& record) {
    end();
    ++counts_.calls;
    pending_ = record;
  }
  void see(std::string_view op) {
    if (!pending_) return;
    using enum nn::AttentionImplementation;
    if (op == "flash_attention") tell(complaint(*pending_, flash, expected_));
    if (op == "matmul") tell(complaint(*pending_, math, expected_));
  }
  void end() {
    if (pending_) tell("nothing ran");
  }
  void tell(const std::string& wrong) {
    pending_.reset();
    if (wrong.empty()) return;
    ++counts_.wrong;
    if (counts_.first.empty()) counts_.first = wrong;
  }

  nn::AttentionPolicy expected_;
  std::optional<nn::DispatchRecord> pending_;  // of a call that launched nothing yet
  DispatchCounts counts_;
  std::vector<std::shared_ptr<void>> subscriptions_;
};

// The mask of a batch of training.
nn::Mask mask_of_training(const CheckedModel& checked) {
  const int64_t T = checked.positions();
  Batch batch;
  batch.inputs = tensor(checked.text(T, 0), {1, T});
  batch.labels = batch.inputs;
  std::vector<int32_t> documents(static_cast<size_t>(T), 0);
  documents.back() = 1;
  batch.documents = tensor(documents, {1, T});
  batch.valid_tokens = T;
  return Context::current().seams.call<train::MaskSeam>(batch);
}

DispatchCounts count_calls(CheckedModel& checked, const nn::AttentionPolicy& expected,
                           const nn::Mask& mask) {
  LaunchAudit audit(expected);
  checked.logits({checked.text(checked.positions(), 0)}, mask);
  return audit.counts();
}

std::shared_ptr<void> replace_policy(const nn::AttentionPolicy& policy) {
  return Context::current().seams.replace<nn::AttentionPolicySeam>([policy] { return policy; });
}

// Which backend PyTorch would run where the mask of training is a tensor that says no more than
// causal, and nothing is wrong without the tensor; "" elsewhere.
std::string backend_for_causal_tensor(CheckedModel& checked) {
  const int64_t T = checked.positions();
  if (!is_causal_tensor(mask_of_training(checked), T)) return "";
  const auto flash = nn::AttentionPolicy::prefer(nn::AttentionImplementation::flash);
  const auto replaced = replace_policy(flash);
  if (count_calls(checked, flash, {}).wrong > 0) return "";
  const nn::ModelShape& model = checked.shape();
  const Shape heads{1, model.num_heads, T, model.head_size};
  const nn::SdpaCall call{
      .query = heads, .key = heads, .value = heads, .has_mask = true, .mask = {T, T}};
  const auto chosen = nn::sdpa_choice(call, {}).chosen;
  return chosen ? nn::name(*chosen) : "none";
}

constexpr const char* kNoFlash =
    "the seam 'attention weights' is replaced, and flash has no weights to show it";

}  // namespace

AttentionCheck check_dispatch(nn::LanguageModel& model, const nn::AttentionPolicy& expected) {
  AttentionCheck check{.id = "dispatch",
                       .compared = "attention calls, and what was asked for (calls)",
                       .reason = "a record a layer, chosen as asked",
                       .proven = true};
  CheckedModel checked(model);
  const auto add = [&](const nn::AttentionPolicy& policy) {
    const DispatchCounts counts = count_calls(checked, policy, mask_of_training(checked));
    const int64_t missing = std::abs(checked.shape().num_layers - counts.calls);
    if (missing > 0) check.proven = false;
    check.difference += static_cast<double>(counts.wrong + missing);
    if (!check.what.empty()) return;
    if (counts.wrong > 0) check.what = fmt::format("In a call {}.", counts.first);
    if (missing > 0) {
      check.what = fmt::format("{} layers made {} attention calls.", checked.shape().num_layers,
                               counts.calls);
    }
  };
  using Which = nn::AttentionImplementation;
  using Policy = nn::AttentionPolicy;
  add(expected);
  std::vector<Policy> policies = {Policy::prefer(Which::math)};
  if (!weights_are_replaced()) policies.push_back(Policy::prefer(Which::flash));
  for (const Policy& wanted : policies) {
    const auto replaced = replace_policy(wanted);
    add(wanted);
  }
  if (check.ok()) return check;
  check.cause = "kernel.silent-fallback:slow-path";
  if (const std::string backend = backend_for_causal_tensor(checked); !backend.empty()) {
    check.cause = "sdpa.fallback";
    check.what += fmt::format(
        " The mask of training is a tensor that says no more than causal; PyTorch would run {} in "
        "place of flash.",
        backend);
  }
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

// A check of one implementation, called "`what`.math" or "`what`.flash".
template <class Run>
AttentionCheck check_of(const char* what, nn::AttentionImplementation which, Run run) {
  const std::string id = fmt::format("{}.{}", what, name(which));
  if (which == nn::AttentionImplementation::flash && weights_are_replaced()) {
    return skipped(id, kNoFlash);
  }
  return attempt(id,
                 [&] { return run(id, framework_attention(nn::AttentionPolicy::require(which))); });
}

constexpr int kHighest = 2;
constexpr int kAlone = kHighest + 1;

// What a check is about: what it rests on has a lower number.
int level_of(const AttentionCheck& check) {
  for (const char* alone : {"prefixes", "page-dtypes", "adapter.", "merge"}) {
    if (check.id.starts_with(alone)) return kAlone;
  }
  for (const char* first : {"visibility", "parity.", "large-products", "bias", "varlen", "rope."}) {
    if (check.id.starts_with(first)) return 0;
  }
  return check.id.starts_with("cache-contents") ? 1 : kHighest;
}

// The cause that these checks know, or else a detector; "" for none.
std::string cause_of(const std::vector<const AttentionCheck*>& failed, const Findings& findings) {
  for (const AttentionCheck* check : failed) {
    if (!check->cause.empty()) return check->cause;
  }
  for (const Detection& found : findings.ranked()) {
    if (found.confidence >= kHint && !found.cause.empty()) return found.cause;
  }
  return "";
}

// Where attention itself is wrong, everything above it fails too, and guesses at a cause of its
// own. So the lowest level at which checks failed has the word, except for what has proof.
void share_causes(std::vector<AttentionCheck>& checks, const Findings& findings) {
  std::vector<const AttentionCheck*> lowest;
  for (int level = 0; level <= kHighest && lowest.empty(); ++level) {
    for (const AttentionCheck& check : checks) {
      // Nothing rests on the highest level, so what has proof there explains itself only.
      const bool explains = level < kHighest || !check.proven;
      if (check.failed() && level_of(check) == level && explains) lowest.push_back(&check);
    }
  }
  if (lowest.empty()) return;
  const std::string cause = cause_of(lowest, findings);
  for (AttentionCheck& check : checks) {
    const bool takes = !(check.proven && !check.cause.empty()) && level_of(check) != kAlone;
    if (check.failed() && takes) check.cause = cause;
  }
}

}  // namespace

std::vector<AttentionCheck> check_attention(nn::LanguageModel& model,
                                            const nn::AttentionPolicy& expected) {
  const CheckedModel possible(model);  // throws where the model cannot be checked
  std::vector<AttentionCheck> checks;
  const auto add = [&](const std::string& id, const std::function<AttentionCheck()>& run) {
    checks.push_back(attempt(id, run));
  };
  const AttentionFunction attend = framework_attention();
  add("visibility", [&] { return check_visibility(attend); });
  constexpr std::array kBoth = {nn::AttentionImplementation::math,
                                nn::AttentionImplementation::flash};
  for (const auto which : kBoth) checks.push_back(check_of("parity", which, check_answers));
  add("large-products", [&] { return check_large_products(attend); });
  const auto in_f16 = [](const std::string&, const AttentionFunction& function) {
    return check_large_products(function, DType::f16);
  };
  for (const auto which : kBoth) checks.push_back(check_of("large-products", which, in_f16));
  // `math` alone takes a bias, and a run's policy may require another.
  add("bias", [&] {
    return check_bias(
        framework_attention(nn::AttentionPolicy::require(nn::AttentionImplementation::math)));
  });
  add("fresh-output", [&] { return check_fresh_output(attend); });
  add("varlen", [&] { return check_varlen(); });
  add("prefixes", [&] { return check_prefixes(); });
  add("page-dtypes", [&] { return check_page_dtypes(model); });
  add("adapter.scale", [&] { return check_adapter_scale(model); });
  add("adapter.zero", [&] { return check_adapter_zero(model); });
  add("adapter.alignment", [&] { return check_adapter_alignment(model); });
  // What came before does wrong things on purpose.
  const Watch watch(Context::current(), WatchLevel::full);
  add("rope.angles", [&] { return check_rope_angles(model); });
  add("rope.shift", [&] { return check_rope_shift(model); });
  add("dispatch", [&] { return check_dispatch(model, expected); });
  add("causality", [&] { return check_causality(model); });
  add("padding", [&] { return check_padding_contents(model); });
  add("batched", [&] { return check_batched(model); });
  add("neighbours", [&] { return check_neighbours(model); });
  add("documents", [&] { return check_documents(model); });
  add("micro-batches", [&] { return check_micro_batches(model); });
  add("recomputed", [&] { return check_recomputed(model); });
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::paged}) {
    const std::string suffix = kind == CacheKind::paged ? ".paged" : ".contiguous";
    add("cache-contents" + suffix, [&] { return check_cache_contents(model, kind); });
    add("canaries" + suffix, [&] { return check_canaries(model, kind); });
    add("cached" + suffix, [&] { return check_cached(model, kind); });
    add("generation" + suffix, [&] { return check_generation(model, kind); });
  }
  add("merge", [&] { return check_merge(model); });
  share_causes(checks, watch.findings());
  return checks;
}

}  // namespace faultline::diagnose
