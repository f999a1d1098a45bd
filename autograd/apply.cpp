#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "core/context.h"

namespace faultline {
namespace {

DType computation_dtype(std::span<const Tensor> inputs) {
  DType widest = DType::u8;
  bool floating = false;
  for (const Tensor& input : inputs) {
    if (!input.defined() || !is_floating(input.dtype())) continue;
    const bool wider = !floating || size_of(input.dtype()) > size_of(widest);
    if (wider) widest = input.dtype();
    floating = true;
  }
  return floating ? widest : inputs[0].dtype();
}

void validate(const OpDefinition& op, std::span<const Tensor> inputs) {
  require(op.inputs <= kMaxInputs && op.outputs <= kMaxOutputs,
          "{}: is defined with {} inputs and {} outputs; a launch holds {} and {}", op.name,
          op.inputs, op.outputs, kMaxInputs, kMaxOutputs);
  require(!inputs.empty() && static_cast<int>(inputs.size()) <= op.inputs,
          "{}: takes 1 to {} tensors, got {}", op.name, op.inputs, inputs.size());
  require(inputs[0].defined(), "{}: the first input is undefined", op.name);
  const DeviceRuntime& device = inputs[0].device();
  for (const Tensor& input : inputs) {
    if (!input.defined() || &input.device() == &device) continue;
    fail("{}: inputs are on {} and {}; move them to one device", op.name, device.name(),
         input.device().name());
  }
}

// An op whose outputs are all integers or bools ends a gradient's path by itself.
bool goes_on_tape(std::span<const Tensor> inputs, std::span<const OutputSpec> specs) {
  if (!Context::current().gradients) return false;
  const auto wants = [](const Tensor& input) { return input.defined() && requires_grad(input); };
  const auto floats = [](const OutputSpec& spec) { return is_floating(spec.dtype); };
  return std::any_of(inputs.begin(), inputs.end(), wants) &&
         std::any_of(specs.begin(), specs.end(), floats);
}

void run_kernel(const OpDefinition& op, std::span<const Tensor> inputs,
                const Attributes& attributes, Site site, Outputs& outputs) {
  Context& context = Context::current();
  const Selection selection =
      context.seams.call<KernelSeam>(SelectionRequest{op, computation_dtype(inputs)});
  Launch work;
  work.kernel = selection.kernel;
  work.args.attributes = attributes;
  work.args.threads = context.threads;
  for (const Tensor& input : inputs) {
    if (input.defined()) work.args.inputs[work.args.input_count] = input.view();
    ++work.args.input_count;
  }
  for (const Tensor& output : outputs) {
    work.args.outputs[work.args.output_count++] = output.view();
  }
  work.label = {op.name, context.module, context.phase, selection.reason, site};
  work.flops = op.rules->flops != nullptr ? op.rules->flops(work.args)
                                          : static_cast<double>(outputs[0].numel());
  launch(Stream{&inputs[0].device(), context.stream.id}, work);
}

// Input by input what a derivative would need to know; `saved` columns decide what is kept.
std::shared_ptr<Node> make_node(const OpDefinition& op, std::span<const Tensor> inputs,
                                const Attributes& attributes, Site site) {
  Context& context = Context::current();
  auto node = std::make_shared<Node>();
  node->op = &op;
  node->sequence = context.next_sequence++;
  node->attributes = attributes;
  node->module = context.module;
  node->site = site;
  node->edges.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    if (!input.defined()) continue;
    Node::Edge& edge = node->edges[i];
    edge.given = true;
    edge.shape = input.shape();
    edge.dtype = input.dtype();
    if ((op.saved_inputs >> i & 1) != 0) node->inputs[i] = {input, input.version()};
    if (!requires_grad(input)) continue;
    const auto& meta = input.autograd();
    edge.node = meta->producer;
    edge.output = meta->output;
    if (meta->producer == nullptr) {
      edge.leaf = meta;
      edge.leaf_tensor = input;
    }
  }
  return node;
}

void attach(const std::shared_ptr<Node>& node, const OpDefinition& op, Outputs& outputs) {
  for (int i = 0; i < outputs.size(); ++i) {
    node->specs[i] = {outputs[i].shape(), outputs[i].dtype()};
    // Kept through an alias: the handle itself holds the node, and would never be freed.
    if ((op.saved_outputs >> i & 1) != 0) {
      node->outputs[i] = {outputs[i].detach(), outputs[i].version()};
    }
    if (!is_floating(outputs[i].dtype())) continue;
    auto meta = std::make_shared<AutogradMeta>();
    meta->producer = node;
    meta->output = i;
    outputs[i].set_autograd(std::move(meta));
  }
}

}  // namespace

Selection KernelSeam::standard(const SelectionRequest& request) {
  const bool cpu_dtype =
      request.dtype == DType::f32 || request.dtype == DType::f16 || request.dtype == DType::bf16;
  if (request.op.cpu.run != nullptr && cpu_dtype) return {&request.op.cpu, "cpu: f32 or 16-bit"};
  invariant(request.op.kernels != Kernels::view, "{}: a view has no kernel", request.op.name);
  require(request.op.reference.run != nullptr,
          "{}: has no kernel for {}; cast its inputs to f32, or define it with a reference kernel",
          request.op.name, faultline::name(request.dtype));
  if (request.op.cpu.run == nullptr) return {&request.op.reference, "reference: its only kernel"};
  return {&request.op.reference, "reference: not an f32 or 16-bit computation"};
}

Outputs apply(const OpDefinition& op, std::span<const Tensor> given, const Attributes& attributes,
              Site site) {
  validate(op, given);
  const Context& context = Context::current();
  Grads casts;
  const std::span<const Tensor> inputs =
      context.autocast ? autocast_inputs(op, given, casts) : given;

  std::array<OutputSpec, kMaxOutputs> storage;
  const auto specs = std::span(storage).first(static_cast<size_t>(op.outputs));
  op.rules->shape(inputs, attributes, specs);
  std::shared_ptr<Node> node;
  if (goes_on_tape(inputs, specs)) node = make_node(op, inputs, attributes, site);

  Outputs outputs;
  if (op.kernels == Kernels::view) {
    for (int i = 0; i < op.outputs; ++i) {
      outputs.push_back(op.rules->view(inputs[0], attributes, storage[static_cast<size_t>(i)], i));
    }
  } else {
    for (const OutputSpec& spec : specs) {
      outputs.push_back(empty(spec.shape, spec.dtype, op.name, site));
    }
    run_kernel(op, inputs, attributes, site, outputs);
  }
  if (node != nullptr) attach(node, op, outputs);
  return outputs;
}

Tensor apply(Op op, std::initializer_list<Tensor> inputs, const Attributes& attributes, Site site) {
  return apply(definition(op), std::span(inputs.begin(), inputs.size()), attributes, site)[0];
}

}  // namespace faultline
