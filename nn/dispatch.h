#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/mask.h"

// Which implementation runs an attention call, and why: the table in dispatch.cpp is the one place
// that decides, and that words the reasons.
namespace faultline::nn {

enum class AttentionImplementation : uint8_t {
  math,   // products, softmax, product: readable, takes everything, keeps Q x K weights
  flash,  // by tiles with an online softmax: memory grows with Q and K only
};
// "math", "flash"
const char* name(AttentionImplementation implementation);

// What a caller wants of the choice.
struct AttentionPolicy {
  enum class Kind : uint8_t { automatic, prefer, require, forbid };
  Kind kind = Kind::automatic;
  AttentionImplementation which = AttentionImplementation::math;  // unless automatic

  // That one if it can.
  static AttentionPolicy prefer(AttentionImplementation which) { return {Kind::prefer, which}; }
  // That one, or InvalidArgument with the reason why it cannot.
  static AttentionPolicy require(AttentionImplementation which) { return {Kind::require, which}; }
  // Any other, or InvalidArgument.
  static AttentionPolicy forbid(AttentionImplementation which) { return {Kind::forbid, which}; }
};
// "auto", "prefer flash", ...
std::string to_string(const AttentionPolicy& policy);
// The same backwards; "math" and "flash" alone require that one. Throws InvalidArgument on another
// name.
AttentionPolicy attention_policy_from_name(const std::string& name);

// The policy of calls that bring none of their own.
struct AttentionPolicySeam {
  static constexpr const char* name = "attention policy";
  using Signature = AttentionPolicy();
  static AttentionPolicy standard() { return {}; }
};

// All that the choice depends on.
struct AttentionCall {
  DType dtype = DType::f32;  // of the computation
  Shape q_BHQD;
  Shape k_BGKD;
  Shape v_BGKE;
  const Mask& mask;
  bool weights_are_replaced = false;  // by a replacement of AttentionWeightsSeam

  ScoreSizes sizes() const { return {q_BHQD[0], q_BHQD[1], q_BHQD[2], k_BGKD[2]}; }
};

struct RejectedImplementation {
  AttentionImplementation which;
  std::string reason;
};

// One attention call, for reports.
struct DispatchRecord {
  const char* module;  // that ran it
  DType dtype;
  Shape q_BHQD;
  Shape k_BGKD;
  Shape v_BGKE;
  std::string mask;  // as kind() words it
  AttentionPolicy requested;
  AttentionImplementation chosen;
  std::string reason;                            // why it was chosen
  std::vector<RejectedImplementation> rejected;  // all others
  int64_t rows_without_keys;                     // of the B x H x Q
};

// Emitted at every attention call that somebody wants to hear of. Making the record reads the
// mask's tensors.
struct DispatchEvent {
  const DispatchRecord& record;
};

// The implementation for a call; emits a DispatchEvent. Throws InvalidArgument when the policy
// leaves none.
AttentionImplementation choose(const AttentionCall& call, const AttentionPolicy& policy);

}  // namespace faultline::nn
