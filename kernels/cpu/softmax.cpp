// Softmax over the last dimension, plain, logarithmic and masked.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls body(inputs..., output, n) for each row of the last dimension.
template <class Body>
void map_rows(const KernelArgs& args, const Body& body) {
  const Shape& shape = args.outputs[0].shape;
  if (args.outputs[0].numel() == 0) return;
  const auto [rows, columns] = rows_of(shape);
  const Layout first(args.inputs[0], shape);
  const Layout second(args.input_count > 1 ? args.inputs[1] : args.inputs[0], shape);
  const Layout out(args.outputs[0], shape);
  const int64_t n = columns;
  for_rows(rows, n, args.threads, [&](int64_t begin, int64_t end) {
    Source a(first);
    Source b(second);
    Sink y(out);
    for (int64_t row = begin; row < end; ++row) {
      const float* x0 = a.read(row * n, n);
      const float* x1 = args.input_count > 1 ? b.read(row * n, n) : nullptr;
      body(x0, x1, y.slot(row * n, n), n);
      y.commit(row * n, n);
    }
  });
}

}  // namespace

// y_i = exp(x_i - max x) / sum_j exp(x_j - max x)
void softmax(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* x, const float*, float* y, int64_t n) {
    const double total = spans.exp_and_sum(x, y, n, spans.max(x, n));
    arithmetic_spans().scale(y, y, n, static_cast<float>(1 / total));
  });
}

// dx = y (dy - sum(y dy))
void softmax_backward(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* dy, const float* y, float* dx, int64_t n) {
    spans.softmax_backward(dy, y, dx, n, static_cast<float>(spans.dot(dy, y, n)));
  });
}

// y_i = (x_i - max x) - ln sum_j exp(x_j - max x)
void log_softmax(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* x, const float*, float* y, int64_t n) {
    const float largest = spans.max(x, n);
    const double total = spans.sum_of_exp(x, n, largest);
    spans.subtract_both(x, y, n, largest, static_cast<float>(std::log(total)));
  });
}

// dx = dy - exp(y) sum(dy)
void log_softmax_backward(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* dy, const float* y, float* dx, int64_t n) {
    spans.log_softmax_backward(dy, y, dx, n, static_cast<float>(spans.sum(dy, n)));
  });
}

namespace {

// Scores [B, H, Q, K] and who may see whom.
class Visibility {
 public:
  explicit Visibility(const KernelArgs& args)
      : attributes_(args.attributes.as<MaskAttributes>()),
        valid_(args.inputs[1]),
        documents_(args.inputs[2]),
        keys_(args.outputs[0].shape[-1]) {
    if (documents_.defined()) {
      const int64_t end = attributes_.query_offset + args.outputs[0].shape[-2];
      require(attributes_.query_offset >= 0 && end <= keys_,
              "masked_softmax: documents need query positions inside the {} keys, got {} to {}. "
              "Give queries and keys of one sequence.",
              keys_, attributes_.query_offset, end - 1);
    }
  }

  // How many keys from the first on may be visible at all: later ones are in the future.
  int64_t reach(int64_t query) const {
    if (!attributes_.causal) return keys_;
    return std::clamp<int64_t>(attributes_.query_offset + query + 1, 0, keys_);
  }

  bool depends_on_key() const { return valid_.defined() || documents_.defined(); }

  // allowed[k] = 1 or 0 for the first n keys; returns how many are 1.
  int64_t allow(int64_t batch, int64_t query, float* allowed, int64_t n) const {
    std::fill_n(allowed, n, 1.0F);
    if (valid_.defined()) {
      const bool* valid = valid_.as<bool>() + batch * valid_.strides[0];
      for (int64_t k = 0; k < n; ++k) {
        if (!valid[k * valid_.strides[1]]) allowed[k] = 0;
      }
    }
    if (documents_.defined()) {
      const int32_t* document = documents_.as<int32_t>() + batch * documents_.strides[0];
      const int64_t stride = documents_.strides[1];
      const int32_t own = document[(attributes_.query_offset + query) * stride];
      for (int64_t k = 0; k < n; ++k) {
        if (document[k * stride] != own) allowed[k] = 0;
      }
    }
    return std::count(allowed, allowed + n, 1.0F);
  }

 private:
  MaskAttributes attributes_;
  const TensorView& valid_;
  const TensorView& documents_;
  int64_t keys_;
};

// Softmax of scale * x over the allowed ones of n keys. A score that is not allowed is never used,
// so that whatever it holds cannot reach the others.
void softmax_allowed(const float* x, const float* allowed, float* y, int64_t n, float scale) {
  const RowSpans& spans = row_spans();
  spans.select(allowed, x, y, n, scale, -kInfinity);
  const double total = spans.exp_and_sum(y, y, n, spans.max(y, n));
  spans.select(allowed, y, y, n, static_cast<float>(1 / total), 0.0F);
}

void softmax_prefix(const float* x, float* y, int64_t n, float scale) {
  const RowSpans& spans = row_spans();
  const double total = spans.exp_and_sum(y, y, n, spans.scale_and_max(x, y, n, scale));
  arithmetic_spans().scale(y, y, n, static_cast<float>(1 / total));
}

}  // namespace

void masked_softmax(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  if (args.outputs[0].numel() == 0) return;
  const int64_t queries = shape[-2];
  const int64_t keys = shape[-1];
  const int64_t heads = shape.rank() > 3 ? shape[-3] : 1;
  const Visibility visibility(args);
  const auto scale = static_cast<float>(args.attributes.as<MaskAttributes>().scale);
  const Layout scores(args.inputs[0], shape);
  const Layout weights(args.outputs[0], shape);
  for_rows(rows_of(shape).rows, keys, args.threads, [&](int64_t begin, int64_t end) {
    Source source(scores);
    Sink sink(weights);
    Buffer allowed_keys;
    float* const allowed = visibility.depends_on_key() ? allowed_keys.get(keys) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = row % queries;
      const int64_t n = visibility.reach(query);
      const int64_t visible =
          allowed ? visibility.allow(row / (queries * heads), query, allowed, n) : n;
      float* y = sink.slot(row * keys, keys);
      const float* x = n > 0 ? source.read(row * keys, n) : nullptr;
      if (visible == 0) {
        std::fill_n(y, keys, 0.0F);
      } else if (visible == n) {
        softmax_prefix(x, y, n, scale);
      } else {
        softmax_allowed(x, allowed, y, n, scale);
      }
      std::fill(y + n, y + keys, 0.0F);
      sink.commit(row * keys, keys);
    }
  });
}

}  // namespace faultline::cpu
