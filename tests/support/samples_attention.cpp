#include <cmath>
#include <limits>

#include "autograd/op.h"
#include "core/rng.h"
#include "kernels/attributes.h"
#include "tests/support/op_samples.h"

// Attention and the softmax inside of it.
namespace faultline::test {
namespace {

// Who sees whom, from the words of MaskAttributes; `key_valid` and `documents` may be null.
struct Sight {
  MaskAttributes mask;
  const Dense* key_valid;
  const Dense* documents;

  bool operator()(int64_t b, int64_t q, int64_t k) const {
    const int64_t p = mask.query_offset + q;
    if (key_valid != nullptr && key_valid->at({b, k}) == 0) return false;
    if (documents != nullptr && documents->at({b, k}) != documents->at({b, p})) return false;
    const bool past = !mask.causal || k <= p;
    const bool near = mask.window == 0 || (k > p - mask.window && k < p + mask.window);
    return k < mask.prefix || (past && (near || k < mask.sinks));
  }
};

// ---- masked_softmax -----------------------------------------------------------------------------

struct MaskCase {
  std::string what;
  MaskAttributes mask;
  bool key_valid = false;
  bool documents = false;

  Sight sight(std::span<const Dense> in, size_t optional) const {
    const Dense* valid = key_valid ? &in[optional] : nullptr;
    return {mask, valid, documents ? &in[optional + (key_valid ? 1 : 0)] : nullptr};
  }
};

// masked[b, h, q, k]
Dense masked_softmax_of(std::span<const Dense> in, const MaskCase& mask) {
  const Dense& scores = in[0];
  const Sight visible = mask.sight(in, 1);
  return generate(scores.shape, [&](const Dims& i) {
    if (!visible(i[0], i[2], i[3])) return 0.0;
    double sum = 0;
    Dims other = i;
    for (other[3] = 0; other[3] < scores.shape[3]; ++other[3]) {
      const double ahead = scores.at(other) - scores.at(i);
      if (visible(i[0], i[2], other[3])) sum += std::exp(mask.mask.scale * ahead);
    }
    return 1 / sum;
  });
}

void add_masked_softmax(std::vector<OpSample>& samples) {
  const MaskCase kCases[] = {
      {"causal", {true, 0, 1}},
      {"causal with a scale and an offset", {true, 2, 0.35}},
      {"padding, some rows see no key", {true, 0, 0.5}, true},
      {"documents", {true, 0, 1}, false, true},
      {"not causal, padding and documents", {false, 1, 1}, true, true},
      {"window", {.window = 3}},
      {"window both ways", {.causal = false, .query_offset = 1, .window = 2}},
      {"prefix", {.prefix = 3}},
      {"window, sinks, prefix and padding", {.window = 2, .prefix = 1, .sinks = 2}, true},
  };
  for (const MaskCase& c : kCases) {
    const int64_t keys = 7;
    const int64_t queries = keys - c.mask.query_offset;
    std::vector<Input> inputs{real({2, 3, queries, keys})};
    if (c.key_valid) inputs.push_back(booleans({2, keys}));
    if (c.documents) inputs.push_back(ids({2, keys}, 3, DType::i32));
    samples.push_back({.op = "masked_softmax",
                       .what = c.what,
                       .inputs = inputs,
                       .run = [c](std::span<const Tensor> in) -> Tensors {
                         return {masked_softmax(in[0], c.key_valid ? in[1] : Tensor(),
                                                c.documents ? in[in.size() - 1] : Tensor(),
                                                c.mask)};
                       },
                       .oracle = [c](std::span<const Dense> in) -> std::vector<Dense> {
                         return {masked_softmax_of(in, c)};
                       }});
  }
}

// ---- flash_attention ----------------------------------------------------------------------------

struct AttentionSizes {
  int64_t batch = 2, heads = 2, key_heads = 2, queries = 5, keys = 5, width = 3;
};

struct AttentionCase {
  MaskCase mask;
  double softcap = 0;
  double p = 0;
  AttentionSizes sizes = {};
  bool sees_all = true;  // every query sees a key, so that every log-sum-exp is a number

  FlashAttentionAttributes attributes() const { return {mask.mask, softcap, {p, 5}}; }

  // q, k, v, then what is given of key_valid, documents and the dropout key.
  std::vector<Input> inputs() const {
    const auto& [B, H, G, Q, K, D] = sizes;
    std::vector<Input> result{real({B, H, Q, D}), real({B, G, K, D}), real({B, G, K, D})};
    if (mask.key_valid) result.push_back(booleans({B, K}));
    if (mask.documents) result.push_back(ids({B, K}, 3, DType::i32));
    if (p > 0) result.push_back(key());
    return result;
  }
  // As the op takes them.
  Tensors all(std::span<const Tensor> in) const {
    Tensors result{in[0], in[1], in[2]};
    size_t next = 3;
    for (const bool given : {mask.key_valid, mask.documents, p > 0}) {
      result.push_back(given ? in[next++] : Tensor());
    }
    return result;
  }

  double kept(const Dense& key, int64_t b, int64_t h, int64_t q, int64_t k) const {
    const auto place = static_cast<uint32_t>((h * sizes.queries + q) * sizes.keys + k);
    const auto sequence = static_cast<uint32_t>(key.values[2]) + static_cast<uint32_t>(b);
    const auto random = philox({place, sequence, 5, static_cast<uint32_t>(key.values[1])},
                               {static_cast<uint32_t>(key.values[0]), 0});
    return random[0] * 0x1p-32 >= p ? 1 / (1 - p) : 0.0;
  }
};

// y [B, H, Q, D] and log-sum-exp [B, H, Q].
std::vector<Dense> attention_of(std::span<const Dense> in, const AttentionCase& c) {
  const auto& [B, H, G, Q, K, D] = c.sizes;
  const Sight visible = c.mask.sight(in, 3);
  const auto exp_of_score = [&, &D = D, &H = H, &G = G](int64_t b, int64_t h, int64_t q,
                                                        int64_t k) {
    double s = 0;
    for (int64_t d = 0; d < D; ++d) s += in[0].at({b, h, q, d}) * in[1].at({b, h * G / H, k, d});
    s *= c.mask.mask.scale;
    return std::exp(c.softcap > 0 ? c.softcap * std::tanh(s / c.softcap) : s);
  };
  const Dense total = generate({B, H, Q}, [&, &K = K](const Dims& i) {
    double sum = 0;
    for (int64_t k = 0; k < K; ++k) {
      if (visible(i[0], i[2], k)) sum += exp_of_score(i[0], i[1], i[2], k);
    }
    return sum;
  });
  Dense y = generate({B, H, Q, D}, [&, &K = K, &H = H, &G = G](const Dims& i) {
    double sum = 0;
    for (int64_t k = 0; k < K; ++k) {
      if (!visible(i[0], i[2], k)) continue;
      const double weight = exp_of_score(i[0], i[1], i[2], k) / total.at({i[0], i[1], i[2]});
      const double kept = c.p > 0 ? c.kept(in[in.size() - 1], i[0], i[1], i[2], k) : 1;
      sum += weight * kept * in[2].at({i[0], i[1] * G / H, k, i[3]});
    }
    return sum;
  });
  Dense lse = total;
  for (double& value : lse.values) value = std::log(value);
  if (!c.sees_all) return {y};
  return {y, lse};
}

OpSample forward_sample(const AttentionCase& c) {
  return {.op = "flash_attention",
          .what = c.mask.what,
          .inputs = c.inputs(),
          .run = [c](std::span<const Tensor> in) -> Tensors {
            const Outputs out = apply(definition(Op::flash_attention), c.all(in), c.attributes());
            return c.sees_all ? Tensors{out[0], out[1]} : Tensors{out[0]};
          },
          .oracle = [c](std::span<const Dense> in) { return attention_of(in, c); }};
}

OpSample backward_sample(const AttentionCase& c) {
  std::vector<Input> inputs = c.inputs();
  inputs.push_back(real(inputs[0].shape));  // dy
  return {.op = "flash_attention_backward",
          .what = c.mask.what,
          .inputs = inputs,
          .run = [c](std::span<const Tensor> in) -> Tensors {
            Tensors all = c.all(in);
            const Outputs out = apply(definition(Op::flash_attention), all, c.attributes());
            all.insert(all.end(), {in[in.size() - 1], out[0], out[1]});
            const Outputs result =
                apply(definition(Op::flash_attention_backward), all, c.attributes());
            return {result[0], result[1], result[2]};
          },
          .oracle = [c](std::span<const Dense> in) -> std::vector<Dense> {
            const auto y = [&c](auto x) { return attention_of(x, c)[0]; };
            const auto x = in.first(in.size() - 1);
            return {pullback(y, x, 0, in.back()), pullback(y, x, 1, in.back()),
                    pullback(y, x, 2, in.back())};
          },
          .oracle_tolerance = 1e-8};
}

void add_flash_attention(std::vector<OpSample>& samples) {
  const MaskAttributes causal{.scale = 0.6};
  const MaskAttributes all{.causal = false, .scale = -0.4};
  const AttentionCase kCases[] = {
      {.mask = {"causal", causal}},
      {.mask = {"not causal, two query heads to a key head", all},
       .sizes = {.heads = 4, .key_heads = 2, .queries = 3}},
      {.mask = {"soft-cap, one key head", causal}, .softcap = 1.5, .sizes = {.key_heads = 1}},
      {.mask = {"later queries", {.query_offset = 3, .scale = 0.6}}, .sizes = {.queries = 2}},
      {.mask = {"queries before all keys", {.query_offset = -2}}, .sees_all = false},
      {.mask = {"padding, some rows see no key", causal, true}, .sees_all = false},
      {.mask = {"documents", causal, false, true}},
      {.mask = {"window", {.scale = 0.6, .window = 2}}},
      {.mask = {"window both ways", {.causal = false, .scale = 0.6, .window = 2}}},
      {.mask = {"prefix", {.scale = 0.6, .prefix = 3}}},
      {.mask = {"window, sinks and documents", {.window = 2, .sinks = 2}, false, true}},
      {.mask = {"dropout", causal}, .p = 0.3, .sizes = {.heads = 4}},
      {.mask = {"dropout, padding, documents", all, true, true}, .p = 0.3, .sees_all = false},
      {.mask = {"one of each", causal},
       .sizes = {.batch = 1, .heads = 1, .key_heads = 1, .queries = 1, .keys = 1, .width = 1}},
      {.mask = {"no batch", causal}, .sizes = {.batch = 0}},
      {.mask = {"no query", causal}, .sizes = {.queries = 0}},
      {.mask = {"no key", all}, .sizes = {.keys = 0}, .sees_all = false},
      {.mask = {"no width", all}, .sizes = {.width = 0}},
  };
  for (const AttentionCase& c : kCases) {
    samples.push_back(forward_sample(c));
    samples.push_back(backward_sample(c));
  }
}

}  // namespace

void add_attention_samples(std::vector<OpSample>& samples) {
  add_masked_softmax(samples);
  add_flash_attention(samples);
}

}  // namespace faultline::test
