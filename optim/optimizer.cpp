#include "optim/optimizer.h"

#include <cmath>
#include <limits>
#include <set>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/device.h"
#include "kernels/kernels.h"

namespace faultline::optim {

StepCounter StepCounterSeam::standard() { return {DType::i64, &kernels::advance_counter}; }

std::vector<ParameterGroup> decay_groups(const std::vector<Parameter*>& parameters,
                                         double weight_decay) {
  ParameterGroup decayed{{}, weight_decay};
  ParameterGroup kept{{}, 0};
  const SeamTable& seams = Context::current().seams;
  for (Parameter* parameter : parameters) {
    (seams.call<DecaySeam>(*parameter) ? decayed : kept).parameters.push_back(parameter);
  }
  return {decayed, kept};
}

Optimizer::Optimizer(const char* name, std::vector<ParameterGroup> groups,
                     std::vector<const char*> slots)
    : name_(name),
      groups_(std::move(groups)),
      slots_(std::move(slots)),
      counter_kind_(Context::current().seams.call<StepCounterSeam>()),
      counter_(full({1}, static_cast<double>(counter_kind_.start), counter_kind_.dtype)),
      lr_(zeros({1}, DType::f64)) {
  std::set<std::string> names;
  for (const ParameterGroup& group : groups_) {
    require(group.weight_decay >= 0, "{}: weight_decay must not be negative, got {}", name_,
            group.weight_decay);
    std::vector<Entry>& entries = entries_.emplace_back();
    for (Parameter* parameter : group.parameters) {
      require(names.insert(parameter->name()).second,
              "{}: two parameters are called {}; its state tells them apart by their names. List "
              "each parameter once, or give the modules one parent",
              name_, parameter->name());
      require(parameter->value().dtype() == DType::f32 && parameter->value().is_contiguous(),
              "{}: parameter {} must be contiguous f32, got {}", name_, parameter->name(),
              parameter->value());
      Entry entry{parameter, {}};
      for (size_t i = 0; i < slots_.size(); ++i) {
        entry.slots.push_back(zeros(parameter->value().shape()));
      }
      entries.push_back(std::move(entry));
    }
    const auto bytes = static_cast<int64_t>(entries.size() * sizeof(UpdateTensors));
    tables_.push_back(empty({bytes}, DType::u8, "optimizer table"));
  }
}

double Optimizer::counted() const { return counter_.item<double>(); }

void Optimizer::set_counted(int64_t steps) {
  require(steps >= 0, "{}: the count of steps must not be negative, got {}", name_, steps);
  copy_(counter_, tensor<int64_t>({steps}));
}

void Optimizer::step(double lr, const Tensor& factor) {
  require(std::isfinite(lr), "{}: the learning rate must be finite, got {}", name_, lr);
  Context& context = Context::current();
  const NoGrad off;
  const Scoped<Phase> phase(context.phase, Phase::optimizer);
  const bool watched = context.events.wanted<OptimizerEvent>();
  const double before = watched ? counted() : 0;

  lr_.assign(std::span<const double>(&lr, 1), "learning rate");
  Launch advance;
  advance.kernel = counter_kind_.advance;
  advance.args.outputs[0] = counter_.view();
  advance.args.output_count = 1;
  advance.label = {"advance_counter", "", Phase::optimizer, "its only kernel", Site::here()};
  launch(context.stream, advance);
  for (size_t g = 0; g < groups_.size(); ++g) update_group(g, factor);
  if (applied_ != std::numeric_limits<int64_t>::max()) ++applied_;

  if (watched) context.events.emit(OptimizerEvent{name_, applied_, before, counted(), lr, groups_});
}

void Optimizer::update_group(size_t group, const Tensor& factor) {
  std::vector<UpdateTensors> rows;
  std::vector<ByteRange> reads;
  std::vector<ByteRange> writes;
  std::vector<Tensor> gradients;  // keeps contiguous copies alive until the launch
  for (Entry& entry : entries_[group]) {
    const Tensor gradient = entry.parameter->gradient();
    if (!gradient.defined()) continue;
    const Tensor& value = entry.parameter->value();
    require(gradient.dtype() == DType::f32 && gradient.shape() == value.shape(),
            "{}: the gradient of {} is {}, the parameter {}", name_, entry.parameter->name(),
            gradient, value);
    gradients.push_back(contiguous(gradient));
    const auto memory = [](const Tensor& t) { return reinterpret_cast<float*>(t.view().data); };
    UpdateTensors row{memory(value), memory(gradients.back()), nullptr, nullptr, value.numel()};
    if (!entry.slots.empty()) row.first = memory(entry.slots[0]);
    if (entry.slots.size() > 1) row.second = memory(entry.slots[1]);
    rows.push_back(row);
    reads.push_back(byte_range(gradients.back().view()));
    writes.push_back(byte_range(value.view()));
    value.mark_written(name_);
    for (const Tensor& slot : entry.slots) {
      writes.push_back(byte_range(slot.view()));
      slot.mark_written(name_);
    }
  }
  if (rows.empty()) return;
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(UpdateTensors));
  Tensor table = slice(tables_[group], 0, 0, bytes);
  table.assign(std::span(reinterpret_cast<const uint8_t*>(rows.data()), static_cast<size_t>(bytes)),
               "optimizer table");
  update(groups_[group], table, reads, writes, counter_, lr_, factor);
}

State Optimizer::state() const {
  State state;
  state.tensors["counter"] = counter_;
  state.set_integer("applied", applied_);
  for (const auto& entries : entries_) {
    for (const Entry& entry : entries) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        state.tensors[std::string(slots_[i]) + "." + entry.parameter->name()] = entry.slots[i];
      }
    }
  }
  return state;
}

void Optimizer::load(const State& given) {
  const State own = state();
  for (const auto& [name, tensor] : own.tensors) {
    const Tensor& value = given.tensor(name);
    require(value.shape() == tensor.shape() && value.dtype() == tensor.dtype(),
            "{}: '{}' is {} here and {} in the state", name_, name, tensor, value);
  }
  for (const auto& [name, tensor] : given.tensors) {
    require(own.tensors.contains(name),
            "{}: the state holds '{}' ({}), which no parameter here has", name_, name, tensor);
  }
  const int64_t applied = given.integer("applied");
  const NoGrad off;
  for (const auto& [name, tensor] : own.tensors) copy_(tensor, given.tensor(name));
  applied_ = applied;
}

}  // namespace faultline::optim
