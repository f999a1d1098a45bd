// Attention as its definition says it, one query after another ("Attention is all you need",
// Vaswani et al. 2017; several query heads to a key head: "GQA", Ainslie et al. 2023; soft-cap:
// "Gemma 2", Gemma team 2024). What the tiled kernel must agree with.

#include <cmath>
#include <limits>

#include "core/rng.h"
#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"
#include "kernels/reference/visibility.h"

namespace faultline::reference {
namespace {

// A tensor [B, H, T, D] or [B, H, T] in rows of D or 1.
template <class T>
struct Heads {
  explicit Heads(const TensorView& view)
      : heads(view.shape[1]),
        length(view.shape[2]),
        width(view.shape.rank() > 3 ? view.shape[3] : 1),
        values(read_all<T>(view)) {}

  T* row(int64_t b, int64_t h, int64_t t) {
    return values.data() + ((b * heads + h) * length + t) * width;
  }

  int64_t heads, length, width;
  std::vector<T> values;
};

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  T total(0);
  for (int64_t i = 0; i < n; ++i) total += a[i] * b[i];
  return total;
}

// y += factor x
template <class T>
void add(T factor, const T* x, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// What one query does to one key that it sees.
template <class T>
struct Seen {
  int64_t key;
  T score;   // scaled and capped
  T factor;  // of dropout: 0 or 1 / (1 - p)
};

// The inputs that forward and backward share. Shapes: B batch, H query heads, G key heads, Q
// queries, K keys, D head size.
template <class T>
class Problem {
 public:
  explicit Problem(const KernelArgs& args, const char* op)
      : q(args.inputs[0]),
        k(args.inputs[1]),
        v(args.inputs[2]),
        attributes(args.attributes.as<FlashAttentionAttributes>()),
        visible_(attributes.mask, args.inputs[3], args.inputs[4], q.length, k.length, op) {
    if (attributes.dropout.p > 0) key_ = read_all<int64_t>(args.inputs[5]);
  }

  int64_t key_head(int64_t h) const { return h / (q.heads / k.heads); }

  std::vector<Seen<T>> seen(int64_t b, int64_t h, int64_t query) {
    std::vector<Seen<T>> result;
    for (int64_t key = 0; key < k.length; ++key) {
      if (!visible_(b, query, key)) continue;
      const T* key_row = k.row(b, key_head(h), key);
      const T score = dot(q.row(b, h, query), key_row, q.width) * T(attributes.mask.scale);
      result.push_back({key, capped(score), T(dropout(b, h, query, key))});
    }
    return result;
  }

  // d score / d (q k) of a score.
  T slope(T score) const {
    const double cap = attributes.softcap;
    const T ratio = cap > 0 ? score / cap : T(0);
    return (T(1) - ratio * ratio) * attributes.mask.scale;
  }

  Heads<T> q, k, v;
  FlashAttentionAttributes attributes;

 private:
  T capped(T score) const {
    const double cap = attributes.softcap;
    return cap > 0 ? std::tanh(score / cap) * cap : score;
  }

  // As the op dropout over weights [B, H, Q, K].
  double dropout(int64_t b, int64_t h, int64_t query, int64_t key) const {
    const auto& [p, layer] = attributes.dropout;
    if (p == 0) return 1;
    const auto seed = static_cast<uint64_t>(key_[0]);
    const int64_t place = (h * q.length + query) * k.length + key;
    const auto random = philox({static_cast<uint32_t>(place), static_cast<uint32_t>(key_[2] + b),
                                layer, static_cast<uint32_t>(key_[1])},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    return random[0] * 0x1p-32 >= p ? 1 / (1 - p) : 0;
  }

  Visibility visible_;
  std::vector<int64_t> key_;
};

// -infinity of nothing.
template <class T>
T log_sum_exp(const std::vector<Seen<T>>& seen) {
  double greatest = -std::numeric_limits<double>::infinity();
  for (const Seen<T>& one : seen) greatest = std::max(greatest, real_of(one.score));
  if (seen.empty()) return T(greatest);
  T total(0);
  for (const Seen<T>& one : seen) total += std::exp(one.score - greatest);
  return greatest + std::log(total);
}

// Calls body(b, h, query) for every row of a [B, H, Q, D] view.
template <class Body>
void each_query(const TensorView& q, Body&& body) {
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t h = 0; h < q.shape[1]; ++h) {
      for (int64_t query = 0; query < q.shape[2]; ++query) body(b, h, query);
    }
  }
}

}  // namespace

// Inputs q, k, v, key_valid, documents, dropout key; outputs y and the logarithm of the sum of
// exp(score) over the keys that each query sees.
void flash_attention(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    Problem<T> problem(args, "flash_attention");
    Heads<T> y(args.outputs[0]);
    Heads<T> lse(args.outputs[1]);
    std::fill(y.values.begin(), y.values.end(), T(0));
    each_query(args.inputs[0], [&](int64_t b, int64_t h, int64_t query) {
      const std::vector<Seen<T>> seen = problem.seen(b, h, query);
      const T total = *lse.row(b, h, query) = log_sum_exp(seen);
      for (const Seen<T>& one : seen) {
        const T weight = std::exp(one.score - total) * one.factor;
        add(weight, problem.v.row(b, problem.key_head(h), one.key), y.row(b, h, query), y.width);
      }
    });
    write_all(args.outputs[0], y.values);
    write_all(args.outputs[1], lse.values);
  });
}

// Inputs as above, then dy, y, log-sum-exp; outputs dq, dk, dv. With weights P, dropout factors Z
// and dP = Z (dy v): dv = (Z P)^T dy, dscore = P (dP - sum_k P dP). The tiled kernel takes P and
// that sum from y and the log-sum-exp; here they are computed again.
void flash_attention_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    Problem<T> problem(args, "flash_attention_backward");
    Heads<T> dy(args.inputs[6]);
    Heads<T> dq(args.outputs[0]);
    Heads<T> dk(args.outputs[1]);
    Heads<T> dv(args.outputs[2]);
    for (Heads<T>* gradient : {&dq, &dk, &dv}) {
      std::fill(gradient->values.begin(), gradient->values.end(), T(0));
    }
    each_query(args.inputs[0], [&](int64_t b, int64_t h, int64_t query) {
      const int64_t g = problem.key_head(h);
      const T* dy_row = dy.row(b, h, query);
      const std::vector<Seen<T>> seen = problem.seen(b, h, query);
      std::vector<T> weights;
      std::vector<T> dweights;
      const T total = log_sum_exp(seen);
      T mean(0);
      for (const Seen<T>& one : seen) {
        weights.push_back(std::exp(one.score - total));
        dweights.push_back(dot(dy_row, problem.v.row(b, g, one.key), dy.width) * one.factor);
        mean += weights.back() * dweights.back();
      }
      for (size_t i = 0; i < seen.size(); ++i) {
        const int64_t key = seen[i].key;
        const T dscore = weights[i] * (dweights[i] - mean) * problem.slope(seen[i].score);
        add(weights[i] * seen[i].factor, dy_row, dv.row(b, g, key), dv.width);
        add(dscore, problem.k.row(b, g, key), dq.row(b, h, query), dq.width);
        add(dscore, problem.q.row(b, h, query), dk.row(b, g, key), dk.width);
      }
    });
    write_all(args.outputs[0], dq.values);
    write_all(args.outputs[1], dk.values);
    write_all(args.outputs[2], dv.values);
  });
}

}  // namespace faultline::reference
