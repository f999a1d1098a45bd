#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/tensor.h"

// Comparisons for tests. All of them fail on a NaN unless the test says that NaNs belong there, and
// report the worst element with both values.
namespace faultline::test {

enum class Nan : uint8_t {
  fails,       // a NaN on either side is a failure
  must_match,  // both sides hold NaN at the same places
};

// How many representable numbers lie between two floats; 0 for equal ones (and for 0 and -0). A
// NaN is as far away as can be.
int64_t ulp_distance(float a, float b);
int64_t ulp_distance(double a, double b);

// |actual - expected| <= absolute + relative |expected|, element by element.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  Nan nan = Nan::fails;
};

testing::AssertionResult close(const std::vector<double>& actual,
                               const std::vector<double>& expected, const Tolerance& tolerance);
// |actual - expected| <= allowed, with a bound of its own for each element.
testing::AssertionResult within(const std::vector<double>& actual,
                                const std::vector<double>& expected,
                                const std::vector<double>& allowed);

// Same shape and dtype is required of tensors; values as above.
testing::AssertionResult close(const Tensor& actual, const Tensor& expected,
                               const Tolerance& tolerance);
// Shape, dtype and every bit; -0 differs from 0.
testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected,
                                   Nan nan = Nan::fails);

}  // namespace faultline::test
