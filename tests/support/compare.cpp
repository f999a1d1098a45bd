#include "tests/support/compare.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace faultline::test {
namespace {

// The bits of a float as an integer in which neighbours differ by one.
template <class Integer, class Float>
Integer ordered(Float value) {
  const auto bits = std::bit_cast<Integer>(value);
  return bits < 0 ? std::numeric_limits<Integer>::min() - bits : bits;
}

template <class Allowed>
testing::AssertionResult compare(const std::vector<double>& actual,
                                 const std::vector<double>& expected, Nan nan,
                                 const Allowed& allowed) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  double worst = 0;  // in units of what is allowed
  size_t where = 0;
  size_t failures = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (nan == Nan::must_match && std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    const double bound = allowed(i);
    // Equal infinities have no difference; a NaN makes every comparison false, which is a failure.
    const double difference = std::abs(actual[i] - expected[i]);
    const bool near = difference <= bound && difference < std::numeric_limits<double>::infinity();
    if (actual[i] == expected[i] || near) continue;
    ++failures;
    const double ratio = difference / bound;
    const double excess = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    if (excess > worst) {
      worst = excess;
      where = i;
    }
  }
  if (failures == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format(
             "{} of {} elements differ; worst is element {}: {:.17g}, expected {:.17g}, allowed "
             "difference {:.3g}",
             failures, actual.size(), where, actual[where], expected[where], allowed(where));
}

testing::AssertionResult same_kind(const Tensor& actual, const Tensor& expected) {
  if (actual.dtype() == expected.dtype() && actual.shape() == expected.shape()) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << describe(actual) << ", expected " << describe(expected);
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, std::complex<double>>) {
    return std::isnan(value.real()) || std::isnan(value.imag());
  } else {
    return std::isnan(convert<double>(value));
  }
}

}  // namespace

int64_t ulp_distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<int64_t>::max();
  return std::abs(int64_t{ordered<int32_t>(a)} - int64_t{ordered<int32_t>(b)});
}

int64_t ulp_distance(double a, double b) {
  int64_t distance = std::numeric_limits<int64_t>::max();
  if (std::isnan(a) || std::isnan(b)) return distance;
  const int64_t x = ordered<int64_t>(a);
  const int64_t y = ordered<int64_t>(b);
  // Numbers of opposite sign can be further apart than an integer can say.
  if (__builtin_sub_overflow(std::max(x, y), std::min(x, y), &distance)) {
    return std::numeric_limits<int64_t>::max();
  }
  return distance;
}

testing::AssertionResult close(const std::vector<double>& actual,
                               const std::vector<double>& expected, const Tolerance& tolerance) {
  return compare(actual, expected, tolerance.nan, [&](size_t i) {
    return tolerance.absolute + tolerance.relative * std::abs(expected[i]);
  });
}

testing::AssertionResult within(const std::vector<double>& actual,
                                const std::vector<double>& expected,
                                const std::vector<double>& allowed) {
  if (allowed.size() != expected.size()) {
    return testing::AssertionFailure()
           << allowed.size() << " bounds for " << expected.size() << " elements";
  }
  return compare(actual, expected, Nan::fails, [&](size_t i) { return allowed[i]; });
}

testing::AssertionResult close(const Tensor& actual, const Tensor& expected,
                               const Tolerance& tolerance) {
  if (auto kind = same_kind(actual, expected); !kind) return kind;
  return close(actual.to_vector<double>(), expected.to_vector<double>(), tolerance);
}

testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected, Nan nan) {
  if (auto kind = same_kind(actual, expected); !kind) return kind;
  return with_type(actual.dtype(), [&]<class T>() -> testing::AssertionResult {
    using Bytes = std::array<std::byte, sizeof(T)>;
    const std::vector<T> a = actual.to_vector<T>();
    const std::vector<T> b = expected.to_vector<T>();
    for (size_t i = 0; i < a.size(); ++i) {
      const T x = a[i];
      const T y = b[i];
      const bool equal = std::bit_cast<Bytes>(x) == std::bit_cast<Bytes>(y);
      if (equal && (nan == Nan::must_match || !is_nan(x))) continue;
      if (nan == Nan::must_match && is_nan(x) && is_nan(y)) continue;
      return testing::AssertionFailure() << fmt::format(
                 "element {} of {}: {:.17g}, expected {:.17g}{}", i, describe(actual),
                 convert<double>(x), convert<double>(y), equal ? " (a NaN was not expected)" : "");
    }
    return testing::AssertionSuccess();
  });
}

}  // namespace faultline::test
