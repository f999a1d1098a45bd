// Properties over random shapes, with sizes 0 and 1 and primes.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "tests/support/compare.h"
#include "tests/support/op_samples.h"

namespace faultline::test {
namespace {

Shape any_shape(int most_dims) {
  Shape shape;
  const int rank = *rc::gen::inRange(0, most_dims + 1);
  for (int d = 0; d < rank; ++d) shape.push_back(*rc::gen::element<int64_t>(0, 1, 1, 2, 3, 5, 7));
  return shape;
}

Tensor counting(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), 1);
  return tensor(values, shape);
}

// `shape` with some sizes made 1 and some leading ones dropped: it broadcasts to `shape`.
Shape narrower(const Shape& shape) {
  Shape result;
  for (int d = *rc::gen::inRange(0, shape.rank() + 1); d < shape.rank(); ++d) {
    result.push_back(*rc::gen::arbitrary<bool>() ? 1 : shape[d]);
  }
  return result;
}

Dims any_order(int rank) {
  Dims order;
  for (int d = 0; d < rank; ++d) order.push_back(d);
  for (int d = rank - 1; d > 0; --d) std::swap(order[d], order[*rc::gen::inRange(0, d + 1)]);
  return order;
}

TEST(Broadcasting, AddsWhatTheOracleAddsAndSumsGradientsBack) {
  EXPECT_TRUE(rc::check("broadcast add", [] {
    const Shape shape = any_shape(4);
    const Tensor a = counting(shape);
    const Tensor b = counting(narrower(shape));
    set_requires_grad(a);
    set_requires_grad(b);
    const Tensor y = *rc::gen::arbitrary<bool>() ? add(a, b) : add(b, a);
    const Dense da = dense(a);
    const Dense db = dense(b);
    const Dense expected = generate(shape, [&](const Dims& i) { return da.at(i) + db.at(i); });
    RC_ASSERT(y.shape() == shape);
    RC_ASSERT(y.to_vector<double>() == expected.values);
    backward(y, ones(shape, DType::f64));
    RC_ASSERT(gradient(a).shape() == a.shape());
    RC_ASSERT(gradient(b).shape() == b.shape());
    // Every element of b was used as often as the shape is larger. Whole numbers: exact.
    const double uses =
        b.numel() == 0 ? 0 : static_cast<double>(numel(shape)) / static_cast<double>(b.numel());
    for (const double g : gradient(b).to_vector<double>()) RC_ASSERT(g == uses);
  }));
}

// A view of a permuted, sliced tensor, where the layout allows one, has the elements of the copy;
// reshape gives them always.
TEST(Reshape, OfAnyLayoutKeepsTheRowMajorOrder) {
  EXPECT_TRUE(rc::check("reshape", [] {
    const Tensor x = counting(any_shape(4));
    Tensor v = permute(x, any_order(x.rank()));
    if (v.rank() > 0 && *rc::gen::arbitrary<bool>()) {
      const int dim = *rc::gen::inRange(0, v.rank());
      const int64_t begin = *rc::gen::inRange<int64_t>(0, v.shape()[dim] + 1);
      v = slice(v, dim, begin, v.shape()[dim]);
    }
    // Another factoring of the same number of elements: split some sizes, join some neighbours.
    Shape target;
    for (const int64_t size : v.shape()) {
      const bool join = target.rank() > 0 && *rc::gen::arbitrary<bool>();
      if (join) {
        target[-1] *= size;
      } else {
        target.push_back(size);
      }
      if (*rc::gen::inRange(0, 4) == 0 && target.rank() < kMaxRank - v.rank()) target.push_back(1);
    }
    if (v.rank() == 0) target = *rc::gen::element(Shape{}, Shape{1}, Shape{1, 1});
    const std::vector<double> expected = v.to_vector<double>();
    const Tensor reshaped = reshape(v, target);
    RC_ASSERT(reshaped.shape() == target);
    RC_ASSERT(reshaped.to_vector<double>() == expected);
    try {
      const Tensor seen = view(v, target);
      RC_ASSERT(seen.same_storage(v));
      RC_ASSERT(seen.to_vector<double>() == expected);
    } catch (const InvalidArgument&) {
      RC_ASSERT(!v.is_contiguous());
    }
  }));
}

TEST(Permute, BackAndForthIsTheIdentityForValuesAndGradients) {
  EXPECT_TRUE(rc::check("permute", [] {
    const Tensor x = counting(any_shape(4));
    set_requires_grad(x);
    const Dims order = any_order(x.rank());
    Dims inverse = order;
    for (int d = 0; d < order.rank(); ++d) inverse[static_cast<int>(order[d])] = d;
    const Tensor y = permute(permute(x, order), inverse);
    RC_ASSERT(y.shape() == x.shape());
    RC_ASSERT(y.strides() == x.strides());
    RC_ASSERT(y.to_vector<double>() == x.to_vector<double>());
    backward(y, x.detach());
    RC_ASSERT(gradient(x).to_vector<double>() == x.to_vector<double>());
  }));
}

TEST(Split, AndCatAreInverse) {
  EXPECT_TRUE(rc::check("split and cat", [] {
    Shape shape = any_shape(3);
    shape.push_back(*rc::gen::inRange<int64_t>(1, 20));
    const int dim = *rc::gen::inRange(0, shape.rank());
    RC_PRE(shape[dim] > 0);
    const Tensor x = counting(shape);
    set_requires_grad(x);
    const auto parts = split(x, *rc::gen::inRange<int64_t>(1, shape[dim] + 2), dim);
    const Tensor y = cat(parts, dim);
    RC_ASSERT(y.shape() == shape);
    RC_ASSERT(y.to_vector<double>() == x.to_vector<double>());
    backward(y, x.detach());
    RC_ASSERT(gradient(x).to_vector<double>() == x.to_vector<double>());
  }));
}

// Over whole numbers: exact in any order.
TEST(Sum, OverAnyDimensionsInAnyOrderIsTheSameNumber) {
  EXPECT_TRUE(rc::check("sum", [] {
    const Tensor x = counting(any_shape(4));
    const Tensor v = permute(x, any_order(x.rank()));
    const double total = static_cast<double>(x.numel()) * (static_cast<double>(x.numel()) + 1) / 2;
    RC_ASSERT(sum(v).item<double>() == total);
    Tensor folded = v;
    while (folded.rank() > 0) folded = sum(folded, {*rc::gen::inRange(-folded.rank(), 0)});
    RC_ASSERT(folded.item<double>() == total);
    const Tensor narrow = sum_to(v, narrower(v.shape()));
    RC_ASSERT(sum(narrow).item<double>() == total);
  }));
}

}  // namespace
}  // namespace faultline::test
