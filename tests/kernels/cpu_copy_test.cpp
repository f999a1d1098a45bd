#include <gtest/gtest.h>

#include <bit>

#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16,     DType::bf16, DType::i32,
                          DType::i64, DType::u8,  DType::boolean, DType::c128};

// Small whole numbers and halves: exact in every dtype that holds fractions.
Tensor numbers(DType dtype, const Shape& shape) {
  Tensor result = empty(shape, dtype);
  with_type(dtype, [&]<class T>() {
    for (int64_t i = 0; i < result.numel(); ++i) {
      reinterpret_cast<T*>(result.view().data)[i] = convert<T>(0.5 * static_cast<double>(i % 97));
    }
  });
  return result;
}

// Element by element, by the strides of `x`.
Tensor plain_cast(const Tensor& x, DType dtype) {
  Tensor result = unwritten(x.shape(), dtype);
  with_type(x.dtype(), [&]<class From>() {
    with_type(dtype, [&]<class To>() {
      for (int64_t i = 0; i < x.numel(); ++i) {
        int64_t rest = i;
        int64_t offset = 0;
        for (int d = x.rank() - 1; d >= 0; --d) {
          offset += rest % x.size(d) * x.strides()[d];
          rest /= x.size(d);
        }
        reinterpret_cast<To*>(result.view().data)[i] =
            convert<To>(reinterpret_cast<const From*>(x.view().data)[offset]);
      }
    });
  });
  return result;
}

Tensor cast_to(const Tensor& x, DType dtype, int threads = 1) {
  return CpuCall().in(x).out(unwritten(x.shape(), dtype)).threads(threads).run(&cpu::cast);
}

std::vector<Tensor> layouts(DType dtype) {
  const Tensor x = numbers(dtype, {3, 33, 40});
  return {
      x,
      x.alias({40, 33}, {1, 40}),           // transposed
      x.alias({3, 40, 33}, {1320, 1, 40}),  // last two swapped
      x.alias({33, 3, 40}, {40, 1320, 1}),  // first two swapped
      x.alias({40, 33, 3}, {1, 40, 1320}),  // reversed
      x.alias({33, 4}, {40, 9}, 3),         // every ninth
      x.alias({5, 40}, {0, 1}),             // repeated rows
      x.alias({40, 5}, {1, 0}),             // repeated elements
      x.alias({}, {}, 17),
      x.alias({0, 3}, {3, 1}),
  };
}

TEST(CpuCopy, CastTakesEveryPairOfDtypesInEveryLayout) {
  for (const DType from : kAll) {
    for (const Tensor& x : layouts(from)) {
      for (const DType to : kAll) {
        SCOPED_TRACE(describe(x) + " to " + std::string(name(to)));
        EXPECT_TRUE(same_bits(cast_to(x, to), plain_cast(x, to)));
      }
    }
  }
}

TEST(CpuCopy, ContiguousIsTheCastToTheSameDtype) {
  for (const DType dtype : kAll) {
    for (const Tensor& x : layouts(dtype)) {
      const Tensor y = CpuCall().in(x).out(unwritten(x.shape(), dtype)).run(&cpu::contiguous);
      EXPECT_TRUE(same_bits(y, cast_to(x, dtype)));
    }
  }
}

TEST(CpuCopy, ThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({3, 129, 257}, 1);
  for (const Tensor& view : {x, x.alias({257, 129, 3}, {1, 257, 129 * 257})}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      EXPECT_TRUE(same_bits(cast_to(view, dtype, 4), cast_to(view, dtype, 1)));
    }
  }
}

template <class Half>
void every_pattern_widens() {
  std::vector<Half> patterns;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    patterns.push_back(Half::from_bits(static_cast<uint16_t>(bits)));
  }
  const Tensor wide = cast_to(tensor(patterns, {0x10000}), DType::f32);
  const std::vector<float> actual = wide.to_vector<float>();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const auto expected = static_cast<float>(patterns[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;
      ASSERT_EQ(std::signbit(actual[i]), std::signbit(expected)) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

TEST(CpuCopy, EveryBinary16PatternWidens) { every_pattern_widens<float16>(); }
TEST(CpuCopy, EveryBfloat16PatternWidens) { every_pattern_widens<bfloat16>(); }

// Around every 16-bit number: itself, its neighbours in f32, the half way to the next and the
// neighbours of that. Odd counts end in a tail.
template <class Half>
void roundings_match() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; bits += 3) {
    const auto exact = static_cast<float>(Half::from_bits(static_cast<uint16_t>(bits)));
    const auto next = static_cast<float>(Half::from_bits(static_cast<uint16_t>(bits + 1)));
    const float middle = exact + (next - exact) / 2;
    for (const float center : {exact, middle}) {
      values.push_back(center);
      values.push_back(std::nextafter(center, 3e38F));
      values.push_back(std::nextafter(center, -3e38F));
    }
  }
  values.push_back(1e30F);
  const Tensor y = cast_to(tensor(values, {static_cast<int64_t>(values.size())}), dtype_of<Half>());
  const std::span<const Half> actual = y.template data<Half>();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(actual[i].bits, Half(values[i]).bits) << values[i];
  }
}

TEST(CpuCopy, Binary16RoundsAsItsConstructor) { roundings_match<float16>(); }
TEST(CpuCopy, Bfloat16RoundsAsItsConstructor) { roundings_match<bfloat16>(); }

}  // namespace
}  // namespace faultline::test
