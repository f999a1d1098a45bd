#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/context_window.h"
#include "nn/kv_pages.h"
#include "nn/language_model.h"
#include "nn/left_padding.h"
#include "nn/prefix_cache.h"
#include "train/sampling.h"

namespace faultline::train {

// The mask of a pass of `count` new slots from slot `first` on.
struct GenerationMaskSeam {
  static constexpr const char* name = "generation mask";
  // Causal from `first` on, without the padding.
  using Signature = nn::Mask(const nn::LeftPadding& padding, int64_t first, int64_t count);
  static nn::Mask standard(const nn::LeftPadding& padding, int64_t first, int64_t count);
};

// The positions of these slots, i32 [B, count]; undefined: those that the mask gives.
struct GenerationPositionsSeam {
  static constexpr const char* name = "generation positions";
  using Signature = Tensor(const nn::LeftPadding& padding, int64_t first, int64_t count);
  static Tensor standard(const nn::LeftPadding& padding, int64_t first, int64_t count) {
    return padding.positions(first, count);
  }
};

using TokenRows = std::vector<std::vector<int32_t>>;

// A pass over new slots is about to run. The slots [first, first + T) end with the ends of `texts`,
// one a row, each of which begins at position 0.
struct GenerationInputEvent {
  const TokenRows& texts;  // whole ones
  int64_t first;           // slots that are in the cache already
  const nn::ModelInput& input;
};

// It ran: the logits of the last token of each text.
struct GenerationLogitsEvent {
  nn::LanguageModel& model;
  const TokenRows& texts;
  int64_t first;
  DType cached;  // in which keys and values are kept
  const Tensor& logits_B1V;
};

// One text to continue.
struct Request {
  std::vector<int32_t> prompt;
  int64_t tokens = 256;  // at most so many new ones
  SamplingOptions sampling;
};

// Where keys and values are kept between tokens.
struct KvStorage {
  enum class Kind : uint8_t { none, contiguous, paged };
  Kind kind = Kind::contiguous;
  DType dtype = DType::f32;
  nn::Unwritten unwritten = nn::Unwritten::anything;

  // Paged only.
  int64_t page_slots = 16;
  nn::PageChecks checks = nn::PageChecks::when_shared;
  std::shared_ptr<nn::PagePool> pool;         // null: one of its own
  std::shared_ptr<nn::PrefixCache> prefixes;  // over `pool`; null: nothing is reused
  std::string weights;                        // whose keys these are, for `prefixes`
};

struct GenerationOptions {
  nn::ContextPolicy policy = nn::ContextPolicy::keep_tail;
  int64_t sinks = 4;
  int64_t positions = 0;  // at most so many of the model's; 0: all
  KvStorage storage;
  std::vector<int32_t> end_ids;  // any of these ends a row, as its last token
  int64_t usable_ids = 0;        // ids below this may be chosen; 0: all. For padded vocabularies
  // Called with each new token as it is there, row by row.
  std::function<void(size_t row, int32_t id)> on_token;
};

enum class Ending : uint8_t { tokens, end_id };

struct Continuation {
  std::vector<int32_t> tokens;  // the new ones
  nn::ContextFit context;       // what the model was given of the prompt
  Ending ending = Ending::tokens;
  int64_t reused = 0;  // prompt tokens whose keys were there already
};

struct Generation {
  std::vector<Continuation> rows;
  int64_t passes = 0;        // forward passes
  int64_t recomputed = 0;    // of them: whole contexts computed anew, after the first
  double first_seconds = 0;  // until the first token of every row
  double seconds = 0;        // all of it

  int64_t tokens() const;
  double tokens_per_second() const;
};

// What generate() will give the model of a request's prompt. Throws InvalidArgument when the policy
// refuses it.
nn::ContextFit context_of(nn::LanguageModel& model, const Request& request,
                          const GenerationOptions& options);

// Continues every request. The rows of the batch share forward passes, padded on the left to the
// longest prompt, and do not see each other: a row's tokens are those of the same request alone, up
// to choices that rounding decides. With a cache of f32 they are in the same way those without one.
//
// Beyond the model's positions keep_tail and sink_tail slide. Every position then moves, so keys
// cannot be kept: each further token computes the whole context anew. The tokens are the same as
// without a cache.
//
// Throws InvalidArgument for an empty prompt, impossible options, a context that `policy` refuses,
// and logits that are not finite, naming the step and row.
Generation generate(nn::LanguageModel& model, std::span<const Request> requests,
                    const GenerationOptions& options = {});

}  // namespace faultline::train
