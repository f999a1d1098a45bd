#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "core/context.h"
#include "nn/attention.h"

// What a mask hides reaches nobody who may not see it, whichever part of the mask hides it.
namespace faultline::nn {
namespace {

struct HiddenCase {
  const char* name;
  Mask mask;
  std::vector<int> hidden;  // keys whose content is bad
  std::vector<int> clean;   // queries that see none of them
  bool flash = true;
};

Tensor valid_keys() { return cast(tensor<float>({1, 0, 1, 1, 1, 1}, {1, 6}), DType::boolean); }

std::vector<HiddenCase> hidden_cases() {
  const ScoreSizes sizes{1, 2, 6, 6};
  const Tensor keep = cast(tensor<float>({1, 1, 1, 0, 1, 1}, {6}), DType::boolean);
  const Tensor bias = tensor<float>({0, 0, 0, -INFINITY, 0, 0}, {6});
  return {
      {"causal", {}, {3}, {0, 1, 2}},
      {"window", {.causal = true, .window = 2}, {1}, {0, 3, 4, 5}},
      {"documents",
       {.causal = false, .documents = tensor<int32_t>({0, 0, 0, 1, 1, 1}, {1, 6})},
       {4},
       {0, 1, 2}},
      {"padding", {.causal = false, .key_valid = valid_keys()}, {1}, {0, 1, 2, 3, 4, 5}},
      {"keep",
       mask_from_tensor(keep, {Axis::key}, MaskKind::keep, sizes),
       {3},
       {0, 1, 2, 3, 4, 5},
       false},
      {"additive",
       mask_from_tensor(bias, {Axis::key}, MaskKind::additive, sizes),
       {3},
       {0, 1, 2, 3, 4, 5},
       false},
  };
}

// What the queries in `clean` answer and get as gradients, when the bad keys hold these numbers.
std::vector<double> answers(const HiddenCase& c, AttentionImplementation which, DType dtype,
                            float bad_k, float bad_v, double softcap) {
  const Shape shape{1, 2, 6, 4};
  const auto filled = [&](uint64_t stream, float bad) {
    std::vector<float> x = normal(shape, 0, 1, 1, stream).to_vector<float>();
    for (int h = 0; h < 2; ++h) {
      for (const int key : c.hidden) x[(h * 6 + key) * 4 + 1] = bad;
    }
    return cast(tensor<float>(x, shape), dtype);
  };
  const Parameter q("q", normal(shape, 0, 1, 1, 1, dtype), Decay::no);
  const Parameter k("k", filled(2, bad_k), Decay::no);
  const Parameter v("v", filled(3, bad_v), Decay::no);
  const Tensor y = attention(q.value(), k.value(), v.value(), c.mask,
                             {.softcap = softcap, .policy = AttentionPolicy::require(which)});
  // Only the clean queries are asked, as a loss that ignores the others does.
  std::vector<float> asked(48, 0);
  for (int h = 0; h < 2; ++h) {
    for (const int row : c.clean) {
      for (int d = 0; d < 4; ++d) asked[(h * 6 + row) * 4 + d] = 1 + 0.1F * d;
    }
  }
  const Tensor weights = cast(equal(tensor<float>(asked, shape), zeros({})), DType::boolean);
  backward(sum(where(weights, zeros({}, dtype), y * cast(tensor<float>(asked, shape), dtype))));
  std::vector<double> all;
  const auto rows = [&](const Tensor& x) {
    const std::vector<double> values = x.to_vector<double>();
    for (int h = 0; h < 2; ++h) {
      for (const int row : c.clean) {
        for (int d = 0; d < 4; ++d) all.push_back(values[(h * 6 + row) * 4 + d]);
      }
    }
  };
  rows(y);
  rows(q.gradient());
  // Keys that only such queries see.
  if (c.clean.size() == 6 || std::string_view(c.name) == "documents") {
    for (const Parameter* p : {&k, &v}) rows(p->gradient());
  }
  return all;
}

// Exact: what a clean query does with finite numbers in the hidden places it does without them, as
// the same products of the same numbers.
TEST(AttentionHidden, NanAndInfinityReachNobodyWhoMayNotSeeThem) {
  for (const HiddenCase& c : hidden_cases()) {
    for (const auto which : {AttentionImplementation::math, AttentionImplementation::flash}) {
      if (which == AttentionImplementation::flash && !c.flash) continue;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const double softcap : {0.0, 5.0}) {
          const auto expected = answers(c, which, dtype, 0.5F, 0.5F, softcap);
          for (const float bad : {NAN, INFINITY}) {
            const std::string what = fmt::format("{} {} {} softcap {} bad {}", c.name, name(which),
                                                 name(dtype), softcap, bad);
            EXPECT_TRUE(answers(c, which, dtype, bad, 0.5F, softcap) == expected) << what << " k";
            EXPECT_TRUE(answers(c, which, dtype, 0.5F, bad, softcap) == expected) << what << " v";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace faultline::nn
