#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "diagnose/attention_probes.h"

// Names what is wrong with an implementation of attention from its answers to the probes: each
// known mistake predicts every answer, and the one that predicts all of them is the mistake.
namespace faultline::diagnose {

struct AttentionMistake {
  const char* cause;  // a fault id with its variant, or "" where the lab has none
  const char* what;   // one line
  const char* fix;
  AttentionRules rules;
};
// Those that can be told from answers alone.
const std::vector<AttentionMistake>& attention_mistakes();

struct ProbeVerdict {
  std::string probe;
  std::string asks;
  bool answered = false;
  double error = 0;  // largest difference to the right answer; NaN where only one side is NaN
  double bound = 0;
  bool right() const { return error <= bound; }  // false for NaN
};

struct AttentionVerdict {
  std::vector<ProbeVerdict> probes;
  // The mistakes that predict every answer that was given, at least one of them wrong. Or the one
  // that does so beside a habit with rows that see nothing or values that nobody sees. Or the only
  // one that predicts every wrong answer.
  std::vector<const AttentionMistake*> named;
  // Where none does: the one that predicts most of the wrong answers, and how many; null: none
  // does.
  const AttentionMistake* nearest = nullptr;
  int64_t nearest_explains = 0;

  int64_t wrong() const;
  int64_t answered() const;
  // The probes without an answer, but for 'softcap', which may be left out: few programs cap
  // scores.
  std::vector<std::string> missing() const;
};

// `answers` by probe name, [B, H, Q, D] in f64, f32, f16 or bf16, whose rounding the bounds allow
// for; a probe may be left out. Throws InvalidArgument for an answer of another shape or name, or
// when there is none.
AttentionVerdict judge_attention(const std::vector<AttentionProbe>& probes,
                                 const std::map<std::string, Tensor>& answers);

// The probes as tensors: NAME.q, NAME.k, NAME.v (f32) and NAME.mask (bool [B, 1, Q, K], true where
// a query may see a key).
std::map<std::string, Tensor> probe_tensors(const std::vector<AttentionProbe>& probes);

}  // namespace faultline::diagnose
