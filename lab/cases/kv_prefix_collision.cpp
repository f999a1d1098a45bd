#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/prefix_cache.h"

// Shapes: P slots of a page.
namespace faultline::lab {
namespace {

// page: begin
// The wrong code: four bits of the tokens, nothing of the owner, and an equal hash is a hit.
uint64_t four_bits(uint64_t before, std::span<const int32_t> tokens, const nn::PrefixOwner&) {
  uint64_t hash = before;
  for (const int32_t token : tokens) hash += static_cast<uint64_t>(token);
  return hash % 16;
}

bool equal_hash_is_enough(const nn::PrefixBlock&, const nn::PrefixBlock&) { return true; }
// page: end

// The remedy: whatever the hash, compare what it stands for.
bool compare_content(const nn::PrefixBlock& asked, const nn::PrefixBlock& kept) {
  return asked.owner.weights == kept.owner.weights && asked.owner.dtype == kept.owner.dtype &&
         asked.before == kept.before &&
         std::vector<int32_t>(asked.tokens.begin(), asked.tokens.end()) ==
             std::vector<int32_t>(kept.tokens.begin(), kept.tokens.end());
}

std::shared_ptr<void> plant_weak_cache(Context& context) {
  using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Both>(context.seams.replace<nn::BlockHashSeam>(&four_bits),
                                context.seams.replace<nn::PrefixMatchSeam>(&equal_hash_is_enough));
}

constexpr int64_t kPrefixSlots = 4;

// A server with one page pool: answers a request with the mean of its values, which are
// `factor` x token, and reuses what it has.
class Server {
 public:
  // The value that a request reads back from its first slot.
  double answer(const std::vector<int32_t>& tokens, const std::string& weights, double factor) {
    const nn::PrefixOwner owner{weights};
    nn::PagedKvCache cache(
        pool_,
        {.num_layers = 1, .batch = 1, .num_heads = 1, .head_size = 1, .capacity = 2 * kPrefixSlots},
        DType::f32);
    const auto known = prefixes_.find(tokens, owner);
    const auto begin = std::ssize(known) * kPrefixSlots;
    cache.begin_with({known}, begin);
    std::vector<float> values;
    for (size_t i = static_cast<size_t>(begin); i < tokens.size(); ++i) {
      values.push_back(static_cast<float>(factor * tokens[i]));
    }
    const Tensor v = tensor(values, {1, 1, std::ssize(values), 1});
    const auto all = cache.append(0, v, v);
    prefixes_.keep(tokens, owner, cache.pages(0));
    return all.v_BGKD.to_vector<double>()[0];
  }

 private:
  std::shared_ptr<nn::PagePool> pool_ = std::make_shared<nn::PagePool>(
      nn::PageShape{.num_layers = 1, .num_heads = 1, .head_size = 1, .slots = kPrefixSlots}, 16, 4);
  nn::PrefixCache prefixes_{pool_, 8};
};

void three_requests(const RunOptions& options, Metrics& metrics) {
  const NoGrad off;
  const auto last = static_cast<int32_t>(options.seed % 50);
  Server server;
  server.answer({3, 5, 7, 9, last}, "base", 1);
  metrics.measure("adapter", server.answer({3, 5, 7, 9, last}, "base + adapter", 2));
  metrics.measure("other text", server.answer({19, 5, 7, 9, last}, "base", 1));
}

}  // namespace

FAULT(kv_prefix_collision) {
  Fault& fault = lab.fault(
      {.id = "kv.prefix-collision",
       .title = "A prefix cache gives out the keys of another request",
       .domain = "attention",
       .mechanism =
           "Sequences that begin alike share the pages of their beginning, found by a hash of the "
           "tokens. Keys depend on more than tokens: the weights, so the adapter, the dtype, and "
           "all tokens before. What the hash leaves out, or what collides in it, is given to the "
           "wrong request. A base model stores the values 1 x token of the text 3 5 7 9; the same "
           "text under an adapter whose values are 2 x token must read 6 in its first slot, and "
           "reads 3. With a hash of four bits the text 19 5 7 9 meets 3 5 7 9, since 40 = 24 mod 16: "
           "it reads 3 for 19. With n kept blocks and b bits two collide at about n = 2^(b/2).",
       .symptom =
           "An answer that belongs to another adapter or another user, only after a certain earlier "
           "request, and never when the server is fresh. Nothing is out of bounds.",
       .truth =
           "A hash finds candidates. Whether one is right is a comparison of tokens, owner and "
           "beginning, which costs a few bytes a block.",
       .fix = "Keep tokens, owner (a digest of the weights, not a name) and the block before with "
              "each page, and compare them at every hit.",
       .sources =
           {"vLLM issue 30931 (2025): adapters of one name share cached blocks. "
            "https://github.com/vllm-project/vllm/issues/30931",
            "vLLM issue 44701 (6 June 2026): an adapter's name and a cache salt collide in the block "
            "hash. https://github.com/vllm-project/vllm/issues/44701",
            "llama.cpp issue 27148 (2026): the prompt of another conversation is restored. "
            "https://github.com/ggml-org/llama.cpp/issues/27148"},
       .look_alikes =
           "kv.dtype-reinterpret reads the right page wrongly; here the page is another's and is "
           "read well. A model that repeats its training data looks like a leak between users too: "
           "turn prefix reuse off, and see whether it stays.",
       .exercise =
           "A cache keeps a million blocks under a hash of 64 bits, and compares nothing. How "
           "likely is an accidental collision, and why compare all the same?",
       .answer =
           "About n^2 / 2^65 = 2.7e-8: accidents are not the danger. What is missing from the hash "
           "is (an adapter reloaded under its old name), and a hash that is not cryptographic can "
           "be made to collide on purpose."});

  fault.only_variant()
      .wrong(&plant_weak_cache)
      .remedy([](Context& context) {
        return context.seams.replace<nn::PrefixMatchSeam>(&compare_content);
      })
      .run(&three_requests)
      .expect("adapter", 3)
      .expect("other text", 3)
      .caught_by("cache.content")
      .in_generation(
          {.needs = {{"kv-pages", "1"},
                     {"after",
                      "And God said, Let there be light: and there was light. And God saw "
                      "the light, that it was good: and God divided the light."}}});
}

}  // namespace faultline::lab
