#include "train/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "autograd/functional.h"

// Shapes: B rows, T new slots, V vocabulary.
namespace faultline::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

using Logits = std::vector<std::vector<float>>;  // a row each

int64_t positions_of(const nn::LanguageModel& model, const GenerationOptions& options) {
  const int64_t known = model.model_shape().seq_len;
  require(options.positions >= 0, "generation: {} positions; 0 is all of the model's",
          options.positions);
  return options.positions == 0 ? known : std::min(known, options.positions);
}

class Generator {
 public:
  Generator(nn::LanguageModel& model, std::span<const Request> requests,
            const GenerationOptions& options)
      : model_(model), requests_(requests), options_(options), shape_(model.model_shape()) {
    require(!requests.empty(), "generation: there is no request");
    shape_.seq_len = positions_of(model, options);
    for (size_t b = 0; b < requests.size(); ++b) begin_row(b);
  }

  Generation run() {
    const auto start = Clock::now();
    for (int64_t step = 0; !active().empty(); ++step) {
      const std::vector<size_t> rows = active();
      const Logits logits = next_logits(rows);
      for (size_t i = 0; i < rows.size(); ++i) take(rows[i], choice(logits[i], rows[i], step));
      if (step == 0) result_.first_seconds = seconds_since(start);
    }
    result_.seconds = seconds_since(start);
    return std::move(result_);
  }

 private:
  void begin_row(size_t b) {
    const Request& request = requests_[b];
    request.sampling.check();
    require(request.tokens >= 0, "generation: row {} asks for {} tokens", b, request.tokens);
    require(!request.prompt.empty(),
            "generation: the prompt of row {} is empty; a model continues a text, so give it at "
            "least one token",
            b);
    for (const int32_t id : request.prompt) {
      require(id >= 0 && id < shape_.vocab_size,
              "generation: the prompt of row {} holds the id {}; the model knows 0 to {}", b, id,
              shape_.vocab_size - 1);
    }
    Continuation row;
    row.context = context_of(model_, request, options_);
    texts_.push_back(row.context.of(request.prompt));
    result_.rows.push_back(std::move(row));
  }

  // Rows that want more tokens.
  std::vector<size_t> active() const {
    std::vector<size_t> rows;
    for (size_t b = 0; b < requests_.size(); ++b) {
      const Continuation& row = result_.rows[b];
      const bool wants = std::ssize(row.tokens) < requests_[b].tokens;
      if (wants && row.ending != Ending::end_id) rows.push_back(b);
    }
    return rows;
  }

  // The logits after the text of each of `rows`.
  Logits next_logits(const std::vector<size_t>& rows) {
    ++result_.passes;
    const bool keeps = options_.storage.kind != KvStorage::Kind::none;
    if (keeps && result_.passes == 1) return rows_of(first_pass(), rows);
    const bool has_room = cache_ != nullptr && cache_->length() < cache_->shape().capacity;
    return has_room ? rows_of(one_more_slot(), rows) : whole_contexts(rows);
  }

  // Every row's prompt, or what of it is not in the prefix cache.
  Tensor first_pass() {
    std::vector<int64_t> lengths;
    int64_t most = 0;
    for (size_t b = 0; b < texts_.size(); ++b) {
      lengths.push_back(std::ssize(texts_[b]));
      most = std::max(most, requests_[b].tokens);
    }
    padding_.emplace(lengths);
    // As many tokens as positions fill any cache; the sum of more may leave the integers.
    most = std::min(most, shape_.seq_len);
    make_cache(std::min(shape_.seq_len, padding_->slots() + most - 1));
    const int64_t first = cache_->length();
    const Tensor logits_B1V = pass(texts_, texts_, *padding_, first, padding_->slots() - first);
    if (auto* paged = paged_cache(); paged != nullptr && options_.storage.prefixes != nullptr) {
      for (size_t b = 0; b < texts_.size(); ++b) {
        options_.storage.prefixes->keep(texts_[b], owner(), paged->pages(static_cast<int64_t>(b)));
      }
    }
    return logits_B1V;
  }

  void make_cache(int64_t capacity) {
    const nn::KvShape shape{.num_layers = shape_.num_layers,
                            .batch = std::ssize(requests_),
                            .num_heads = shape_.num_key_value_heads,
                            .head_size = shape_.head_size,
                            .capacity = capacity};
    const KvStorage& storage = options_.storage;
    if (storage.kind == KvStorage::Kind::contiguous) {
      cache_ = std::make_unique<nn::ContiguousKvCache>(shape, storage.dtype, storage.unwritten);
      return;
    }
    auto pool = storage.pool;
    if (pool == nullptr) {
      const nn::PageShape page{shape.num_layers, shape.num_heads, shape.head_size,
                               storage.page_slots};
      const int64_t pages = (capacity + page.slots - 1) / page.slots;
      pool = std::make_shared<nn::PagePool>(page, shape.batch * pages, size_of(storage.dtype),
                                            storage.unwritten);
    }
    auto paged = std::make_unique<nn::PagedKvCache>(std::move(pool), shape, storage.dtype,
                                                    padding_->pads(), storage.checks);
    if (storage.prefixes != nullptr) reuse(*paged);
    cache_ = std::move(paged);
  }

  // Begins the cache with the prefixes that are known. All rows compute as many slots as the row
  // that knows least, so that they stay one batch.
  void reuse(nn::PagedKvCache& cache) {
    std::vector<std::vector<nn::PagePool::Page>> pages;
    int64_t missing = 1;  // the last token of a prompt is always computed: its logits are wanted
    for (const auto& text : texts_) {
      pages.push_back(options_.storage.prefixes->find(text, owner()));
      const int64_t known = std::ssize(pages.back()) * options_.storage.pool->shape().slots;
      missing = std::max(missing, std::ssize(text) - known);
    }
    cache.begin_with(pages, padding_->slots() - missing);
    for (size_t b = 0; b < texts_.size(); ++b) {
      result_.rows[b].reused = std::max<int64_t>(0, std::ssize(texts_[b]) - missing);
    }
  }

  nn::PrefixOwner owner() const { return {options_.storage.weights, options_.storage.dtype}; }
  nn::PagedKvCache* paged_cache() const { return dynamic_cast<nn::PagedKvCache*>(cache_.get()); }

  // The last token of every row. A row that has ended is given its last token again: nobody reads
  // what comes of it.
  Tensor one_more_slot() {
    std::vector<std::vector<int32_t>> last;
    for (const auto& text : texts_) last.push_back({text.back()});
    return pass(texts_, last, *padding_, cache_->length(), 1);
  }

  // The texts of `rows`, as much as the window holds of each, without a cache.
  Logits whole_contexts(const std::vector<size_t>& rows) {
    if (result_.passes > 1) ++result_.recomputed;
    // The other policies have made room for every token.
    const bool sinks = options_.policy == nn::ContextPolicy::sink_tail;
    const nn::ContextWindow window{
        .positions = shape_.seq_len,
        .policy = sinks ? nn::ContextPolicy::sink_tail : nn::ContextPolicy::keep_tail,
        .sinks = options_.sinks};
    std::vector<std::vector<int32_t>> contexts;
    std::vector<int64_t> lengths;
    for (const size_t b : rows) {
      contexts.push_back(nn::fit_context(std::ssize(texts_[b]), 0, window).of(texts_[b]));
      lengths.push_back(std::ssize(contexts.back()));
    }
    std::vector<size_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    cache_.reset();  // its positions are past
    const nn::LeftPadding padding(lengths);
    return rows_of(pass(contexts, contexts, padding, 0, padding.slots()), all);
  }

  // Logits [B, 1, V] of the last of the T slots from `first` on, which hold the ends of `parts`;
  // the rows are `texts`.
  Tensor pass(const TokenRows& texts, const TokenRows& parts, const nn::LeftPadding& padding,
              int64_t first, int64_t T) {
    const Context& context = Context::current();
    std::vector<int32_t> tokens;
    for (const auto& text : parts) {
      const int64_t taken = std::min(T, std::ssize(text));
      tokens.insert(tokens.end(), static_cast<size_t>(T - taken), 0);
      tokens.insert(tokens.end(), text.end() - taken, text.end());
    }
    nn::ModelInput input{.tokens_BT = tensor(tokens, {std::ssize(parts), T}),
                         .mask = context.seams.call<GenerationMaskSeam>(padding, first, T)};
    input.positions_BT = context.seams.call<GenerationPositionsSeam>(padding, first, T);
    input.cache = cache_.get();
    input.last = 1;
    context.events.emit(GenerationInputEvent{texts, first, input});
    const Tensor logits_BTV = model_.forward(input);
    const Tensor logits_B1V = slice(logits_BTV, 1, logits_BTV.size(1) - 1, logits_BTV.size(1));
    const DType cached = cache_ == nullptr ? logits_B1V.dtype() : cache_->dtype();
    context.events.emit(GenerationLogitsEvent{model_, texts, first, cached, logits_B1V});
    return logits_B1V;
  }

  Logits rows_of(const Tensor& logits_B1V, const std::vector<size_t>& rows) const {
    const int64_t ids = options_.usable_ids == 0 ? shape_.vocab_size
                                                 : std::min(options_.usable_ids, shape_.vocab_size);
    Logits logits;
    for (const size_t b : rows) {
      const auto row = static_cast<int64_t>(b);
      logits.push_back(slice(slice(logits_B1V, 0, row, row + 1), 2, 0, ids).to_vector<float>());
    }
    return logits;
  }

  int32_t choice(const std::vector<float>& logits, size_t b, int64_t step) const {
    for (const float logit : logits) {
      require(std::isfinite(logit),
              "generation: the logits of row {} hold {} at step {}: a weight is not finite, or so "
              "large that a product overflowed; use weights from before the training diverged",
              b, logit, step);
    }
    return choose(logits, requests_[b].sampling, step);
  }

  void take(size_t b, int32_t id) {
    texts_[b].push_back(id);
    result_.rows[b].tokens.push_back(id);
    const auto& ends = options_.end_ids;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result_.rows[b].ending = Ending::end_id;
    }
    if (options_.on_token) options_.on_token(b, id);
  }

  nn::LanguageModel& model_;
  std::span<const Request> requests_;
  const GenerationOptions& options_;
  nn::ModelShape shape_;
  std::vector<std::vector<int32_t>> texts_;  // what is used of the prompt, and the new tokens
  std::optional<nn::LeftPadding> padding_;   // of the rows in the cache
  std::unique_ptr<nn::StoredKvCache> cache_;
  Generation result_;
};

}  // namespace

nn::Mask GenerationMaskSeam::standard(const nn::LeftPadding& padding, int64_t first,
                                      int64_t count) {
  return {.query_offset = first, .key_valid = padding.key_valid(first + count)};
}

int64_t Generation::tokens() const {
  int64_t count = 0;
  for (const Continuation& row : rows) count += std::ssize(row.tokens);
  return count;
}

double Generation::tokens_per_second() const {
  return static_cast<double>(tokens()) / std::max(seconds, 1e-9);
}

nn::ContextFit context_of(nn::LanguageModel& model, const Request& request,
                          const GenerationOptions& options) {
  const nn::ContextWindow window{
      .positions = positions_of(model, options), .policy = options.policy, .sinks = options.sinks};
  const Context& context = Context::current();
  const int64_t tokens = std::ssize(request.prompt);
  const nn::ContextFit fit = context.seams.call<nn::ContextFitSeam>(tokens, request.tokens, window);
  context.events.emit(nn::ContextFitEvent{tokens, request.tokens, window, fit});
  return fit;
}

Generation generate(nn::LanguageModel& model, std::span<const Request> requests,
                    const GenerationOptions& options) {
  const NoGrad off;
  const nn::EvaluationMode evaluation(model);
  require(options.storage.prefixes == nullptr || options.storage.pool != nullptr,
          "generation: a prefix cache needs the pool that its pages are of; give it as `pool`");
  return Generator(model, requests, options).run();
}

}  // namespace faultline::train
