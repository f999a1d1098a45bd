#include "core/shape.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>
#include <vector>

#include "core/error.h"
#include "core/launch.h"

namespace faultline {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

Shape any_shape() {
  const auto sizes = *rc::gen::container<std::vector<int64_t>>(
      static_cast<size_t>(*rc::gen::inRange(0, kMaxRank + 1)), rc::gen::inRange<int64_t>(0, 8));
  return Shape(std::span<const int64_t>(sizes));
}

TEST(Dims, IndexFromBothEnds) {
  const Dims dims{2, 3, 5};
  EXPECT_EQ(dims.rank(), 3);
  EXPECT_EQ(dims[0], 2);
  EXPECT_EQ(dims[-1], 5);
  EXPECT_EQ(dims[-3], 2);
  EXPECT_EQ(dims.without(1), (Dims{2, 5}));
  EXPECT_NE(dims, (Dims{2, 3}));
  EXPECT_NE(dims, (Dims{2, 3, 7}));
  EXPECT_TRUE(Dims().empty());
  EXPECT_EQ(to_string(dims), "[2, 3, 5]");
  EXPECT_EQ(to_string(Dims()), "[]");
}

TEST(Dims, HoldSixAndRefuseASeventh) {
  Dims dims{1, 2, 3, 4, 5, 6};
  EXPECT_THROW(dims.push_back(7), InvalidArgument);
  EXPECT_EQ(dims.rank(), 6);
  const std::vector<int64_t> seven(7, 1);
  const auto text = error_of([&] { Dims{std::span<const int64_t>(seven)}; });
  EXPECT_NE(text.find("at most 6 dimensions, got 7"), std::string::npos) << text;
}

TEST(Numel, CountsAndRefusesWhatDoesNotFit) {
  EXPECT_EQ(numel(Shape{}), 1);
  EXPECT_EQ(numel(Shape{7, 1, 3}), 21);
  EXPECT_EQ(numel(Shape{7, 0, 3}), 0);
  EXPECT_EQ(numel(Shape{kLargest}), kLargest);
  EXPECT_THROW(numel(Shape{2, -1}), InvalidArgument);
  EXPECT_THROW(numel(Shape{kLargest, 2}), InvalidArgument);
  EXPECT_THROW(numel(Shape{int64_t{1} << 32, int64_t{1} << 31}), InvalidArgument);
  // The zero must not hide sizes whose strides would overflow.
  EXPECT_THROW(numel(Shape{0, int64_t{1} << 32, int64_t{1} << 31}), InvalidArgument);
  const auto text = error_of([] { numel(Shape{3, -4}); });
  EXPECT_NE(text.find("[3, -4]"), std::string::npos) << text;
}

TEST(Strides, OfContiguousTensorsAreRowMajor) {
  EXPECT_EQ(contiguous_strides({2, 3, 5}), (Strides{15, 5, 1}));
  EXPECT_EQ(contiguous_strides({}), Strides{});
  EXPECT_EQ(contiguous_strides({2, 0, 5}), (Strides{5, 5, 1}));
}

TEST(Broadcast, FollowsNumpysRule) {
  EXPECT_EQ(broadcast({2, 3}, {2, 3}, "add"), (Shape{2, 3}));
  EXPECT_EQ(broadcast({2, 1, 5}, {3, 1}, "add"), (Shape{2, 3, 5}));
  EXPECT_EQ(broadcast({}, {4}, "add"), Shape{4});
  EXPECT_EQ(broadcast({1}, {0}, "add"), Shape{0});
  EXPECT_EQ(broadcast({0, 1}, {1, 7}, "add"), (Shape{0, 7}));
  const auto text = error_of([] { broadcast({2, 3}, {2, 4}, "add"); });
  for (const char* part : {"add", "[2, 3]", "[2, 4]"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_THROW(broadcast({2}, {0}, "add"), InvalidArgument);
}

TEST(Broadcast, IsSymmetricAndKeepsAShapeThatItAlreadyHas) {
  EXPECT_TRUE(rc::check("broadcast", [] {
    const Shape a = any_shape();
    // Some sizes become 1, some leading ones go away.
    Shape b;
    for (int d = *rc::gen::inRange(0, a.rank() + 1); d < a.rank(); ++d) {
      b.push_back(*rc::gen::arbitrary<bool>() ? 1 : a[d]);
    }
    RC_ASSERT(broadcast(a, b, "test") == a);
    RC_ASSERT(broadcast(b, a, "test") == a);
  }));
}

// Reading through broadcast strides gives the element of the unbroadcast tensor.
TEST(BroadcastStrides, ReadTheElementThatBroadcastingRepeats) {
  EXPECT_TRUE(rc::check("broadcast_strides", [] {
    const Shape to = any_shape();
    Shape from;
    const int dropped = *rc::gen::inRange(0, to.rank() + 1);
    for (int d = dropped; d < to.rank(); ++d) {
      from.push_back(*rc::gen::arbitrary<bool>() ? 1 : to[d]);
    }
    const Strides source = contiguous_strides(from);
    const Strides strides = broadcast_strides(from, source, to);
    for (int64_t n = 0; n < numel(to); ++n) {
      int64_t rest = n;
      int64_t read = 0;
      int64_t expected = 0;
      for (int d = to.rank() - 1; d >= 0; --d) {
        const int64_t index = rest % to[d];
        rest /= to[d];
        read += index * strides[d];
        if (d >= dropped && from[d - dropped] != 1) expected += index * source[d - dropped];
      }
      RC_ASSERT(read == expected);
    }
  }));
}

TEST(NormalizeDim, CountsFromTheBackAndNamesTheOp) {
  EXPECT_EQ(normalize_dim(-1, 3, "sum"), 2);
  EXPECT_EQ(normalize_dim(-3, 3, "sum"), 0);
  EXPECT_EQ(normalize_dim(2, 3, "sum"), 2);
  for (const int64_t bad : {int64_t{3}, int64_t{-4}, kLargest}) {
    const auto text = error_of([&] { normalize_dim(bad, 3, "sum"); });
    EXPECT_NE(text.find("sum"), std::string::npos) << text;
  }
  EXPECT_THROW(normalize_dim(0, 0, "sum"), InvalidArgument);
  EXPECT_THROW(normalize_dim(-1, 0, "sum"), InvalidArgument);
}

TEST(TensorView, KnowsItsRangeForAnyStrides) {
  std::byte memory[256] = {};
  TensorView view;
  view.data = memory + 128;
  view.dtype = DType::f32;
  view.shape = {2, 3};
  view.strides = {-4, 2};
  EXPECT_EQ(byte_range(view).begin, memory + 128 - 16);
  EXPECT_EQ(byte_range(view).end, memory + 128 + 20);
  EXPECT_FALSE(view.is_contiguous());
  view.strides = {3, 1};
  EXPECT_TRUE(view.is_contiguous());
  view.shape = {2, 0};
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(byte_range(view).begin, byte_range(view).end);
  view.shape = {1, 3};
  view.strides = {77, 1};
  EXPECT_TRUE(view.is_contiguous()) << "a size of one has no stride";
  EXPECT_THROW(view.as<double>(), InternalError);
}

}  // namespace
}  // namespace faultline
