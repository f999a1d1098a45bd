#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/error.h"
#include "core/float16.h"
#include "diagnose/attention_checks.h"
#include "diagnose/model_runs.h"
#include "diagnose/values.h"
#include "nn/llama.h"
#include "nn/varlen.h"

// Shapes: P positions, T tokens, H query heads, D head size.
namespace faultline::diagnose {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kNoRope = "the model has no rotary positions";

// The rotation of one model as the seams of the current Context make it.
class Rotation {
 public:
  explicit Rotation(const nn::LlamaConfig& config)
      : rope_(config.rope), head_size_(config.head()) {}

  int64_t head_size() const { return head_size_; }
  double magnitude() const { return nn::rope_magnitude(rope_); }

  // x [1, 1, P, D] turned to these positions. With dynamic_ntk `length` chooses the angles.
  std::vector<double> turned(const Tensor& x, const std::vector<int32_t>& positions,
                             int64_t length) const {
    const nn::RopeTables tables = Context::current().seams.call<nn::RopeTablesSeam>(
        rope_, head_size_, tensor(positions, {std::ssize(positions)}), length);
    return nn::rotary(x, tables, rope_.layout).to_vector<double>();
  }

  // The same by angles in f64, under a layout and with what `rounded` makes of a position.
  template <class Rounded>
  std::vector<double> expected(const Tensor& x, const std::vector<int32_t>& positions,
                               int64_t length, RopeLayout layout, Rounded rounded) const {
    const auto frequencies = nn::rope_frequencies(rope_, head_size_, length);
    std::vector<double> y = x.to_vector<double>();
    for (size_t p = 0; p < positions.size(); ++p) {
      double* row = &y[p * static_cast<size_t>(head_size_)];
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const bool half = layout == RopeLayout::half_split;
        double& a = row[half ? i : 2 * i];
        double& b = row[half ? i + frequencies.size() : 2 * i + 1];
        const double angle = rounded(positions[p]) * frequencies[i];
        const double cosine = magnitude() * std::cos(angle);
        const double sine = magnitude() * std::sin(angle);
        const double turned_a = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned_a;
      }
    }
    return y;
  }

  RopeLayout layout() const { return rope_.layout; }
  RopeLayout other_layout() const {
    return rope_.layout == RopeLayout::half_split ? RopeLayout::interleaved
                                                  : RopeLayout::half_split;
  }

 private:
  const nn::RopeConfig& rope_;
  int64_t head_size_;
};

double largest_of(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = larger_or_nan(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

double largest_in(const Tensor& x) {
  double largest = 0;
  for (const double value : x.to_vector<double>()) largest = std::max(largest, std::abs(value));
  return largest;
}

// Of the rotations of a forward pass, those that asked for another layout than the model's.
int64_t other_layouts(nn::LanguageModel& model, RopeLayout layout) {
  CheckedModel checked(model);
  int64_t count = 0;
  const auto listening =
      Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
        if (std::string_view(event.launch.label.op) != "rotary") return;
        if (event.launch.args.attributes.as<RopeAttributes>().layout != layout) ++count;
      });
  checked.logits({checked.text(checked.positions(), 0)});
  return count;
}

}  // namespace

AttentionCheck check_rope_angles(nn::LanguageModel& model) {
  AttentionCheck check{.id = "rope.angles",
                       .compared = "turned vectors, and by angles in f64",
                       .reason = "cosine, sine, two products and a sum in f32"};
  const auto* llama = dynamic_cast<const nn::Llama*>(&model);
  if (llama == nullptr) {
    check.skipped = kNoRope;
    return check;
  }
  const NoGrad off;
  const Rotation rotation(llama->config());
  // Beyond 256 not every position is a bf16 number.
  const std::vector<int32_t> positions = {0, 1, 2, 7, 100, 255, 257, 1025, 2051, 4097};
  const int64_t length = positions.back() + 1;
  const Tensor x = normal({1, 1, std::ssize(positions), rotation.head_size()}, 0, 1, 1, 3);
  const auto turned = rotation.turned(x, positions, length);
  const auto exactly = [](int32_t position) { return static_cast<double>(position); };
  const auto in_bf16 = [](int32_t position) {
    return static_cast<double>(bfloat16(static_cast<double>(position)));
  };
  const auto apart = [&](RopeLayout layout, auto rounded) {
    return largest_of(turned, rotation.expected(x, positions, length, layout, rounded));
  };
  check.difference = apart(rotation.layout(), exactly);
  check.bound = 8 * 0x1p-24 * largest_in(x) * rotation.magnitude();
  if (check.ok() && other_layouts(model, rotation.layout()) > 0) check.difference = kNan;
  if (check.ok()) return check;

  if (std::isnan(check.difference) || apart(rotation.other_layout(), exactly) <= check.bound) {
    check.what = "Pairs are formed as in the other layout.";
    check.cause = "rope.layout";
  } else {
    const bool explained = apart(rotation.layout(), in_bf16) < 0.1 * check.difference;
    check.what = explained ? "Positions are rounded to bf16." : "The angles are wrong.";
    check.cause = "rope.bf16";
  }
  return check;
}

AttentionCheck check_rope_shift(nn::LanguageModel& model) {
  AttentionCheck check{.id = "rope.shift",
                       .compared = "scores of turned vectors, and all positions further on",
                       .reason = "2 D products of vectors that are off as above"};
  const auto* llama = dynamic_cast<const nn::Llama*>(&model);
  if (llama == nullptr) {
    check.skipped = kNoRope;
    return check;
  }
  const NoGrad off;
  const Rotation rotation(llama->config());
  const auto D = static_cast<size_t>(rotation.head_size());
  constexpr int64_t kTokens = 6;
  constexpr int64_t kLength = 4200;
  const Tensor q = normal({1, 1, kTokens, rotation.head_size()}, 0, 1, 1, 4);
  const Tensor k = normal(q.shape(), 0, 1, 1, 5);
  const auto scores = [&](int32_t shift) {
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < kTokens; ++i) positions.push_back(shift + 3 * i);
    const auto a = rotation.turned(q, positions, kLength);
    const auto b = rotation.turned(k, positions, kLength);
    std::vector<double> result;
    for (size_t i = 0; i < kTokens; ++i) {
      for (size_t j = 0; j < kTokens; ++j) {
        double sum = 0;
        for (size_t d = 0; d < D; ++d) sum += a[i * D + d] * b[j * D + d];
        result.push_back(sum);
      }
    }
    return result;
  };
  const double size = std::max(largest_in(q), largest_in(k)) * rotation.magnitude();
  check.bound = 2 * static_cast<double>(D) * 2 * size * 8 * 0x1p-24 * size;
  for (const int32_t shift : {1, 250, 1023, 4097}) {
    check.difference = larger_or_nan(check.difference, largest_of(scores(shift), scores(0)));
  }
  if (check.ok()) return check;
  check.what = "A distance means another thing further on.";
  check.cause = "rope.bf16";
  return check;
}

// ---- sequences behind each other ----------------------------------------------------------------

namespace {

constexpr int64_t kTokens = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kHeadSize = 4;

Tensor numbers(const Shape& shape, uint64_t stream) { return normal(shape, 0, 1, 1, stream); }

struct Packed {
  Tensor q_THD = numbers({kTokens, kHeads, kHeadSize}, 6);
  Tensor k_THD = numbers({kTokens, kHeads, kHeadSize}, 7);
  Tensor v_THD = numbers({kTokens, kHeads, kHeadSize}, 8);

  Tensor attend(const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k,
                int64_t longest = 0) const {
    return nn::attention_varlen(
        q_THD, k_THD, v_THD,
        {tensor(cu_q, {std::ssize(cu_q)}), tensor(cu_k, {std::ssize(cu_k)}), longest, longest},
        {.align = nn::CausalAlign::bottom_right});
  }
  // Sequence [begin, end) alone.
  Tensor alone(int64_t begin, int64_t end) const {
    const auto heads = [&](const Tensor& x) {
      return reshape(permute(slice(x, 0, begin, end), {1, 0, 2}),
                     {1, kHeads, end - begin, kHeadSize});
    };
    const Tensor y = nn::attention(heads(q_THD), heads(k_THD), heads(v_THD), nn::Mask{});
    return permute(reshape(y, {kHeads, end - begin, kHeadSize}), {1, 0, 2});
  }
};

template <class Call>
bool refuses(Call call) {
  try {
    call();
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

Tensor attend_pages(const std::vector<int32_t>& table, int64_t columns,
                    const std::vector<int32_t>& lengths) {
  const int64_t B = std::ssize(lengths);
  return nn::attention_paged(numbers({B, kHeads, 1, kHeadSize}, 9),
                             {.k_pool = numbers({4, 2, kHeads, kHeadSize}, 10),
                              .v_pool = numbers({4, 2, kHeads, kHeadSize}, 11),
                              .page_table = tensor(table, {B, columns}),
                              .lengths = tensor(lengths, {B})});
}

// The first lie that is believed, as the fault that this is; "" for none.
std::string believed_lie(const Packed& packed) {
  const std::vector<int32_t> right = {0, 3, 8};
  if (!refuses([&] { packed.attend(right, {0, 3, 9}); })) return "varlen.overrun:past-end";
  if (!refuses([&] { packed.attend(right, {0, 9, 8}); })) return "varlen.overrun:past-end";
  if (!refuses([&] { packed.attend(right, {1, 3, 8}); })) return "varlen.overrun:cu-seqlens";
  if (!refuses([&] { packed.attend(right, {0, 3, 7}); })) return "varlen.overrun:cu-seqlens";
  if (!refuses([&] { packed.attend(right, right, 4); })) return "varlen.overrun:clamp";
  if (!refuses([&] { attend_pages({0, 1, 2, 3}, 2, {5, 4}); })) return "varlen.overrun:paged";
  if (!refuses([&] { attend_pages({0, 4, 2, 3}, 2, {4, 4}); })) return "varlen.overrun:paged";
  if (!refuses([&] { attend_pages({0, 1, 1, 3}, 2, {4, 4}); })) return "varlen.overrun:paged";
  return "";
}

}  // namespace

AttentionCheck check_varlen() {
  AttentionCheck check{.id = "varlen",
                       .compared = "sequences behind each other, and each alone",
                       .reason = "products, exp and sums in f32, values up to 5"};
  const NoGrad off;
  const Packed packed;
  check.bound = 5 * 104 * 0x1p-23;
  const std::vector<int32_t> bounds = {0, 3, 8};
  const Tensor parts[] = {packed.alone(0, 3), packed.alone(3, 8)};
  check.difference = largest_difference(packed.attend(bounds, bounds), cat(parts, 0));
  if (!check.ok()) {
    check.what = "A sequence sees another one.";
    check.cause = "varlen.overrun:cu-seqlens";
  } else if (const std::string cause = believed_lie(packed); !cause.empty()) {
    check.difference = kNan;
    check.what = "Bounds or pages that cannot be right are believed.";
    check.cause = cause;
  }
  return check;
}

}  // namespace faultline::diagnose
