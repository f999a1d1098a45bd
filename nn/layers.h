#pragma once

#include <memory>
#include <vector>

#include "autograd/functional.h"
#include "nn/module.h"

namespace faultline::nn {

enum class Bias : uint8_t { yes, no };

class LoraAdapter;  // lora.h

// y = x W^T + b; weight [out, in], bias [out], both zeros until the model initialises them.
// Low-rank adapters may join: y + the sum of what the active ones give for x.
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, Bias bias = Bias::yes);
  ~Linear() override;
  Tensor operator()(const Tensor& x);

  Parameter& weight() { return weight_; }
  // Takes the adapter as its child `name`; no other part may have that name.
  void attach(const std::string& name, std::unique_ptr<LoraAdapter> adapter);
  // In the order in which they came.
  const std::vector<std::unique_ptr<LoraAdapter>>& adapters() const { return adapters_; }

 private:
  Tensor adapted(const Tensor& x, const Tensor& y);

  Parameter& weight_;
  Parameter* bias_;  // null: none
  std::vector<std::unique_ptr<LoraAdapter>> adapters_;
};

// Rows of weight [count, width], zeros until the model initialises them.
class Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t width);
  Tensor operator()(const Tensor& ids);
  // The same weight as an output projection: logits = x W^T ("Using the output embedding to improve
  // language models", Press and Wolf 2017).
  Tensor project(const Tensor& x);

 private:
  Parameter& weight_;
};

// Over the last dimension; weight (1) and bias (0) of its size, never decayed.
class LayerNorm : public Module {
 public:
  LayerNorm(int64_t width, double epsilon);
  Tensor operator()(const Tensor& x);

 private:
  double epsilon_;
  Parameter& weight_;
  Parameter& bias_;
};

// Over the last dimension; weight (1) of its size, never decayed.
class RmsNorm : public Module {
 public:
  RmsNorm(int64_t width, double epsilon);
  Tensor operator()(const Tensor& x);

 private:
  double epsilon_;
  Parameter& weight_;
};

// The key of all dropout of a step: i64 [3] on the device, so that a recorded step reads the
// current one. Shared by the Dropout modules of a model.
class DropoutKey {
 public:
  explicit DropoutKey(uint64_t seed);
  // Called once before each forward pass.
  void set(int64_t step, int64_t first_sequence);
  const Tensor& tensor() const { return key_; }

 private:
  uint64_t seed_;
  Tensor key_;
};

// The number that keys the masks of the Dropout at `path`: 32 bits of a hash of the path.
uint32_t dropout_number(const char* path);

// Whether a Dropout acts.
struct DropoutModeSeam {
  static constexpr const char* name = "dropout mode";
  using Signature = bool(const Module& dropout);
  static bool standard(const Module& dropout) { return dropout.training(); }
};

// What dropout() takes: the key of the step, the probability, and the number of the use.
struct DropoutUse {
  Tensor key;    // undefined where nothing is dropped
  double p = 0;  // 0: nothing is dropped
  uint32_t layer = 0;
};

// Acts in training mode only. The mask depends on seed, step, sequence, this module's path and the
// place in the sequence, and on nothing else.
class Dropout : public Module {
 public:
  Dropout(double p, const DropoutKey& key) : p_(p), key_(key) {}
  Tensor operator()(const Tensor& x);
  // The same for a kernel that drops by itself.
  DropoutUse use_now() const;

 private:
  double p_;
  const DropoutKey& key_;
};

}  // namespace faultline::nn
