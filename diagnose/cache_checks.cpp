#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/error.h"
#include "core/rng.h"
#include "diagnose/attention_checks.h"
#include "diagnose/model_runs.h"
#include "diagnose/shown_attention.h"
#include "diagnose/values.h"
#include "nn/kv_pages.h"
#include "nn/prefix_cache.h"
#include "train/generation.h"

// Shapes: B batch, T new positions, K slots so far, G key heads, D head size, V vocabulary.
namespace faultline::diagnose {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kPageSlots = 4;  // so that short texts fill several pages

nn::KvShape kv_shape(const nn::ModelShape& model, int64_t batch, int64_t capacity) {
  return {.num_layers = model.num_layers,
          .batch = batch,
          .num_heads = model.num_key_value_heads,
          .head_size = model.head_size,
          .capacity = capacity};
}

nn::PageShape page_shape(const nn::KvShape& shape) {
  return {shape.num_layers, shape.num_heads, shape.head_size, kPageSlots};
}

std::shared_ptr<nn::PagePool> pool_for(const nn::KvShape& shape, DType dtype) {
  const int64_t pages = shape.batch * ((shape.capacity + kPageSlots - 1) / kPageSlots);
  return std::make_shared<nn::PagePool>(page_shape(shape), pages, size_of(dtype),
                                        nn::Unwritten::nan);
}

std::unique_ptr<nn::StoredKvCache> make_cache(CacheKind kind, const nn::KvShape& shape,
                                              DType dtype = DType::f32) {
  if (kind == CacheKind::contiguous) {
    return std::make_unique<nn::ContiguousKvCache>(shape, dtype, nn::Unwritten::nan);
  }
  return std::make_unique<nn::PagedKvCache>(pool_for(shape, dtype), shape, dtype,
                                            std::vector<int64_t>{}, nn::PageChecks::every_read);
}

// The positions of a text as a generation meets them: most of a prompt, two at once, then singly.
std::vector<std::pair<int64_t, int64_t>> pieces(int64_t positions) {
  const int64_t prompt = positions / 2;
  std::vector<std::pair<int64_t, int64_t>> result = {{0, prompt}, {prompt, prompt + 2}};
  for (int64_t t = prompt + 2; t < positions; ++t) result.emplace_back(t, t + 1);
  return result;
}

Tensor cached_piece(CheckedModel& checked, const std::vector<int32_t>& text,
                    std::pair<int64_t, int64_t> piece, nn::KvCache& cache) {
  const auto [begin, end] = piece;
  const std::vector<int32_t> tokens(text.begin() + begin, text.begin() + end);
  return checked.forward({.tokens_BT = tensor(tokens, {1, end - begin}),
                          .mask = {.query_offset = begin, .key_valid = {}, .documents = {}},
                          .cache = &cache});
}

}  // namespace

AttentionCheck check_cached(nn::LanguageModel& model, CacheKind kind) {
  AttentionCheck check{.id = "cached",
                       .compared = "logits in pieces with a cache, and at once",
                       .reason = kRoundingReason};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const auto text = checked.text(T, 0);
  const Tensor whole = checked.logits({text});
  check.bound = checked.rounding(whole);
  const auto cache = make_cache(kind, kv_shape(checked.shape(), 1, T + 2));
  for (const auto& piece : pieces(T)) {
    const Tensor part = cached_piece(checked, text, piece, *cache);
    const double apart =
        largest_difference(part, positions_of(whole, 0, piece.first, piece.second));
    if (check.ok() && !(apart <= check.bound)) {
      check.what = fmt::format("They part at position {}.", piece.first);
    }
    check.difference = larger_or_nan(check.difference, apart);
    if (std::isnan(apart)) break;
  }
  return check;
}

AttentionCheck check_canaries(nn::LanguageModel& model, CacheKind kind) {
  AttentionCheck check{.id = "canaries",
                       .compared = "logits beside NaN in unused slots (that are not finite)",
                       .reason = "nobody reads them"};
  CheckedModel checked(model);
  const int64_t T = checked.positions();
  const auto text = checked.text(T, 0);
  const auto cache = make_cache(kind, kv_shape(checked.shape(), 1, T + 5));
  for (const auto& piece : pieces(T)) {
    if (!all_finite(cached_piece(checked, text, piece, *cache))) ++check.difference;
  }
  if (check.ok()) return check;
  check.what = "Slots that nobody filled are read.";
  check.cause = "attn.past-ignored:zero-slots";
  return check;
}

// ---- what a cache gives back --------------------------------------------------------------------

namespace {

// Keeps the first failure.
void fail_with(AttentionCheck& check, double difference, const std::string& what,
               const char* cause) {
  if (check.failed()) return;
  check.difference = difference;
  check.what = what;
  check.cause = cause;
}

// What a layer of a cache gave of the first `end` slots, against what was stored there.
void compare_contents(AttentionCheck& check, const nn::KvCache::All& given, const Tensor& k_BGKD,
                      const Tensor& v_BGKD, int64_t end, DType dtype) {
  const int64_t slots = given.k_BGKD.size(2);
  if (slots != end || given.v_BGKD.size(2) != end) {
    return fail_with(
        check, kNan, fmt::format("{} slots are given where {} are filled.", slots, end),
        slots > end ? "attn.past-ignored:zero-slots" : "attn.past-ignored:write-index");
  }
  const auto apart = [&](const Tensor& got, const Tensor& stored) {
    return largest_difference(got, cast(cast(slice(stored, 2, 0, end), dtype), DType::f32));
  };
  const double of_keys = apart(given.k_BGKD, k_BGKD);
  const double of_values = apart(given.v_BGKD, v_BGKD);
  if (of_keys == 0 && of_values == 0) return;
  fail_with(
      check, of_keys == 0 ? of_values : of_keys,
      fmt::format("After {} slots of {} others are there than were stored.", end, name(dtype)),
      dtype == DType::f32 ? "attn.past-ignored:write-index" : "kv.dtype-reinterpret");
}

}  // namespace

AttentionCheck check_cache_contents(nn::LanguageModel& model, CacheKind kind) {
  AttentionCheck check{.id = "cache-contents",
                       .compared = "keys and values, stored and given back",
                       .reason = "rounded to the cache's dtype once",
                       .proven = true};
  const NoGrad off;
  constexpr int64_t kStored = 9;
  const nn::KvShape shape = kv_shape(model.model_shape(), 2, kStored + 2);
  const Tensor k = normal({2, shape.num_heads, kStored, shape.head_size}, 0, 1, 1, 1);
  const Tensor v = normal(k.shape(), 0, 1, 1, 2);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto cache = make_cache(kind, shape, dtype);
    for (const auto& [begin, end] : pieces(kStored)) {
      for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
        const double sign = layer % 2 == 0 ? 1 : -1;  // layers differ
        const auto given =
            cache->append(layer, slice(k, 2, begin, end) * sign, slice(v, 2, begin, end) * sign);
        compare_contents(check, given, k * sign, v * sign, end, dtype);
      }
    }
    if (cache->length() != kStored) {
      fail_with(check, kNan, "The cache has lost count.", "attn.past-ignored:write-index");
    }
  }
  return check;
}

AttentionCheck check_page_dtypes(nn::LanguageModel& model) {
  AttentionCheck check{.id = "page-dtypes",
                       .compared = "pages that were read as another dtype than was written",
                       .reason = "each page has a tag",
                       .proven = true};
  CheckedModel checked(model);
  const auto text = checked.text(checked.positions(), 0);
  const nn::KvShape shape = kv_shape(checked.shape(), 1, checked.positions());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto pool = pool_for(shape, dtype);
    nn::PagedKvCache cache(pool, shape, dtype);
    for (const auto& piece : pieces(checked.positions())) {
      cached_piece(checked, text, piece, cache);
    }
    const DType other = dtype == DType::f16 ? DType::bf16 : DType::f16;
    const Tensor room = zeros({shape.num_heads, 1, shape.head_size});
    for (const auto page : cache.pages(0)) {
      bool refused = false;
      try {
        pool->read(page, 0, other, room, room);
      } catch (const InvalidArgument&) {
        refused = true;
      }
      if (!refused || pool->dtype(page) != dtype) ++check.difference;
      pool->verify(page);
    }
  }
  if (check.ok()) return check;
  check.what = "Keys of one 16-bit format can be read as another.";
  check.cause = "kv.dtype-reinterpret";
  return check;
}

AttentionCheck check_prefixes() {
  AttentionCheck check{.id = "prefixes",
                       .compared = "pages shared with another text, adapter or dtype",
                       .reason = "tokens and owner are compared",
                       .proven = true};
  const nn::PageShape shape{1, 1, 2, 2};
  const auto pool = std::make_shared<nn::PagePool>(shape, 8, 4);
  // All blocks collide.
  nn::PrefixCache cache(pool, 8, [](uint64_t, std::span<const int32_t>, const nn::PrefixOwner&) {
    return uint64_t{7};
  });
  const nn::PrefixOwner owner{"base", DType::f32};
  const std::vector<int32_t> text = {1, 2, 3, 4};
  const std::vector<nn::PagePool::Page> pages = {pool->take(), pool->take()};
  cache.keep(text, owner, pages);
  for (const auto page : pages) pool->release(page);
  const auto shared = [&](const std::vector<int32_t>& tokens, const nn::PrefixOwner& whose) {
    return static_cast<double>(cache.find(tokens, whose).size());
  };
  check.difference = shared({5, 6, 3, 4}, owner) + shared({3, 4, 1, 2}, owner) +
                     shared(text, {"adapter", DType::f32}) + shared(text, {"base", DType::bf16}) +
                     std::abs(shared({1, 2, 5, 6}, owner) - 1) + std::abs(shared(text, owner) - 2);
  if (check.ok()) return check;
  check.what = "Pages are given out by their hash alone.";
  check.cause = "kv.prefix-collision";
  return check;
}

// ---- generation ---------------------------------------------------------------------------------

namespace {

// One attention call of a generation: what its mask says, and its sizes.
struct ShownCall {
  int64_t query_offset;
  int64_t queries;
  int64_t keys;
};

// What train::generate makes of two prompts of different lengths.
struct Generated {
  std::vector<train::Request> requests;
  std::vector<Tensor> logits_B1V;  // of each pass
  std::vector<ShownCall> calls;    // those that `math` showed
  train::Generation result;
};

Generated generate_two(CheckedModel& checked, CacheKind kind) {
  using Kind = train::KvStorage::Kind;
  const int64_t T = checked.positions();
  Generated made;
  for (const int64_t length : {T / 2 - 3, T / 2}) {
    made.requests.push_back({.prompt = checked.text(length, static_cast<uint64_t>(length)),
                             .tokens = T / 2,
                             .sampling = {.temperature = 0}});
  }
  Context& context = Context::current();
  const auto logits =
      context.events.subscribe<nn::ForwardEvent>([&](const nn::ForwardEvent& event) {
        if (&event.module == &checked.model()) made.logits_B1V.push_back(event.output);
      });
  const auto shown = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
    if (!ShownAttention::is_shown_by(event.launch)) return;
    const ShownAttention call(event.launch);
    made.calls.push_back({call.query_offset(), call.queries(), call.keys()});
  });
  train::GenerationOptions options;
  options.storage = {.kind = kind == CacheKind::paged ? Kind::paged : Kind::contiguous,
                     .unwritten = nn::Unwritten::nan,
                     .page_slots = kPageSlots,
                     .checks = nn::PageChecks::every_read};
  made.result = train::generate(checked.model(), made.requests, options);
  return made;
}

// What is wrong with the calls of a generation that goes astray: what it said to attention, or else
// what the cache holds.
void name_by_calls(AttentionCheck& check, CheckedModel& checked, CacheKind kind) {
  const auto math = nn::AttentionPolicy::require(nn::AttentionImplementation::math);
  const auto policy =
      Context::current().seams.replace<nn::AttentionPolicySeam>([math] { return math; });
  const Generated made = generate_two(checked, kind);
  const auto layers = static_cast<size_t>(checked.shape().num_layers);
  int64_t length = 0;
  for (size_t i = 0; i < made.calls.size(); i += layers) {
    const ShownCall& call = made.calls[i];
    length += call.queries;
    if (call.keys > length) {
      check.cause = "attn.past-ignored:zero-slots";
      check.what += fmt::format(" {} keys are given where {} are filled.", call.keys, length);
      return;
    }
    if (call.query_offset != call.keys - call.queries) {
      check.cause = "attn.past-ignored:local-causal";
      check.what += fmt::format(" The mask places query {} at {}.", call.keys - call.queries,
                                call.query_offset);
      return;
    }
  }
  check.cause = "attn.past-ignored:write-index";
}

}  // namespace

AttentionCheck check_generation(nn::LanguageModel& model, CacheKind kind) {
  AttentionCheck check{.id = "generation",
                       .compared = "logits of batched generation, and of each text at once",
                       .reason = kRoundingReason};
  CheckedModel checked(model);
  const Generated made = generate_two(checked, kind);
  const auto full = [&](size_t b) {
    std::vector<int32_t> text = made.requests[b].prompt;
    const auto& more = made.result.rows[b].tokens;
    text.insert(text.end(), more.begin(), more.end());
    return checked.logits({text});
  };
  const Tensor whole[] = {full(0), full(1)};
  double wrong_of[] = {0, 0};
  for (size_t b : {size_t{0}, size_t{1}}) {
    check.bound = std::max(check.bound, checked.rounding(whole[b]));
    for (size_t i = 0; i < made.logits_B1V.size(); ++i) {
      const Tensor& logits = made.logits_B1V[i];
      const int64_t at = std::ssize(made.requests[b].prompt) - 1 + static_cast<int64_t>(i);
      const double apart = largest_difference(
          positions_of(logits, static_cast<int64_t>(b), logits.size(1) - 1, logits.size(1)),
          positions_of(whole[b], 0, at, at + 1));
      if (!(apart <= check.bound) && check.what.empty()) {
        check.what =
            fmt::format("The {} row parts at its position {}.", b == 0 ? "padded" : "longest", at);
      }
      wrong_of[b] = larger_or_nan(wrong_of[b], apart);
    }
  }
  check.difference = larger_or_nan(wrong_of[0], wrong_of[1]);
  if (check.ok()) return check;
  if (wrong_of[1] <= check.bound) {
    check.cause = "attn.past-ignored:left-pad";
  } else {
    name_by_calls(check, checked, kind);
  }
  return check;
}

}  // namespace faultline::diagnose
