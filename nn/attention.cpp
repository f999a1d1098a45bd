#include "nn/attention.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "autograd/observe.h"

// Shapes: B batch, T positions, H query heads, G key heads, R = H / G, Q queries, K keys, D head
// size, E head size of the values, C = H D.
namespace faultline::nn {

// A keep tensor is applied by selection. Hidden scores become the lowest number there is, so that
// beside any visible score their weight is exactly 0; the rows that keep nothing would get equal
// weights, and the second selection makes them 0. Both stop gradients and NaNs of hidden keys.
Tensor AttentionWeightsSeam::standard(const Tensor& scores_BHQK, const Mask& mask, double scale) {
  if (!mask.keep.defined()) {
    return masked_softmax(scores_BHQK, mask.key_valid, mask.documents, mask.attributes(scale));
  }
  const DType dtype = scores_BHQK.dtype();
  const double lowest = dtype == DType::f16 ? -65504 : -std::numeric_limits<float>::max() / 2;
  const Tensor kept_BHQK = where(mask.keep, scores_BHQK * scale, full({}, lowest, dtype));
  const Tensor weights_BHQK =
      masked_softmax(kept_BHQK, mask.key_valid, mask.documents, mask.attributes(1));
  return where(mask.keep, weights_BHQK, zeros({}, dtype));
}

namespace {

// ---- math ---------------------------------------------------------------------------------------

// [B, H, Q, K] from q [B, H, Q, D] and the transpose of k [B, G, K, D]; each key head serves R
// neighbouring query heads.
Tensor dot_products(const Tensor& q_BHQD, const Tensor& k_BGKD) {
  const Tensor k_BGDK = transpose(k_BGKD, -2, -1);
  const Shape& q = q_BHQD.shape();
  const int64_t G = k_BGKD.size(1);
  if (q[1] == G) return matmul(q_BHQD, k_BGDK);
  const Tensor q_BGRQD = reshape(q_BHQD, {q[0], G, q[1] / G, q[2], q[3]});
  const Tensor k_BG1DK = reshape(k_BGDK, {q[0], G, 1, q[3], k_BGKD.size(2)});
  return reshape(matmul(q_BGRQD, k_BG1DK), {q[0], q[1], q[2], k_BGKD.size(2)});
}

// [B, H, Q, E] from weights [B, H, Q, K] and v [B, G, K, E].
Tensor weighted_sums(const Tensor& weights_BHQK, const Tensor& v_BGKE) {
  const Shape& w = weights_BHQK.shape();
  const int64_t G = v_BGKE.size(1);
  if (w[1] == G) return matmul(weights_BHQK, v_BGKE);
  const Tensor weights_BGRQK = reshape(weights_BHQK, {w[0], G, w[1] / G, w[2], w[3]});
  const Tensor v_BG1KE = reshape(v_BGKE, {w[0], G, 1, w[3], v_BGKE.size(3)});
  return reshape(matmul(weights_BGRQK, v_BG1KE), {w[0], w[1], w[2], v_BGKE.size(3)});
}

bool all_numbers(const Tensor& x) {
  const Tensor values = x.detach();
  return sum(values - values).to_vector<double>()[0] == 0;
}

// x with 0 for what is no number.
Tensor numbers_of(const Tensor& x) {
  const Tensor values = x.detach();
  const Tensor zero = zeros({}, x.dtype());
  return where(equal(values - values, zero), x, zero);
}

// Keys and values that hold NaN or infinity. The weight of a hidden key is 0, and 0 x NaN is NaN,
// in the product with the values and in those of the derivative. So queries that see such a number
// are computed with it, those that do not with 0 in its place, and selection, which stops gradients
// too, decides between them. Where a query sees one such number of a feature and others are hidden
// from it, the answer is NaN where it might have been infinite.
class HiddenNumbers {
 public:
  HiddenNumbers(const Mask& mask, const ScoreSizes& sizes) {
    const std::vector<uint8_t> seen = visibility(mask, sizes);
    visible_BHQK_ = tensor(std::vector<float>(seen.begin(), seen.end()),
                           {sizes.batch, sizes.heads, sizes.queries, sizes.keys});
    is_visible_BHQK_ = cast(visible_BHQK_, DType::boolean);
  }

  Tensor scores(const Tensor& q_BHQD, const Tensor& k_BGKD) const {
    const Tensor sees_none_BHQ1 = equal(sum(bad_seen(k_BGKD), {-1}, KeepDim::yes), zeros({}));
    const Tensor zero = zeros({}, q_BHQD.dtype());
    const Tensor with = dot_products(where(sees_none_BHQ1, zero, q_BHQD), k_BGKD);
    const Tensor without = dot_products(q_BHQD, numbers_of(k_BGKD));
    return visible(where(sees_none_BHQ1, without, with));
  }

  Tensor sums(const Tensor& weights_BHQK, const Tensor& v_BGKE) const {
    const Tensor own_BHQK = visible(weights_BHQK);
    const Tensor sees_none_BHQE = equal(bad_seen(v_BGKE), zeros({}));
    return where(sees_none_BHQE, weighted_sums(own_BHQK, numbers_of(v_BGKE)),
                 weighted_sums(own_BHQK, v_BGKE));
  }

 private:
  Tensor visible(const Tensor& x_BHQK) const {
    return where(is_visible_BHQK_, x_BHQK, zeros({}, x_BHQK.dtype()));
  }
  // How many numbers of each feature that are none a query sees, [B, H, Q, D].
  Tensor bad_seen(const Tensor& x_BGKD) const {
    const Tensor values = x_BGKD.detach();
    const Tensor is_number = equal(values - values, zeros({}, values.dtype()));
    return cast(weighted_sums(visible_BHQK_, where(is_number, zeros({}), ones({}))), DType::f32);
  }

  Tensor visible_BHQK_;     // f32
  Tensor is_visible_BHQK_;  // bool
};

DType computation_dtype(const Tensor& q) {
  const std::optional<DType> lower = Context::current().autocast;
  return q.dtype() == DType::f32 ? lower.value_or(DType::f32) : q.dtype();
}

// The products of queries and keys. Those of f16 are kept in f32, as flash keeps them: they may
// pass 65504 where the scaled scores do not.
Tensor unscaled_scores(const Tensor& q_BHQD, const Tensor& k_BGKD, const HiddenNumbers* hidden) {
  const auto scores = [&](const Tensor& q, const Tensor& k) {
    return hidden != nullptr ? hidden->scores(q, k) : dot_products(q, k);
  };
  if (computation_dtype(q_BHQD) != DType::f16) return scores(q_BHQD, k_BGKD);
  const Scoped<std::optional<DType>> off(Context::current().autocast, std::nullopt);
  const auto wide = [](const Tensor& x) { return cast(cast(x, DType::f16), DType::f32); };
  return scores(wide(q_BHQD), wide(k_BGKD));
}

Tensor math_attention(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKE,
                      const Mask& mask, double scale, const AttentionOptions& options) {
  std::optional<HiddenNumbers> hidden;
  if (!all_numbers(k_BGKD) || !all_numbers(v_BGKE)) {
    hidden.emplace(mask,
                   ScoreSizes{q_BHQD.size(0), q_BHQD.size(1), q_BHQD.size(2), k_BGKD.size(2)});
  }
  Tensor scores_BHQK = unscaled_scores(q_BHQD, k_BGKD, hidden ? &*hidden : nullptr);
  if (options.softcap > 0) {
    scores_BHQK = tanh(scores_BHQK * (scale / options.softcap)) * options.softcap;
    scale = 1;
  }
  if (mask.bias.defined()) {
    scores_BHQK = scores_BHQK * scale + cast(mask.bias, scores_BHQK.dtype());
    scale = 1;
  }
  Tensor weights_BHQK =
      Context::current().seams.call<AttentionWeightsSeam>(scores_BHQK, mask, scale);
  observe("attention", {scores_BHQK, weights_BHQK, mask.key_valid, mask.documents, mask.keep},
          mask.attributes(scale));
  if (weights_BHQK.dtype() != v_BGKE.dtype()) weights_BHQK = cast(weights_BHQK, v_BGKE.dtype());
  const DropoutUse& drop = options.dropout;
  if (drop.p > 0) weights_BHQK = dropout(weights_BHQK, drop.key, drop.p, drop.layer);
  return hidden ? hidden->sums(weights_BHQK, v_BGKE) : weighted_sums(weights_BHQK, v_BGKE);
}

// ---- the call -----------------------------------------------------------------------------------

void check_sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
  require(q.rank() == 4 && k.rank() == 4 && v.rank() == 4,
          "attention: takes q [B, H, Q, D], k [B, G, K, D] and v [B, G, K, E], got {}, {} and {}",
          q, k, v);
  require(k.size(0) == q.size(0) && v.size(0) == q.size(0),
          "attention: q, k and v must have one batch size, got {}, {} and {}", q, k, v);
  require(q.size(3) == k.size(3), "attention: queries {} and keys {} differ in head size", q, k);
  require(k.size(1) == v.size(1) && k.size(2) == v.size(2),
          "attention: keys {} and values {} must have the same heads and positions", k, v);
  const int64_t H = q.size(1);
  const int64_t G = k.size(1);
  require(G > 0, "attention: keys {} have no heads", k);
  require(H % G == 0,
          "attention: {} query heads cannot share {} key heads ({} mod {} = {}). Set "
          "num_key_value_heads to a divisor of {}",
          H, G, H, G, H % G, H);
}

void check_dtypes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool is_cast = Context::current().autocast.has_value();
  require(is_floating(q.dtype()) && (is_cast || (q.dtype() == k.dtype() && q.dtype() == v.dtype())),
          "attention: q, k and v must be floats of one dtype, got {}, {} and {}; cast them", q, k,
          v);
}

// A forgotten offset would put the first of some new queries at key 0, where they see next to
// nothing.
void check_placement(const Mask& mask, const ScoreSizes& sizes) {
  const bool depends = mask.causal || mask.window > 0;
  require(!depends || sizes.queries == sizes.keys || mask.query_offset != 0 || mask.top_left,
          "attention: {} queries and {} keys, and the mask does not say where the queries stand; "
          "set query_offset to {} if the last query stands at the last key (as with a cache), or "
          "top_left if the first stands at the first",
          sizes.queries, sizes.keys, sizes.keys - sizes.queries);
}

bool weights_are_replaced() {
  for (const char* name : Context::current().seams.replaced()) {
    if (std::string_view(name) == AttentionWeightsSeam::name) return true;
  }
  return false;
}

}  // namespace

Tensor attention(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKE, const Mask& mask,
                 const AttentionOptions& options) {
  check_sizes(q_BHQD, k_BGKD, v_BGKE);
  check_dtypes(q_BHQD, k_BGKD, v_BGKE);
  require(options.softcap >= 0, "attention: softcap must not be negative, got {}; 0 is none",
          options.softcap);
  const AttentionCall call{.dtype = computation_dtype(q_BHQD),
                           .q_BHQD = q_BHQD.shape(),
                           .k_BGKD = k_BGKD.shape(),
                           .v_BGKE = v_BGKE.shape(),
                           .mask = mask,
                           .weights_are_replaced = weights_are_replaced()};
  check(mask, call.sizes());
  check_placement(mask, call.sizes());
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q_BHQD.size(3))));

  const AttentionPolicy policy =
      options.policy ? *options.policy : Context::current().seams.call<AttentionPolicySeam>();
  if (choose(call, policy) == AttentionImplementation::math) {
    return math_attention(q_BHQD, k_BGKD, v_BGKE, mask, scale, options);
  }
  const DropoutUse& drop = options.dropout;
  return flash_attention(
             q_BHQD, k_BGKD, v_BGKE, mask.key_valid, mask.documents, drop.key,
             {mask.attributes(scale), options.softcap, {.p = drop.p, .layer = drop.layer}})
      .y_BHQD;
}

SelfAttention::SelfAttention(int64_t hidden_size, int64_t num_heads, double dropout,
                             const DropoutKey& key)
    : num_heads_(num_heads),
      qkv_(hidden_size, 3 * hidden_size),
      proj_(hidden_size, hidden_size),
      weights_dropout_(dropout, key) {
  require(num_heads > 0 && hidden_size % num_heads == 0,
          "attention: {} heads do not divide a width of {}; choose a divisor", num_heads,
          hidden_size);
  add_child("qkv", qkv_);
  add_child("proj", proj_);
  add_child("dropout", weights_dropout_);
}

Tensor SelfAttention::operator()(const Tensor& x_BTC, const ModelInput& input, int64_t layer) {
  return unit([&] {
    const int64_t B = x_BTC.size(0);
    const int64_t T = x_BTC.size(1);
    const int64_t C = x_BTC.size(2);
    const int64_t D = C / num_heads_;
    const auto heads = [&](const Tensor& part_BTC) {
      return permute(reshape(part_BTC, {B, T, num_heads_, D}), {0, 2, 1, 3});
    };
    const auto [q, k, v] = split3(qkv_(x_BTC));
    KvCache::All all{heads(k), heads(v)};
    if (input.cache != nullptr) all = input.cache->append(layer, all.k_BGKD, all.v_BGKD);
    const Tensor y_BHTD = Context::current().seams.call<SelfAttentionSeam>(
        heads(q), all.k_BGKD, all.v_BGKD, input.mask,
        AttentionOptions{.dropout = weights_dropout_.use_now()});
    return proj_(reshape(permute(y_BHTD, {0, 2, 1, 3}), {B, T, C}));
  });
}

}  // namespace faultline::nn
