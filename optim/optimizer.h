#pragma once

#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/state.h"
#include "optim/step_counter.h"

namespace faultline::optim {

// Parameters that share their settings.
struct ParameterGroup {
  std::vector<Parameter*> parameters;
  double weight_decay = 0;
};

// Whether weight decay pulls a parameter towards zero.
struct DecaySeam {
  static constexpr const char* name = "weight decay";
  using Signature = bool(const Parameter& parameter);
  // The written policy: what its module declared. Weight matrices and embeddings are decayed, never
  // a bias or a norm.
  static bool standard(const Parameter& parameter) { return parameter.decay() == Decay::yes; }
};

// Which kernel applies an update, given the optimizer's own.
struct UpdateKernelSeam {
  static constexpr const char* name = "update kernel";
  using Signature = const KernelRecord*(const KernelRecord& own);
  static const KernelRecord* standard(const KernelRecord& own) { return &own; }
};

// Which kernel computes AdamW's bias corrections from the counter, given its own, which refuses a
// step below 1.
struct CorrectionKernelSeam {
  static constexpr const char* name = "bias correction kernel";
  using Signature = const KernelRecord*(const KernelRecord& own);
  static const KernelRecord* standard(const KernelRecord& own) { return &own; }
};

// Two groups, decayed and not, as the DecaySeam says.
std::vector<ParameterGroup> decay_groups(const std::vector<Parameter*>& parameters,
                                         double weight_decay);

// Emitted after a step. Building it reads the counter from the device. Equal counts before and
// after report a counter that stands still.
struct OptimizerEvent {
  const char* optimizer;
  int64_t applied;        // steps applied by this optimizer object, by the host's own count
  double counted_before;  // the device counter, before and after
  double counted_after;
  double lr;
  std::span<const ParameterGroup> groups = {};
};

// What every optimizer shares: groups, the step counter, the learning rate as a device value, and
// the walk over parameters with a gradient. A parameter without a gradient is left alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of all parameters with a gradient. Every gradient is multiplied by `factor` (f64
  // [1], from GradientClip; may be undefined) as it is read.
  void step(double lr, const Tensor& factor = {});

  // Steps counted on the device.
  double counted() const;
  // Goes on counting from `steps`, as an optimizer that has done so many would. Throws
  // InvalidArgument when `steps` is negative.
  void set_counted(int64_t steps);
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  // Counter and per-parameter tensors by parameter name.
  State state() const;
  // Throws InvalidArgument when a tensor is missing, unknown, misshapen or of another dtype (a step
  // counter is never cast), before anything was changed.
  void load(const State& state);

 protected:
  // `slots` names the per-parameter f32 tensors, for example {"m", "v"}. Throws InvalidArgument for
  // a parameter that is not contiguous f32, and for two of one name.
  Optimizer(const char* name, std::vector<ParameterGroup> groups, std::vector<const char*> slots);

  // The tensors of one parameter that take part in this step, in the order of `slots`.
  struct Entry {
    Parameter* parameter;
    std::vector<Tensor> slots;
  };
  // Launches the update of one group.
  virtual void update(const ParameterGroup& group, const Tensor& table,
                      std::span<const ByteRange> reads, std::span<const ByteRange> writes,
                      const Tensor& counter, const Tensor& lr, const Tensor& factor) = 0;

  const char* name_;

 private:
  void update_group(size_t group, const Tensor& factor);

  std::vector<ParameterGroup> groups_;
  std::vector<const char*> slots_;
  std::vector<std::vector<Entry>> entries_;  // by group
  std::vector<Tensor> tables_;               // by group
  StepCounter counter_kind_;
  Tensor counter_;
  Tensor lr_;
  int64_t applied_ = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// AdamW (Loshchilov and Hutter 2019), the update of torch.optim.AdamW: p -= lr decay p; then
// p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + epsilon) with c = 1 - beta^step in double.
class AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<ParameterGroup> groups, AdamWOptions options = {});

 private:
  void update(const ParameterGroup& group, const Tensor& table, std::span<const ByteRange> reads,
              std::span<const ByteRange> writes, const Tensor& counter, const Tensor& lr,
              const Tensor& factor) override;

  AdamWOptions options_;
  Tensor corrections_;  // f64 [2]
};

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
};

// SGD with momentum and coupled decay, the update of torch.optim.SGD without dampening.
class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<ParameterGroup> groups, SgdOptions options = {});

 private:
  void update(const ParameterGroup& group, const Tensor& table, std::span<const ByteRange> reads,
              std::span<const ByteRange> writes, const Tensor& counter, const Tensor& lr,
              const Tensor& factor) override;

  SgdOptions options_;
};

}  // namespace faultline::optim
