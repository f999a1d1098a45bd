#include "io/finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/error.h"
#include "io/hf_model.h"
#include "tests/io/hf_folder.h"

namespace faultline {
namespace {

using testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What is said of 2,500 numbers, which are more than two blocks, with `value` at `at`.
std::string said_of(float value, size_t at, DType dtype) {
  std::vector<float> values(2500, -1.5F);
  values[at] = value;
  const Tensor numbers = cast(tensor(values, {50, 50}), dtype);
  return error_of<InvalidArgument>([&] { require_finite(numbers, "file", "w"); });
}

TEST(RequireFinite, NamesFileTensorAndElementForEveryDtypeAndPlace) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const size_t at : {size_t{0}, size_t{1023}, size_t{1024}, size_t{2499}}) {
      SCOPED_TRACE(fmt::format("{} {}", name(dtype), at));
      EXPECT_THAT(said_of(kNaN, at, dtype),
                  HasSubstr(fmt::format("file: tensor \"w\" holds NaN (element {} of 2500)", at)));
      EXPECT_THAT(said_of(-kInfinity, at, dtype), HasSubstr("holds infinity"));
    }
  }
}

TEST(RequireFinite, TakesTheLargestAndTheSmallestNumbersAndIntegers) {
  for (const float value : {65504.0F, -65504.0F, 0x1p-24F, -0.0F}) {
    for (const DType dtype : {DType::f16, DType::f32, DType::f64}) {
      EXPECT_NO_THROW(require_finite(cast(tensor<float>({value}, {1}), dtype), "file", "w"));
    }
  }
  const float most = std::numeric_limits<float>::max();
  EXPECT_NO_THROW(require_finite(tensor<float>({most, -most}, {2}), "file", "w"));
  EXPECT_NO_THROW(require_finite(tensor<int32_t>({-1, 0x7F800000}, {2}), "file", "w"));
  EXPECT_NO_THROW(require_finite(zeros({0, 3}), "file", "w"));
}

TEST(RequireFinite, AFolderWithSuchAWeightIsRefused) {
  const HfFolder folder("hf_gpt2");
  const std::string weight = "transformer.h.1.mlp.c_fc.weight";
  folder.change([&](auto& tensors) {
    std::vector<float> values = tensors.at(weight).template to_vector<float>();
    values[7] = kNaN;
    tensors[weight] = tensor(values, tensors.at(weight).shape());
  });
  const std::string error = error_of<InvalidArgument>([&] { load_hf_model(folder.path()); });
  EXPECT_THAT(error, HasSubstr(folder / "model.safetensors"));
  EXPECT_THAT(error, HasSubstr("\"" + weight + "\" holds NaN (element 7 of"));
}

}  // namespace
}  // namespace faultline
