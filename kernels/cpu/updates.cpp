// In-place launches of training: gradient accumulation, optimizer steps and norms over many
// tensors at once.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::kernels {
namespace {

using cpu::arithmetic_spans;
using cpu::kBlock;
using cpu::kPiece;

template <class Row>
std::span<const Row> table(const TensorView& view) {
  return {reinterpret_cast<const Row*>(view.as<uint8_t>()),
          static_cast<size_t>(view.numel()) / sizeof(Row)};
}

double scalar(const TensorView& view) { return *view.as<double>(); }

float gradient_factor(const TensorView& view) {
  return view.defined() ? static_cast<float>(scalar(view)) : 1.0F;
}

// Calls body(row, begin, end) for pieces of all tensors in a table, on several threads. Pieces are
// numbered through all tensors so that many small ones share the threads as well.
template <class Row, class Body>
void for_table(std::span<const Row> rows, int64_t piece, int threads, const Body& body) {
  std::vector<int64_t> first_piece;  // of each row, and the end
  first_piece.reserve(rows.size() + 1);
  int64_t pieces = 0;
  int64_t elements = 0;
  for (const Row& row : rows) {
    first_piece.push_back(pieces);
    pieces += (row.count + piece - 1) / piece;
    elements += row.count;
  }
  first_piece.push_back(pieces);
  const int64_t batch = std::max<int64_t>(1, kPiece / piece);
  cpu::for_pieces(
      pieces, batch, cpu::threads_for(elements, threads), [&](int64_t from, int64_t to) {
        auto row =
            static_cast<size_t>(std::upper_bound(first_piece.begin(), first_piece.end(), from) -
                                first_piece.begin() - 1);
        for (int64_t i = from; i < to; ++i) {
          while (i >= first_piece[row + 1]) ++row;
          const int64_t begin = (i - first_piece[row]) * piece;
          body(rows[row], begin, std::min(begin + piece, rows[row].count), i);
        }
      });
}

template <class T>
void accumulate_one_by_one(const TensorView& x, const TensorView& y, int64_t count) {
  const T* from = x.as<T>();
  T* to = y.as<T>();
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(to[i] + from[i]);
}

void accumulate_floats(const KernelArgs& args, int64_t count) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const cpu::Layout from(x, y.shape);
  const cpu::Layout to(y, y.shape);
  cpu::for_pieces(count, kPiece, cpu::threads_for(count, args.threads),
                  [&](int64_t begin, int64_t end) {
                    cpu::Source added(from);
                    cpu::Source before(to);
                    cpu::Sink sink(to);
                    for (; begin < end; begin += kBlock) {
                      const int64_t n = std::min(kBlock, end - begin);
                      arithmetic_spans().add(before.read(begin, n), added.read(begin, n),
                                             sink.slot(begin, n), n);
                      sink.commit(begin, n);
                    }
                  });
}

}  // namespace

void run_accumulate(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const int64_t count = y.numel();
  switch (y.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return accumulate_floats(args, count);
    case DType::f64:
      return accumulate_one_by_one<double>(x, y, count);
    case DType::c128:
      return accumulate_one_by_one<std::complex<double>>(x, y, count);
    case DType::i32:
      return accumulate_one_by_one<int32_t>(x, y, count);
    case DType::i64:
      return accumulate_one_by_one<int64_t>(x, y, count);
    case DType::u8:
      return accumulate_one_by_one<uint8_t>(x, y, count);
    case DType::boolean:
      break;
  }
  fail("accumulate: expected numbers, got bool. Cast first.");
}

// m += (1 - beta1) (g - m), v = beta2 v + (1 - beta2) g^2,
// p = (1 - lr weight_decay) p - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
void run_adamw(const KernelArgs& args) {
  const auto a = args.attributes.as<AdamwAttributes>();
  const double* corrections = args.inputs[1].as<double>();
  const double lr = scalar(args.inputs[2]);
  const cpu::AdamwFactors factors = {
      .decay = static_cast<float>(1 - lr * a.weight_decay),
      .gradient = gradient_factor(args.inputs[3]),
      .one_minus_beta1 = static_cast<float>(1 - a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .one_minus_beta2 = static_cast<float>(1 - a.beta2),
      .root_correction2 = static_cast<float>(std::sqrt(corrections[1])),
      .epsilon = static_cast<float>(a.epsilon),
      .step_size = static_cast<float>(lr / corrections[0]),
  };
  for_table(table<UpdateTensors>(args.inputs[0]), kPiece, args.threads,
            [&](const UpdateTensors& t, int64_t begin, int64_t end, int64_t) {
              arithmetic_spans().adamw(t.parameter + begin, t.gradient + begin, t.first + begin,
                                       t.second + begin, end - begin, factors);
            });
}

// g += weight_decay p, b = momentum b + g, p -= lr (nesterov ? g + momentum b : b)
// (Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013).
void run_sgd(const KernelArgs& args) {
  const auto a = args.attributes.as<SgdAttributes>();
  const cpu::SgdFactors factors = {
      .gradient = gradient_factor(args.inputs[3]),
      .weight_decay = static_cast<float>(a.weight_decay),
      .momentum = static_cast<float>(a.momentum),
      .lr = static_cast<float>(scalar(args.inputs[2])),
      .nesterov = a.nesterov,
  };
  // Short pieces: momentum and parameter are two passes, the second from the cache.
  for_table(table<UpdateTensors>(args.inputs[0]), 4 * kBlock, args.threads,
            [&](const UpdateTensors& t, int64_t begin, int64_t end, int64_t) {
              arithmetic_spans().sgd(t.parameter + begin, t.gradient + begin,
                                     t.first == nullptr ? nullptr : t.first + begin, end - begin,
                                     factors);
            });
}

void run_sum_of_squares(const KernelArgs& args) {
  const auto rows = table<TensorSpan>(args.inputs[0]);
  int64_t blocks = 0;
  for (const TensorSpan& row : rows) blocks += (row.count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  for_table(rows, kBlock, args.threads,
            [&](const TensorSpan& t, int64_t begin, int64_t end, int64_t block) {
              sums[static_cast<size_t>(block)] =
                  cpu::row_spans().sum_of_squares(t.data + begin, end - begin, 0.0);
            });
  double total = 0;
  for (const double sum : sums) total += sum;
  *args.outputs[0].as<double>() = total;
}

}  // namespace faultline::kernels
