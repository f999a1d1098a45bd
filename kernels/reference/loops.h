#pragma once

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/launch.h"
#include "kernels/layout.h"

// What the reference kernels are written with. They compute in one of three scalars, whatever the
// views hold: double, std::complex<double> for c128, int64_t for integers and bool. A result is
// rounded once, when it is stored. Nothing here is fast; everything is meant to be read.
namespace faultline::reference {

using Complex = std::complex<double>;

// The part that comparisons look at: a complex step must not change a decision.
inline double real_of(Complex x) { return x.real(); }
inline double real_of(double x) { return x; }
inline int64_t real_of(int64_t x) { return x; }

// Reads elements of a view as T, by offset from its first element.
template <class T>
class Reader {
 public:
  explicit Reader(const TensorView& view)
      : data_(view.data), load_(with_type(view.dtype, []<class From>() { return &load<From>; })) {}

  T operator[](int64_t offset) const { return load_(data_, offset); }

 private:
  template <class From>
  static T load(const std::byte* data, int64_t offset) {
    return convert<T>(reinterpret_cast<const From*>(data)[offset]);
  }

  const std::byte* data_;
  T (*load_)(const std::byte*, int64_t);
};

// Writes T to elements of a view, rounding to its dtype.
template <class T>
class Writer {
 public:
  explicit Writer(const TensorView& view)
      : data_(view.data), store_(with_type(view.dtype, []<class To>() { return &store<To>; })) {}

  void put(int64_t offset, T value) const { store_(data_, offset, value); }

 private:
  template <class To>
  static void store(std::byte* data, int64_t offset, T value) {
    reinterpret_cast<To*>(data)[offset] = convert<To>(value);
  }

  std::byte* data_;
  void (*store_)(std::byte*, int64_t, T);
};

// Calls visit(offsets) for every index of `shape` in row-major order; offsets[i] is where the index
// lies in a layout with strides[i].
template <size_t N, class Visit>
void for_each_offset(const Shape& shape, const std::array<Strides, N>& strides, Visit&& visit) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  Dims index = shape;
  std::fill(index.begin(), index.end(), 0);
  std::array<int64_t, N> offsets{};
  for (int64_t n = 0; n < count; ++n) {
    visit(std::as_const(offsets));
    for (int d = shape.rank() - 1; d >= 0; --d) {
      const bool wraps = ++index[d] == shape[d];
      for (size_t i = 0; i < N; ++i) {
        offsets[i] += wraps ? strides[i][d] * (1 - shape[d]) : strides[i][d];
      }
      if (!wraps) break;
      index[d] = 0;
    }
  }
}

// outputs[0] = function(inputs[0], ..., inputs[N - 1]) element by element, inputs broadcast.
template <class T, size_t N, class Function>
void map(const KernelArgs& args, Function function) {
  const TensorView& out = args.outputs[0];
  [&]<size_t... I>(std::index_sequence<I...>) {
    using Result = decltype(function((static_cast<void>(I), T{})...));
    const std::array<Reader<T>, N> in = {Reader<T>(args.inputs[I])...};
    const Writer<Result> result(out);
    const std::array<Strides, N + 1> strides = {
        broadcast_strides(args.inputs[I].shape, args.inputs[I].strides, out.shape)..., out.strides};
    for_each_offset(out.shape, strides, [&](const std::array<int64_t, N + 1>& at) {
      result.put(at[N], function(in[I][at[I]]...));
    });
  }
  (std::make_index_sequence<N>());
}

// A view as rows along its last dimension, numbered in row-major order. A scalar is one row of one.
template <class T>
class Rows {
 public:
  explicit Rows(const TensorView& view) : reader_(view), writer_(view) {
    const int last = view.shape.rank() - 1;
    length_ = last < 0 ? 1 : view.shape[last];
    step_ = last < 0 ? 0 : view.strides[last];
    outer_ = last < 0 ? view.shape : view.shape.without(last);
    outer_strides_ = last < 0 ? view.strides : view.strides.without(last);
    for (const int64_t size : outer_) count_ *= size;
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }

  std::vector<T> read(int64_t row) const {
    std::vector<T> values(static_cast<size_t>(length_));
    int64_t offset = start(row);
    for (T& value : values) {
      value = reader_[offset];
      offset += step_;
    }
    return values;
  }

  void write(int64_t row, const std::vector<T>& values) const {
    int64_t offset = start(row);
    for (const T& value : values) {
      writer_.put(offset, value);
      offset += step_;
    }
  }

 private:
  int64_t start(int64_t row) const { return offset_of(outer_, outer_strides_, row); }

  Reader<T> reader_;
  Writer<T> writer_;
  Shape outer_;
  Strides outer_strides_;
  int64_t count_ = 1;
  int64_t length_ = 1;
  int64_t step_ = 0;
};

// Reads and writes one number per row: the row-major elements of a view of any rank.
template <class T>
std::vector<T> read_all(const TensorView& view) {
  std::vector<T> values;
  const Reader<T> reader(view);
  for_each_offset<1>(view.shape, {view.strides},
                     [&](const auto& at) { values.push_back(reader[at[0]]); });
  return values;
}
template <class T>
void write_all(const TensorView& view, const std::vector<T>& values) {
  const Writer<T> writer(view);
  size_t next = 0;
  for_each_offset<1>(view.shape, {view.strides},
                     [&](const auto& at) { writer.put(at[0], values[next++]); });
}

// Calls body.operator()<T>() with the scalar that computes `inputs` without loss: complex if any is
// c128, else double if any is floating, else int64_t.
template <class Body>
void with_scalar(const KernelArgs& args, Body&& body) {
  bool floating = false;
  for (int i = 0; i < args.input_count; ++i) {
    const TensorView& view = args.inputs[i];
    if (view.defined() && view.dtype == DType::c128) return body.template operator()<Complex>();
    floating = floating || (view.defined() && is_floating(view.dtype));
  }
  return floating ? body.template operator()<double>() : body.template operator()<int64_t>();
}

// The same for kernels whose result is no integer: complex or double.
template <class Body>
void with_real_scalar(const KernelArgs& args, Body&& body) {
  for (int i = 0; i < args.input_count; ++i) {
    if (args.inputs[i].dtype == DType::c128) return body.template operator()<Complex>();
  }
  return body.template operator()<double>();
}

}  // namespace faultline::reference
