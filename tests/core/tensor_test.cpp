#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "core/context.h"
#include "core/error.h"

namespace faultline {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

Tensor counting(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), 0);
  return tensor(values, shape);
}

TEST(Tensor, ToVectorReadsStridedViewsInRowMajorOrder) {
  const Tensor x = counting({3, 4});
  EXPECT_EQ(x.alias({4, 3}, {1, 4}).to_vector<int64_t>(),
            (std::vector<int64_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(x.alias({3, 2}, {4, 2}, 1).to_vector<int64_t>(),
            (std::vector<int64_t>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(x.alias({2, 3}, {0, 1}, 4).to_vector<int64_t>(),
            (std::vector<int64_t>{4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(x.alias({3}, {-4}, 8).to_vector<int64_t>(), (std::vector<int64_t>{8, 4, 0}));
  EXPECT_EQ(x.alias({}, {}, 7).item<int64_t>(), 7);
  EXPECT_TRUE(counting({0, 4}).to_vector<double>().empty());
  EXPECT_TRUE(x.alias({3, 0}, {4, 1}).to_vector<double>().empty());
}

TEST(Tensor, ConvertsOnTheWayToTheHost) {
  const Tensor x = tensor({1.5F, -2.0F, 0.0F});
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1.5, -2, 0}));
  EXPECT_EQ(x.to_vector<int32_t>(), (std::vector<int32_t>{1, -2, 0}));
  EXPECT_EQ(x.to_vector<bool>(), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(tensor({true, false}).to_vector<float>(), (std::vector<float>{1, 0}));
}

// A cast of such a value is undefined in C++ and differs between machines.
TEST(Tensor, ConvertsWhatAnIntegerCannotHoldToItsEndsAndNanToZero) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor x = tensor({std::nan(""), kInfinity, -kInfinity, 1e30, -3.7, 255.9, -0.5});
  constexpr auto kMost = std::numeric_limits<int32_t>::max();
  constexpr auto kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(x.to_vector<int32_t>(), (std::vector<int32_t>{0, kMost, kLeast, kMost, -3, 255, 0}));
  EXPECT_EQ(x.to_vector<uint8_t>(), (std::vector<uint8_t>{0, 255, 0, 255, 0, 255, 0}));
  EXPECT_EQ(x.to_vector<int64_t>()[1], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(x.to_vector<int64_t>()[2], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(tensor({0x1p63F, -0x1p63F}).to_vector<int64_t>(),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()}));
}

TEST(Tensor, AliasesShareElementsAndVersions) {
  const Tensor x = counting({2, 3});
  Tensor row = x.alias({3}, {1}, 3);
  EXPECT_TRUE(row.same_storage(x));
  EXPECT_FALSE(row.same_handle(x));
  const uint32_t before = x.version();
  const std::vector<double> values{7, 8, 9};
  row.assign<double>(values, "test");
  EXPECT_EQ(x.version(), before + 1);
  EXPECT_STREQ(x.last_writer(), "test");
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{0, 1, 2, 7, 8, 9}));
}

TEST(Tensor, IsExclusiveWhileNobodyElseSeesTheElements) {
  Tensor x = counting({4});
  EXPECT_TRUE(x.is_exclusive());
  Tensor other = x;
  EXPECT_FALSE(x.is_exclusive());
  other = x.detach();
  EXPECT_FALSE(x.is_exclusive());
  other = {};
  EXPECT_TRUE(x.is_exclusive());
}

TEST(Tensor, WrongUseNamesWhatWasExpectedAndFound) {
  EXPECT_NE(error_of([] { Tensor().shape(); }).find("undefined"), std::string::npos);
  const Tensor x = counting({2, 3});
  EXPECT_NE(error_of([&] { x.item<float>(); }).find("f64[2, 3]"), std::string::npos);
  EXPECT_NE(error_of([&] { x.data<float>(); }).find("f64"), std::string::npos);
  EXPECT_NE(error_of([&] {
              x.alias({3, 2}, {1, 3}).data<double>();
            }).find("contiguous"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              tensor({1.0, 2.0}, {3});
            }).find("needs 3 elements, got 2"),
            std::string::npos);
  Tensor y = x;
  const std::vector<double> two{1, 2};
  EXPECT_THROW(y.assign<double>(two), InvalidArgument);
  const std::vector<float> six(6, 0.0F);
  EXPECT_THROW(y.assign<float>(six), InvalidArgument);
  EXPECT_THROW(x.size(2), InvalidArgument);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(describe(x), "f64[2, 3]");
  EXPECT_EQ(describe(Tensor()), "undefined");
}

TEST(Tensor, RefusesSizesBeyondTheAddressSpace) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(empty({most}, DType::f64), InvalidArgument);
  EXPECT_THROW(empty({most / 2, 3}), InvalidArgument);
  EXPECT_THROW(empty({-1}), InvalidArgument);
}

TEST(Tensor, MayViewMemoryThatSomethingElseOwns) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3});
  auto* bytes = reinterpret_cast<std::byte*>(owner->data());
  const std::weak_ptr<std::vector<float>> watch = owner;
  {
    const Tensor x = Tensor::over(adopt(bytes, 12, cpu_device(), owner), DType::f32, {3});
    owner.reset();
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Context, AThreadWithoutOneIsTold) {
  std::string text;
  std::thread([&] { text = error_of([] { empty({2}); }); }).join();
  EXPECT_NE(text.find("Context context"), std::string::npos) << text;
}

}  // namespace
}  // namespace faultline
