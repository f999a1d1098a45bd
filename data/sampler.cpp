#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/rng.h"

namespace faultline {
namespace {

// Rows with the memory that they look at.
class Rows {
 public:
  Rows(const TokenStore& tokens, int64_t seq_len, int64_t count)
      : tokens_(tokens), width_(seq_len + 1), ids_(static_cast<size_t>(width_ * count)) {}

  // The row that begins at `range.begin` and ends with the range or when it is full.
  void add(TokenRange range) {
    const int64_t length = std::min(range.size(), width_);
    const std::span<int32_t> row(ids_.data() + width_ * static_cast<int64_t>(rows_.size()),
                                 static_cast<size_t>(width_));
    std::fill(row.begin(), row.end(), tokens_.end_token());
    tokens_.read(range.begin, row.first(static_cast<size_t>(length)));
    rows_.push_back({row, length, tokens_.end_token()});
  }
  Batch batch(int64_t first_sequence) const { return make_batch(rows_, first_sequence); }

 private:
  const TokenStore& tokens_;
  int64_t width_;
  std::vector<int32_t> ids_;
  std::vector<TokenRow> rows_;
};

void check_sizes(const TokenStore& tokens, TokenRange range, int64_t seq_len, int64_t batch_size) {
  require(seq_len >= 1 && batch_size >= 1,
          "sampler: seq_len {} and batch_size {} must both be at least 1", seq_len, batch_size);
  require(0 <= range.begin && range.begin <= range.end && range.end <= tokens.size(),
          "sampler: tokens [{}, {}) are not among the {} of the text", range.begin, range.end,
          tokens.size());
}

// Documents, or their parts inside the range, from which at least one label can be made.
std::vector<TokenRange> pieces_of(const TokenStore& tokens, TokenRange range) {
  std::vector<TokenRange> pieces;
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t end = std::min(range.end, tokens.document_start(tokens.document_of(at) + 1));
    if (end - at >= 2) pieces.push_back({at, end});
    at = end;
  }
  return pieces;
}

const char* name(Packing packing) { return packing == Packing::packed ? "packed" : "padded"; }

}  // namespace

DataSplit hold_out_last_tenth(const TokenStore& tokens, int64_t seq_len) {
  const int64_t total = tokens.size();
  const int64_t wanted = total - total / 10;
  const int64_t before = tokens.document_start(tokens.document_of(std::min(wanted, total - 1)));
  const int64_t after = tokens.document_start(tokens.document_of(std::min(wanted, total - 1)) + 1);
  int64_t cut = wanted - before <= after - wanted ? before : after;
  const bool is_near = cut >= total - total / 5 && cut <= total - total / 20;
  if (!is_near) cut = wanted;
  require(cut > seq_len && total - cut >= 2,
          "data: the text has {} tokens (each document's end counts as one), too few for "
          "sequences of {}: the first nine tenths must hold at least {}, and two must be left to "
          "evaluate on; use a longer text or a smaller seq_len",
          total, seq_len, seq_len + 1);
  return {{0, cut}, {cut, total}};
}

Sampler::Sampler(TokenStore tokens, TokenRange range, SamplerOptions options)
    : tokens_(std::move(tokens)), range_(range), options_(options) {
  check_sizes(tokens_, range, options.seq_len, options.batch_size);
  if (options.packing == Packing::padded) {
    pieces_ = pieces_of(tokens_, range);
    require(!pieces_.empty(), "sampler: none of the documents has two tokens to train on");
  } else {
    require(range.size() > options.seq_len,
            "sampler: {} tokens to train on are fewer than one sequence of seq_len + 1 = {}",
            range.size(), options.seq_len + 1);
  }
}

int64_t Sampler::sequences_in(int64_t offset) const {
  if (options_.packing == Packing::padded) return static_cast<int64_t>(pieces_.size());
  return (range_.size() - 1 - offset) / options_.seq_len;
}

// Fisher-Yates; the draws of an epoch are a random stream of their own, addressed by index, so an
// epoch can be made without the ones before it.
Sampler::Epoch Sampler::shuffled(int64_t number) const {
  const RandomSequence random(options_.seed, stream_of("sampler") + static_cast<uint64_t>(number));
  Epoch epoch;
  epoch.number = number;
  if (options_.packing == Packing::packed) {
    // At least one window must remain.
    const int64_t offsets = std::min(options_.seq_len, range_.size() - options_.seq_len);
    epoch.offset = static_cast<int64_t>(random.below(static_cast<uint64_t>(offsets), 0));
  }
  epoch.order.resize(static_cast<size_t>(sequences_in(epoch.offset)));
  std::iota(epoch.order.begin(), epoch.order.end(), 0);
  for (uint64_t left = epoch.order.size(); left > 1; --left) {
    std::swap(epoch.order[left - 1], epoch.order[random.below(left, left)]);
  }
  return epoch;
}

const Sampler::Epoch& Sampler::epoch_of(int64_t number) {
  Epoch& cached = cached_[number % 2];
  if (cached.number != number) cached = shuffled(number);
  return cached;
}

Sampler::Place Sampler::after(Place place, int64_t sequences) {
  place.position += sequences;
  for (;;) {
    const auto count = static_cast<int64_t>(epoch_of(place.epoch).order.size());
    if (place.position < count) return place;
    place.position -= count;
    ++place.epoch;
  }
}

Batch Sampler::batch(int64_t first, int64_t count) {
  require(first >= 0 && count >= 1 && first + count <= options_.batch_size,
          "sampler: sequences [{}, {}) were asked for, a step has {}", first, first + count,
          options_.batch_size);
  Rows rows(tokens_, options_.seq_len, count);
  Place place = after(place_, first);
  for (int64_t i = 0; i < count; ++i, place = after(place, 1)) {
    const Epoch& epoch = epoch_of(place.epoch);
    const int64_t chosen = epoch.order[static_cast<size_t>(place.position)];
    if (options_.packing == Packing::padded) {
      rows.add(pieces_[static_cast<size_t>(chosen)]);
    } else {
      rows.add({range_.begin + epoch.offset + chosen * options_.seq_len, range_.end});
    }
  }
  return rows.batch(first);
}

void Sampler::advance() { place_ = after(place_, options_.batch_size); }

State Sampler::state() const {
  State state;
  state.set_integer("epoch", place_.epoch);
  state.set_integer("position", place_.position);
  state.set_integer("seq_len", options_.seq_len);
  state.set_integer("begin", range_.begin);
  state.set_integer("end", range_.end);
  state.values["seed"] = fmt::format("{}", options_.seed);
  state.values["packing"] = name(options_.packing);
  state.values["data"] = fmt::format("{:016x}", tokens_.checksum());
  return state;
}

void Sampler::load_state(const State& saved) {
  const State own = state();
  for (const char* key : {"data", "begin", "end", "seed", "seq_len", "packing"}) {
    const auto found = saved.values.find(key);
    require(found != saved.values.end(), "sampler: the saved state has no '{}'", key);
    require(found->second == own.values.at(key),
            "sampler: the saved state is for {} {}, this run has {}; resume with the same data and "
            "settings, or start a new run",
            key, found->second, own.values.at(key));
  }
  const Place place{saved.integer("epoch"), saved.integer("position")};
  require(place.epoch >= 0 && place.position >= 0,
          "sampler: the saved epoch {} or position {} is negative", place.epoch, place.position);
  const auto count = static_cast<int64_t>(epoch_of(place.epoch).order.size());
  require(place.position < count,
          "sampler: the saved position {} is past the {} sequences of epoch {}", place.position,
          count, place.epoch);
  place_ = place;
}

Evaluation::Evaluation(TokenStore tokens, TokenRange range, int64_t seq_len, int64_t batch_size)
    : tokens_(std::move(tokens)), range_(range), seq_len_(seq_len), batch_size_(batch_size) {
  check_sizes(tokens_, range, seq_len, batch_size);
  require(range.size() >= 2, "evaluation: {} token(s) are held out, at least two are needed",
          range.size());
  windows_ = (range.size() - 1 + seq_len - 1) / seq_len;
}

Batch Evaluation::batch(int64_t index) const {
  require(index >= 0 && index < batches(), "evaluation: batch {} was asked for, there are {}",
          index, batches());
  const int64_t first = index * batch_size_;
  const int64_t count = std::min(batch_size_, windows_ - first);
  Rows rows(tokens_, seq_len_, count);
  for (int64_t w = first; w < first + count; ++w) {
    rows.add({range_.begin + w * seq_len_, range_.end});
  }
  return rows.batch(first);
}

}  // namespace faultline
