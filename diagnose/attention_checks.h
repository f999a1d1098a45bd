#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/attention_judge.h"
#include "nn/attention.h"
#include "nn/mask_predicate.h"

// Checks of attention that need no reference output: each compares an implementation, a mask or a
// model with itself or with a rule, and has a bound that follows from rounding. They ask the seams
// of the current Context as a run does.
namespace faultline::diagnose {

struct AttentionCheck {
  std::string id;        // "causality"
  std::string compared;  // with what, one line
  double difference = 0;
  double bound = 0;
  std::string reason;   // of the bound
  std::string cause;    // a fault id where it failed and the fault is known, else ""
  bool proven = false;  // the cause is what this check saw, whatever else is wrong
  std::string what;     // where it failed: one line
  std::string skipped;  // why it does not apply; "" it ran

  bool ran() const { return skipped.empty(); }
  bool ok() const { return difference <= bound; }  // false for NaN
  bool failed() const { return ran() && !ok(); }
};

// ---- of an implementation and a mask ------------------------------------------------------------

// An implementation under test: q [B, H, Q, D], k and v [B, G, K, D] to [B, H, Q, D], scores scaled
// by 1 / sqrt(D), then capped by softcap unless that is 0. What it throws as an Error is a failed
// check.
using AttentionFunction =
    std::function<Tensor(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD,
                         const nn::Mask& mask, double softcap)>;

// nn::attention; without a policy the one that the models of this Context have.
AttentionFunction framework_attention(std::optional<nn::AttentionPolicy> policy = {});

// Which keys get weight: scores are 0 and values the identity, so that the nonzero columns of an
// output are the keys that its query saw. Counts the (query, key) pairs that differ from the rules
// of the mask.
AttentionCheck check_visibility(const AttentionFunction& attend);

// The answers to attention_probes() against attention in f64.
AttentionCheck check_answers(const std::string& id, const AttentionFunction& attend);

// A mask of one's own: counts the pairs for which it shows a key otherwise than `expected` says,
// which is given positions as MaskPredicate::rule() is. D is the number of keys here.
AttentionCheck check_mask(const nn::Mask& mask, const nn::MaskPlacement& placement,
                          const std::function<bool(const nn::MaskPoint&)>& expected,
                          const AttentionFunction& attend = framework_attention());

// Large queries and keys whose products leave the range of f16, and whose scaled scores do not. The
// tensors are in `dtype`, f32 or f16.
AttentionCheck check_large_products(const AttentionFunction& attend, DType dtype = DType::f32);

// A mask that adds finite numbers, others for each batch and head: they are added to the scaled
// scores. A mask that only hides does not tell, since minus infinity stays what it is.
AttentionCheck check_bias(const AttentionFunction& attend);

// That a call with a large head gives its own result, not what an earlier call left in memory.
AttentionCheck check_fresh_output(const AttentionFunction& attend);

// ---- of a model ---------------------------------------------------------------------------------
// Each runs the model in evaluation mode, without gradients, on tokens that are always the same,
// and leaves it as it was.

// Another token t changes no bit of the logits before t.
AttentionCheck check_causality(nn::LanguageModel& model);
// Other tokens behind a row's end change no bit of its logits.
AttentionCheck check_padding_contents(nn::LanguageModel& model);
// A row among others, padded on the left to their length, has the logits of the row alone.
AttentionCheck check_batched(nn::LanguageModel& model);
// Other rows of a batch change no bit of a row's logits.
AttentionCheck check_neighbours(nn::LanguageModel& model);
// Another first document changes no bit of the logits of the second, in one row, under the mask of
// training (train::MaskSeam).
AttentionCheck check_documents(nn::LanguageModel& model);
// A batch of training is not changed by the one before it (train::ForwardSeam).
AttentionCheck check_micro_batches(nn::LanguageModel& model);
// Segments that the backward pass computes anew give the gradient of those that were kept. Clears
// the model's gradients.
AttentionCheck check_recomputed(nn::LanguageModel& model);
// `expected` is the policy that the model was to have; every call must have it, and launch what its
// record says and the policy asks for.
AttentionCheck check_dispatch(nn::LanguageModel& model, const nn::AttentionPolicy& expected = {});

// Where keys and values lie.
enum class CacheKind : uint8_t { contiguous, paged };

// Logits of a text in pieces, through a cache, against those of the whole.
AttentionCheck check_cached(nn::LanguageModel& model, CacheKind kind);
// The same through train::generate, for prompts of different lengths.
AttentionCheck check_generation(nn::LanguageModel& model, CacheKind kind);
// What a cache gives back is what was stored, rounded to its dtype, and nothing beside.
AttentionCheck check_cache_contents(nn::LanguageModel& model, CacheKind kind);
// Every page knows the dtype of its contents, and no other reads it.
AttentionCheck check_page_dtypes(nn::LanguageModel& model);
// The pages of a beginning go to texts that begin so, for the same weights, and to no others.
AttentionCheck check_prefixes();
// NaN in the slots that nobody filled reaches no logit.
AttentionCheck check_canaries(nn::LanguageModel& model, CacheKind kind);

// Rotary positions, of models that have them: scores depend on distances only, and the turned
// vectors are those of angles in f64.
AttentionCheck check_rope_shift(nn::LanguageModel& model);
AttentionCheck check_rope_angles(nn::LanguageModel& model);

// Sequences behind each other, and bounds that lie.
AttentionCheck check_varlen();

// An adapter merged and taken out again leaves every weight as it was, once merged it gives the
// same logits, and merging it twice is refused.
AttentionCheck check_merge(nn::LanguageModel& model);

// The model's adapters, and one that is made anew as a program of this Context makes them: they act
// with alpha / r or alpha / sqrt(r), have a factor that is not 0, and begin at multiples of 16
// bytes.
AttentionCheck check_adapter_scale(nn::LanguageModel& model);
AttentionCheck check_adapter_zero(nn::LanguageModel& model);
AttentionCheck check_adapter_alignment(nn::LanguageModel& model);

// All of them, under a Watch. What is wrong below shows above too, so the lowest level at which
// checks failed gives its cause to those that have no proof of their own: attention and positions
// first, then what caches hold, then the model. Where none of them knows one, the detectors are
// asked. Prefixes, the dtypes of pages and adapters rest on nothing: they take and give no cause.
// `expected` as in check_dispatch().
std::vector<AttentionCheck> check_attention(nn::LanguageModel& model,
                                            const nn::AttentionPolicy& expected = {});

}  // namespace faultline::diagnose
