#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"
#include "nn/checkpoint.h"
#include "nn/kv_pages.h"
#include "train/prompt_loss.h"

// Shapes: B batch, G heads, T positions, K slots, D head size.
namespace faultline::lab {
namespace {

// What a cache does when a layer's keys come a second time.
enum class Repeated : uint8_t { appends, overwrites };

// A static cache that takes part in training: two passes long, its free slots zeros.
class TrainingCache : public nn::KvCache {
 public:
  explicit TrainingCache(Repeated repeated) : repeated_(repeated) {}

  int64_t length() const override {
    return layers_.empty() || repeated_ == Repeated::overwrites ? 0 : layers_[0].filled;
  }

  // page: begin
  // The wrong code: what is stored goes behind what is there, and a forward pass that runs again
  // for its backward pass stores again.
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) override {
    Layer& at = layer_of(layer, k_BGTD);
    const int64_t first = repeated_ == Repeated::appends ? at.filled : 0;
    const All all{with(at.keys, k_BGTD, first), with(at.values, v_BGTD, first)};
    at.filled = first + k_BGTD.size(2);
    if (repeated_ == Repeated::appends) {
      at.keys = all.k_BGKD.detach();
      at.values = all.v_BGKD.detach();
    }
    return all;
  }
  // page: end

 private:
  struct Layer {
    Tensor keys;
    Tensor values;
    int64_t filled = 0;
  };

  Layer& layer_of(int64_t layer, const Tensor& k_BGTD) {
    const auto number = static_cast<size_t>(layer);
    if (layers_.size() <= number) layers_.resize(number + 1);
    Layer& at = layers_[number];
    if (!at.keys.defined() || at.filled + k_BGTD.size(2) > at.keys.size(2)) {
      Shape slots = k_BGTD.shape();
      slots[2] *= 2;
      at = {zeros(slots), zeros(slots)};
    }
    return at;
  }

  // `slots` with the new ones from `first` on, so that gradients go to the new ones.
  static Tensor with(const Tensor& slots_BGKD, const Tensor& x_BGTD, int64_t first) {
    const int64_t K = slots_BGKD.size(2), T = x_BGTD.size(2);
    const Tensor new_T = arange(T, static_cast<double>(first));
    const Tensor place_KT = cast(equal(reshape(arange(K), {K, 1}), new_T), x_BGTD.dtype());
    return slots_BGKD + matmul(place_KT, x_BGTD);
  }

  Repeated repeated_;
  std::vector<Layer> layers_;
};

std::shared_ptr<void> train_with_cache(Context& context, Repeated repeated) {
  const auto cache = std::make_shared<TrainingCache>(repeated);
  return context.seams.replace<train::GradientCacheSeam>([cache] { return cache.get(); });
}

// The other wrong code: pages of bf16 are read as f16, which the cache was asked for.
DType read_as_f16(int32_t, DType written, DType asked) {
  return written == DType::bf16 ? DType::f16 : asked;
}

// The remedy: the page says what it holds.
DType read_as_written(int32_t, DType written, DType) { return written; }

// A token's key and value, 1 and a power of two that the seed chooses, through a page of bf16.
void through_a_page(const RunOptions& options, Metrics& metrics) {
  const NoGrad off;
  const nn::PageShape page{.num_layers = 1, .num_heads = 1, .head_size = 1};
  const auto pool = std::make_shared<nn::PagePool>(page, 2, 2);
  nn::PagedKvCache cache(
      pool, {.num_layers = 1, .batch = 1, .num_heads = 1, .head_size = 1, .capacity = 16},
      DType::bf16);
  const auto v = static_cast<float>(1 << (options.seed % 8));
  const auto all = cache.append(0, ones({1, 1, 1, 1}), tensor<float>({v}, {1, 1, 1, 1}));
  metrics.measure("1 becomes", all.k_BGKD.item<double>());

  std::vector<float> given;
  for (int i = -32; i <= 32; ++i) given.push_back(static_cast<float>(i) / 8);
  const auto count = static_cast<int64_t>(given.size());
  nn::PagedKvCache many(
      std::make_shared<nn::PagePool>(page, 5, 2),
      {.num_layers = 1, .batch = 1, .num_heads = 1, .head_size = 1, .capacity = count},
      DType::bf16);
  const Tensor x = tensor(given, {1, 1, count, 1});
  metrics.add(Curve{"read, by what was written",
                    {given.begin(), given.end()},
                    many.append(0, x, x).k_BGKD.to_vector<double>()});
}

// One layer over three tokens with the values 1, 2 and 4 and equal scores, as a checkpointed
// segment, and its backward pass.
void checkpointed(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t T = 3;
  const Tensor q = normal({1, 1, T, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = zeros({1, 1, T, 1});
  const Tensor v = tensor<float>({1, 2, 4}, {1, 1, T, 1});
  set_requires_grad(v);
  std::vector<double> rows;
  int64_t length = 0;
  const auto layer = [&] {
    nn::KvCache* cache = Context::current().seams.call<train::GradientCacheSeam>();
    nn::KvCache::All all{k, v};
    nn::Mask mask{.top_left = true};
    if (cache != nullptr) {
      mask.query_offset = cache->length();
      all = cache->append(0, k, v);
    }
    const Tensor out = nn::attention(
        q, all.k_BGKD, all.v_BGKD, mask,
        {.scale = 1.0, .policy = nn::AttentionPolicy::require(nn::AttentionImplementation::math)});
    rows = out.detach().to_vector<double>();
    length = mask.query_offset + T;
    return sum(out);
  };
  const Tensor loss = nn::checkpoint(layer);
  metrics.measure("loss", loss.item<double>());
  backward(loss);
  metrics.count("cache length", static_cast<double>(length));
  for (size_t i = 0; i < rows.size(); ++i) {
    metrics.measure("row " + std::to_string(i) + " again", rows[i]);
  }
  metrics.measure("gradient", gradient(v).to_vector<double>()[0]);
}

}  // namespace

FAULT(kv_dtype_reinterpret) {
  Fault& fault = lab.fault(
      {.id = "kv.dtype-reinterpret",
       .title = "The cache gives back something else than was stored",
       .domain = "precision",
       .seed = "004 2.2",
       .mechanism =
           "bf16 and f16 have 16 bits and share no meaning for them. 1.0 in bf16 is 0x3F80; read as "
           "f16 that is 1.875. 0.5 becomes 1.75 and 188 becomes 3.617: all numbers end near 1 to 4, "
           "finite, with the right sign, and 2.0 = 0x4000 is the same in both. Against attention in "
           "f64 the error is 0.63; honest rounding to bf16 has 3e-4. In training the cache is "
           "polluted otherwise: activation checkpointing runs a layer again for its backward pass, "
           "and a cache that appends stores the keys twice, 6 slots for 3 tokens. With equal scores "
           "and values 1, 2, 4 the first pass gives 1, 1.5, 2.333333, the second 2, 2, 2.333333: "
           "the gradient is that of a function whose loss nobody printed.",
       .symptom =
           "Fluent nonsense from a model that was good a moment ago, without NaN or error. With "
           "checkpointing: the loss falls more slowly than it did, or an error about shapes in the "
           "backward pass.",
       .article_says =
           "That a bmm of f16 and bf16 goes through f32 back to f16 and that the error diffuses over "
           "gradient accumulation.",
       .truth =
           "matmul raises an error on mixed dtypes, and rounding happens once, when a key is "
           "stored: nothing diffuses. What is silent is a cache whose dtype tag and bits differ. A "
           "checkpoint without reentrance compares shapes and refuses a cache that grows; a static "
           "cache keeps its shape and passes.",
       .fix = "Keep the dtype with every page and compare it at each read. Use no cache where "
              "gradients are on, or one whose writes are idempotent.",
       .sources =
           {"vLLM pull request 54338 (29 August 2026): a KV cache dtype that silently reinterprets "
            "the model's bits. https://github.com/vllm-project/vllm/pull/54338",
            "transformers issue 28056 (15 December 2023): use_cache with gradient checkpointing, "
            "step by step. https://github.com/huggingface/transformers/issues/28056",
            "transformers pull request 30320 (18 April 2024): use_cache off under checkpointing. "
            "https://github.com/huggingface/transformers/pull/30320",
            "transformers pull request 46572 (June 2026): writes that are idempotent when a "
            "checkpointed forward pass is replayed. "
            "https://github.com/huggingface/transformers/pull/46572"},
       .look_alikes =
           "A cache in 8 or 16 bits that rounds honestly moves logits a little and everywhere alike. "
           "attn.past-ignored also makes decoding differ from the whole text; there the numbers in "
           "the cache are right.",
       .exercise =
           "You test a cache by storing 2.0 and reading it back. Which wrong dtype does this "
           "miss, and which single value is a better test?",
       .answer =
           "2.0 has the bits 0x4000 in both 16-bit types, so it hides the confusion. 1.0 tells: it "
           "comes back as 1.875 (bf16 read as f16) or 0.0078125 (f16 read as bf16)."});

  fault.variant("reinterpret", "Pages of bf16 are read as f16")
      .wrong(
          [](Context& context) { return context.seams.replace<nn::PageDTypeSeam>(&read_as_f16); })
      .remedy([](Context& context) {
        return context.seams.replace<nn::PageDTypeSeam>(&read_as_written);
      })
      .run(&through_a_page)
      .expect("1 becomes", 1.875)
      .caught_by("cache.content")
      .in_generation({.needs = {{"kv-cache", "bf16"}, {"kv-pages", "on"}}});

  fault.variant("checkpoint-append", "A recomputed forward pass appends its keys again")
      .wrong([](Context& context) { return train_with_cache(context, Repeated::appends); })
      .remedy([](Context& context) { return train_with_cache(context, Repeated::overwrites); })
      .run(&checkpointed)
      .expect("cache length", 6)
      .expect("row 0 again", 2)
      .fixed_within(1e-6, "six slots, three of them hidden, are summed in another order than three")
      .caught_by("cache.content")
      .in_generation({.needs = {{"prompt-loss", "on"}}});
}

}  // namespace faultline::lab
