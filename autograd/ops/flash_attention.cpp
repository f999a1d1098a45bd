#include "autograd/functional.h"
#include "autograd/rules.h"
#include "kernels/visibility.h"

namespace faultline {
namespace {

constexpr const char* kForward = "flash_attention";
constexpr const char* kBackward = "flash_attention_backward";

// Sums over the keys are kept in f32 for 16-bit inputs.
DType sum_dtype(DType dtype) { return size_of(dtype) == 2 ? DType::f32 : dtype; }

void check_heads(const Tensor& q, const Tensor& k, const Tensor& v, const char* op) {
  require(q.defined() && k.defined() && q.rank() == 4 && k.rank() == 4,
          "{}: q must be [B, H, Q, D] and k [B, G, K, D], got {} and {}", op, q, k);
  require_floats(q, op);
  require_same_dtype(q, k, op);
  require_alike(k, v, op);
  require(q.shape()[0] == k.shape()[0] && q.shape()[3] == k.shape()[3],
          "{}: q {} and k {} must have one batch size and one head size", op, q, k);
  const int64_t heads = q.shape()[1];
  const int64_t key_heads = k.shape()[1];
  require(key_heads == heads || (key_heads > 0 && heads % key_heads == 0),
          "{}: {} query heads cannot share {} key heads. Give a number of key heads that divides "
          "the query heads.",
          op, heads, key_heads);
}

void check_attributes(const FlashAttentionAttributes& attributes, const Tensor& dropout_key,
                      const char* op) {
  require(attributes.softcap >= 0, "{}: softcap must be 0 (none) or above, got {}", op,
          attributes.softcap);
  const double p = attributes.dropout.p;
  require(p >= 0 && p < 1, "{}: the dropout probability must be in [0, 1), got {}", op, p);
  require(p == 0 || (dropout_key.defined() && dropout_key.dtype() == DType::i64 &&
                     dropout_key.shape() == Shape{3}),
          "{}: dropout needs a key i64[3] of seed, step and first sequence, got {}", op,
          dropout_key);
}

// The six inputs that both directions begin with.
void check_inputs(std::span<const Tensor> inputs, const Attributes& attributes, const char* op) {
  const Tensor& q = inputs[0];
  const Tensor& k = inputs[1];
  const auto all = attributes.as<FlashAttentionAttributes>();
  check_heads(q, k, inputs[2], op);
  require_mask(all.mask, inputs[3], inputs[4],
               {.batch = q.shape()[0], .queries = q.shape()[2], .keys = k.shape()[2]}, op);
  check_attributes(all, inputs[5], op);
}

// Two operations for each element of a product of the visible scores: forward has two such
// products, backward five. What key_valid and documents take away is not subtracted.
template <int kProducts>
double visible_flops(const KernelArgs& args) {
  const auto mask = args.attributes.as<FlashAttentionAttributes>().mask;
  const Shape& q_BHQD = args.inputs[0].shape;
  const int64_t keys = args.inputs[1].shape[2];
  double visible = 0;
  for (int64_t q = 0; q < q_BHQD[2]; ++q) {
    visible += static_cast<double>(visible_keys(mask, mask.query_offset + q, keys).count());
  }
  return 2.0 * kProducts * visible * static_cast<double>(q_BHQD[0] * q_BHQD[1] * q_BHQD[3]);
}

}  // namespace

// S = cap(scale Q K^T), P = softmax of S over the visible keys, y = dropout(P) V. Kept for the
// derivative: y and lse = log sum exp S, from which a tile of P comes back as exp(S - lse) (Dao,
// "FlashAttention-2", 2023).
FlashAttentionResult flash_attention(const Tensor& q_BHQD, const Tensor& k_BGKD,
                                     const Tensor& v_BGKD, const Tensor& key_valid,
                                     const Tensor& documents, const Tensor& dropout_key,
                                     const FlashAttentionAttributes& attributes, Site site) {
  const Tensor inputs[] = {q_BHQD, k_BGKD, v_BGKD, key_valid, documents, dropout_key};
  const Outputs out = apply(definition(Op::flash_attention), inputs, attributes, site);
  return {out[0], out[1]};
}

RULES(flash_attention) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          require(inputs.size() == 6,
                  "{}: takes q, k, v, key_valid, documents and a dropout key, got {} tensors",
                  kForward, inputs.size());
          check_inputs(inputs, attributes, kForward);
          const Shape& q = inputs[0].shape();
          outputs[0] = {q, inputs[0].dtype()};
          outputs[1] = {{q[0], q[1], q[2]}, sum_dtype(inputs[0].dtype())};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      require(!grads[1].defined(), "{}: its log-sum-exp has no derivative", kForward);
      const auto input = [&saved](int i) { return saved.has_input(i) ? saved.input(i) : Tensor(); };
      const Tensor inputs[] = {input(0), input(1), input(2),        input(3),       input(4),
                               input(5), grads[0], saved.output(0), saved.output(1)};
      const Outputs result =
          apply(definition(Op::flash_attention_backward), inputs, saved.attributes());
      return {result[0], result[1], result[2], {}, {}, {}};
    },
    .flops = visible_flops<2>};

RULES(flash_attention_backward) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          require(inputs.size() == 9,
                  "{}: takes the inputs of {}, dy, y and the log-sum-exp, got {} tensors",
                  kBackward, kForward, inputs.size());
          check_inputs(inputs, attributes, kBackward);
          require_alike(inputs[0], inputs[6], kBackward);
          require_alike(inputs[0], inputs[7], kBackward);
          const Shape& q = inputs[0].shape();
          const Tensor& lse = inputs[8];
          require(lse.defined() && lse.shape() == Shape{q[0], q[1], q[2]} &&
                      lse.dtype() == sum_dtype(inputs[0].dtype()),
                  "{}: the log-sum-exp must be {}{}, got {}", kBackward,
                  name(sum_dtype(inputs[0].dtype())), Shape{q[0], q[1], q[2]}, lse);
          for (size_t i = 0; i < 3; ++i) outputs[i] = {inputs[i].shape(), inputs[i].dtype()};
        },
    .flops = visible_flops<5>};

}  // namespace faultline
