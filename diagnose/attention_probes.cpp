#include "diagnose/attention_probes.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/rng.h"

namespace faultline::diagnose {
namespace {

// Fills q, k and v with normal numbers; scores have the standard deviation `spread`.
class ProbeMaker {
 public:
  explicit ProbeMaker(DType dtype) : dtype_(dtype) {
    require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
            "attention probes: come in f32, f16 or bf16, not in {}", faultline::name(dtype));
  }

  AttentionProbe filled(AttentionProbe probe, double spread = 1) {
    const int64_t B = probe.batch;
    const int64_t D = probe.head_size;
    probe.q = numbers(B * probe.heads * probe.queries * D, spread);
    probe.k = numbers(B * probe.key_heads * probe.keys * D, 1);
    probe.v = numbers(B * probe.key_heads * probe.keys * D, 1);
    return probe;
  }

  // The same with a bias as wide as the scores.
  AttentionProbe biased(AttentionProbe probe) {
    probe = filled(std::move(probe));
    probe.bias = numbers(probe.batch * probe.heads * probe.queries * probe.keys, 1);
    return probe;
  }

 private:
  std::vector<float> numbers(int64_t count, double deviation) {
    std::vector<float> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(rounded(deviation * random_.normal(drawn_++)));
    }
    return result;
  }

  float rounded(double value) const {
    return with_type(dtype_, [&]<class T>() { return convert<float>(convert<T>(value)); });
  }

  DType dtype_;
  RandomSequence random_{1, 0};
  uint64_t drawn_ = 0;
};

// Whether each of `keys` positions is among the first or, with `on_the_left`, last `length`.
enum class Side : uint8_t { left, right };
std::vector<uint8_t> padded(const std::vector<int64_t>& lengths, int64_t keys, Side padding) {
  std::vector<uint8_t> valid;
  for (const int64_t length : lengths) {
    for (int64_t k = 0; k < keys; ++k) {
      valid.push_back(padding == Side::right ? k < length : k >= keys - length);
    }
  }
  return valid;
}

std::vector<AttentionProbe> masked_probes(ProbeMaker& make) {
  return {
      make.filled({.name = "padding",
                   .asks = "keys beyond a row's length",
                   .batch = 3,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .key_valid = padded({5, 2, 4}, 5, Side::right)}),
      make.filled({.name = "padding-batch-as-long-as-text",
                   .asks = "a mask [B, T] read as [T, T]",
                   .batch = 4,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 4,
                   .keys = 4,
                   .key_valid = padded({4, 1, 3, 2}, 4, Side::right)}),
      make.filled({.name = "padding-batch-as-many-as-heads",
                   .asks = "a mask [B, T, T] read as [H, T, T]",
                   .batch = 2,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .key_valid = padded({5, 2}, 5, Side::right)}),
      make.filled({.name = "padding-left",
                   .asks = "rows in which no key is visible",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 5,
                   .keys = 5,
                   .causal = true,
                   .key_valid = padded({5, 3}, 5, Side::left)}),
      make.filled({.name = "window",
                   .asks = "a window of three keys",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 8,
                   .keys = 8,
                   .causal = true,
                   .window = 3}),
      make.filled({.name = "documents",
                   .asks = "two documents in one row",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true,
                   .documents = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1}}),
  };
}

// The same with NaN in the keys and values that no query may see, which must reach nobody.
AttentionProbe with_nan_where_hidden(AttentionProbe probe) {
  for (int64_t row = 0; row < probe.batch * probe.key_heads * probe.keys; ++row) {
    const int64_t key = row % probe.keys;
    const int64_t b = row / probe.keys / probe.key_heads;
    bool is_seen = false;
    for (int64_t q = 0; q < probe.queries; ++q) is_seen = is_seen || probe.visible(b, q, key);
    if (is_seen) continue;
    for (std::vector<float>* tensor : {&probe.k, &probe.v}) {
      std::fill_n(tensor->begin() + row * probe.head_size, probe.head_size,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  return probe;
}

AttentionProbe nan_in_padding(ProbeMaker& make) {
  return with_nan_where_hidden(make.filled({.name = "nan-in-padding",
                                            .asks = "NaN in keys and values that are padding",
                                            .batch = 2,
                                            .heads = 3,
                                            .key_heads = 3,
                                            .queries = 5,
                                            .keys = 5,
                                            .key_valid = padded({5, 4}, 5, Side::right)}));
}

// Every key that is hidden from one query is hidden from all, so that the right answers are
// numbers.
std::vector<AttentionProbe> nan_probes(ProbeMaker& make) {
  std::vector<AttentionProbe> probes = {
      make.filled({.name = "nan-in-future",
                   .asks = "NaN in the unwritten slots of a cache",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 1,
                   .keys = 8,
                   .causal = true,
                   .query_offset = 4}),
      make.filled({.name = "nan-outside-window",
                   .asks = "NaN in keys that the window has left",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 1,
                   .keys = 6,
                   .causal = true,
                   .query_offset = 5,
                   .window = 3}),
      make.filled({.name = "nan-in-other-document",
                   .asks = "NaN in the document before",
                   .batch = 2,
                   .heads = 4,
                   .key_heads = 2,
                   .queries = 3,
                   .keys = 6,
                   .query_offset = 3,
                   .documents = {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}}),
  };
  for (AttentionProbe& probe : probes) probe = with_nan_where_hidden(std::move(probe));
  return probes;
}

// 131 keys: more than two tiles of 64, the usual size, and no multiple of it.
constexpr int64_t kLong = 131;

// Documents of 50, 47 and 34 positions; the second lies in two tiles.
std::vector<int32_t> three_documents() {
  std::vector<int32_t> documents;
  for (int64_t position = 0; position < kLong; ++position) {
    documents.push_back(position < 50 ? 0 : position < 97 ? 1 : 2);
  }
  return documents;
}

std::vector<AttentionProbe> long_probes(ProbeMaker& make) {
  return {
      make.filled({.name = "window-long",
                   .asks = "a window of 70 keys, over tiles",
                   .heads = 2,
                   .key_heads = 2,
                   .queries = kLong,
                   .keys = kLong,
                   .head_size = 8,
                   .causal = true,
                   .window = 70}),
      make.filled({.name = "padding-left-long",
                   .asks = "padding on the left longer than a tile, grouped heads",
                   .batch = 2,
                   .heads = 6,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = kLong,
                   .head_size = 8,
                   .causal = true,
                   .query_offset = kLong - 5,
                   .key_valid = padded({kLong - 67, kLong}, kLong, Side::left)}),
      make.filled({.name = "documents-long",
                   .asks = "a document that lies in two tiles",
                   .heads = 2,
                   .key_heads = 2,
                   .queries = kLong,
                   .keys = kLong,
                   .head_size = 8,
                   .causal = true,
                   .documents = three_documents()}),
  };
}

std::vector<AttentionProbe> further_probes(ProbeMaker& make) {
  return {
      make.filled({.name = "padding-grouped",
                   .asks = "keys beyond a row's length, four query heads over two key heads",
                   .batch = 3,
                   .heads = 4,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .key_valid = padded({5, 2, 4}, 5, Side::right)}),
      make.filled({.name = "prefix",
                   .asks = "three first keys that every query sees",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 7,
                   .keys = 7,
                   .causal = true,
                   .prefix = 3}),
      make.filled({.name = "sinks",
                   .asks = "two first keys that stay visible beyond a window of three",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 9,
                   .keys = 9,
                   .causal = true,
                   .window = 3,
                   .sinks = 2}),
      make.filled({.name = "head-of-13",
                   .asks = "a head size that fills no vector",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .head_size = 13,
                   .causal = true}),
  };
}

}  // namespace

bool AttentionProbe::visible(int64_t batch_row, int64_t query, int64_t key) const {
  const int64_t at = query_offset + query;
  const bool near = window == 0 || (key > at - window && key < at + window);
  if (key >= prefix && ((causal && key > at) || (!near && key >= sinks))) return false;
  const int64_t row = batch_row * keys;
  if (!documents.empty() &&
      documents[static_cast<size_t>(row + key)] != documents[static_cast<size_t>(row + at)]) {
    return false;
  }
  return key_valid.empty() || key_valid[static_cast<size_t>(row + key)] != 0;
}

std::vector<uint8_t> AttentionProbe::mask() const {
  std::vector<uint8_t> result;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t q = 0; q < queries; ++q) {
      for (int64_t key = 0; key < keys; ++key) result.push_back(visible(b, q, key) ? 1 : 0);
    }
  }
  return result;
}

std::vector<AttentionProbe> attention_probes(DType dtype) {
  ProbeMaker make(dtype);
  std::vector<AttentionProbe> probes = {
      make.filled({.name = "plain",
                   .asks = "no mask at all",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 5,
                   .keys = 7}),
      make.filled({.name = "causal",
                   .asks = "a sequence from its beginning",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true}),
      make.filled({.name = "causal-cached",
                   .asks = "two new positions after five",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 2,
                   .keys = 7,
                   .causal = true,
                   .query_offset = 5}),
      make.filled({.name = "causal-one",
                   .asks = "one new position after four",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 1,
                   .keys = 5,
                   .causal = true,
                   .query_offset = 4}),
      make.filled({.name = "causal-grouped",
                   .asks = "six query heads over two key heads",
                   .batch = 2,
                   .heads = 6,
                   .key_heads = 2,
                   .queries = 5,
                   .keys = 5,
                   .causal = true}),
      make.filled({.name = "causal-long",
                   .asks = "more keys than a tile holds",
                   .batch = 1,
                   .heads = 2,
                   .key_heads = 2,
                   .queries = 131,
                   .keys = 131,
                   .head_size = 8,
                   .causal = true}),
      make.filled({.name = "large-scores",
                   .asks = "scores above 88, where exp overflows in f32",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true},
                  300),
      make.filled({.name = "softcap",
                   .asks = "scores capped at 2",
                   .batch = 2,
                   .heads = 3,
                   .key_heads = 3,
                   .queries = 6,
                   .keys = 6,
                   .causal = true,
                   .softcap = 2},
                  4),
  };
  const auto add = [&](std::vector<AttentionProbe> more) {
    for (AttentionProbe& probe : more) probes.push_back(std::move(probe));
  };
  add(masked_probes(make));
  probes.push_back(nan_in_padding(make));
  add(nan_probes(make));
  add(further_probes(make));
  add(long_probes(make));
  return probes;
}

AttentionProbe bias_probe() {
  return ProbeMaker(DType::f32)
      .biased({.name = "bias",
               .asks = "a number added to each score",
               .batch = 2,
               .heads = 3,
               .key_heads = 3,
               .queries = 5,
               .keys = 7});
}

}  // namespace faultline::diagnose
