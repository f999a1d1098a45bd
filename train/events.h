#pragma once

#include <cstdint>
#include <vector>

#include "autograd/parameter.h"
#include "data/batch.h"
#include "train/config.h"

// What a training loop tells observers, beside launches and gradients. Any loop may emit these; the
// detectors know nothing else of a run.
namespace faultline::train {

// Before the first step.
struct RunEvent {
  const Config& config;
  const std::vector<Parameter*>& parameters;
};

// A step is about to run its first backward; gradients should be clear.
struct StepBeginEvent {
  int64_t step;  // from 1
  const std::vector<Parameter*>& parameters;
};

// A micro-batch is about to go forward.
struct BatchEvent {
  int64_t step;
  const Batch& batch;
};

// A micro-batch went forward and is about to go backward from `objective` (one element).
struct ObjectiveEvent {
  int64_t step;
  int64_t labels;   // valid ones of the micro-batch
  double loss_sum;  // over them
  const Tensor& objective;
};

// Between the two the model is only evaluated: same parameters, same input, same output.
struct EvaluationBeginEvent {
  int64_t step;
};
struct EvaluationEndEvent {
  int64_t step;
};

// The loss of fresh uniform tokens under the run's own labels: no honest causal model expects less
// than the floor ln V. `deviation` is the standard error of the mean.
struct FloorProbeEvent {
  int64_t step;
  double loss;
  double floor;
  double deviation;
  int64_t tokens;
};

// The logits of the same tokens with the adapters beside the weights, and merged into them. The
// merge was undone.
struct MergeProbeEvent {
  int64_t step;
  const Tensor& beside;
  const Tensor& merged;
};

// The step is complete.
struct StepEndEvent {
  int64_t step;
  double loss;       // mean over the step's valid labels
  double grad_norm;  // before clipping
  double lr;
  int64_t tokens;  // valid labels
};

}  // namespace faultline::train
