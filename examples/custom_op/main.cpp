// Checks the op of softcap.cpp: its derivative against central differences and complex step, f32
// against f64, and its errors. Prints one line; exits 0 when everything holds, else 1.

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "autograd/functional.h"
#include "autograd/gradcheck.h"
#include "core/context.h"
#include "softcap.h"

using namespace faultline;

namespace {

constexpr double kCap = 1.5;

// What does not hold, or an empty text.
std::string problem() {
  const auto capped = [](std::span<const Tensor> in) {
    return softcap(transpose(in[0], 0, 1), kCap);
  };
  const Tensor x = normal({5, 7}, 0, 2, /*seed=*/1, /*stream=*/1, DType::f64);
  const GradcheckReport differences = gradcheck(capped, {x});
  if (!differences.passed()) return differences.text();
  const GradcheckReport complex = complex_step(capped, {x});
  if (!complex.passed()) return complex.text();

  // Three operations of f32, each within two units in the last place of a number up to the cap.
  const auto narrow = softcap(cast(x, DType::f32), kCap).to_vector<double>();
  const auto wide = softcap(cast(cast(x, DType::f32), DType::f64), kCap).to_vector<double>();
  for (size_t i = 0; i < wide.size(); ++i) {
    if (!(std::abs(narrow[i] - wide[i]) <= 6 * 0x1p-23 * kCap)) {
      return fmt::format("element {} is {} in f32 and {} in f64", i, narrow[i], wide[i]);
    }
  }
  try {
    softcap(tensor({int64_t{1}}), kCap);
    return "softcap took whole numbers";
  } catch (const InvalidArgument&) {
  }
  return "";
}

}  // namespace

int main() {
  try {
    Context context;
    const ContextGuard guard(context);
    const std::string text = problem();
    std::printf("custom_op: %s\n",
                text.empty() ? "softcap agrees with central differences, complex step and f64"
                             : text.c_str());
    return text.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("custom_op: %s\n", error.what());
    return 1;
  }
}
