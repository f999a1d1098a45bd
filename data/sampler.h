#pragma once

#include <cstdint>
#include <vector>

#include "core/state.h"
#include "data/batch.h"
#include "data/token_store.h"

namespace faultline {

// Places [begin, end) of a token store.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// What is trained on and what only evaluation sees.
struct DataSplit {
  TokenRange training;
  TokenRange held_out;
};

// Holds out the last tenth: cut at the document border nearest to nine tenths of the tokens, or,
// where no border lies between eight tenths and 95 hundredths (few, long documents), inside a
// document at nine tenths. Throws InvalidArgument when the training part cannot fill one sequence
// of seq_len + 1 tokens or fewer than two tokens are held out.
DataSplit hold_out_last_tenth(const TokenStore& tokens, int64_t seq_len);

// What a training sequence is.
enum class Packing : uint8_t {
  packed,  // a window over the whole row of documents
  padded,  // one document from its start, cut after seq_len + 1 tokens, filled up with padding
};

struct SamplerOptions {
  int64_t seq_len = 0;     // T
  int64_t batch_size = 0;  // B, of all ranks together
  uint64_t seed = 1;
  Packing packing = Packing::packed;
};

// The training sequences in their order: an endless list, cut into epochs, in which every sequence
// of an epoch comes once, shuffled by (seed, epoch). A step takes the next B of them, numbered 0 to
// B - 1 without regard to ranks; a rank asks for the ones that it runs.
//
// Packed: the sequences of an epoch are the windows of T + 1 tokens that begin at offset + w * T,
// with an offset in [0, T) drawn anew for each epoch. Padded: the documents of at least two tokens.
class Sampler {
 public:
  // Throws InvalidArgument when the range holds no sequence or an option is not positive.
  Sampler(TokenStore tokens, TokenRange range, SamplerOptions options);

  // Sequences first, first + 1, ... of the current step, `count` of them, in [0, batch_size].
  Batch batch(int64_t first, int64_t count);
  // The current step's whole batch.
  Batch batch() { return batch(0, options_.batch_size); }
  // Goes on to the next step.
  void advance();

  // Of the current step's first sequence.
  int64_t epoch() const { return place_.epoch; }
  int64_t position() const { return place_.position; }

  // Epoch and position, and what they mean something for: seed, T, packing and the data.
  State state() const;
  // Throws InvalidArgument, and changes nothing, when the state is of other data, another seed,
  // sequence length or packing, or is out of range.
  void load_state(const State& state);

 private:
  struct Place {
    int64_t epoch = 0;
    int64_t position = 0;
  };
  struct Epoch {
    int64_t number = -1;
    int64_t offset = 0;
    std::vector<int64_t> order;
  };

  Epoch shuffled(int64_t number) const;
  const Epoch& epoch_of(int64_t number);
  // `sequences` places further, over the ends of epochs.
  Place after(Place place, int64_t sequences);
  int64_t sequences_in(int64_t offset) const;

  TokenStore tokens_;
  TokenRange range_;
  SamplerOptions options_;
  std::vector<TokenRange> pieces_;  // padded: the documents to begin at
  Place place_;
  Epoch cached_[2];  // a step may reach into the next epoch; by the parity of the number
};

// The held-out part as fixed batches: windows of T positions one after the other, the last one
// padded, so that every label of the part is counted exactly once.
class Evaluation {
 public:
  // Throws InvalidArgument when the range holds fewer than two tokens or an option is not positive.
  Evaluation(TokenStore tokens, TokenRange range, int64_t seq_len, int64_t batch_size);

  int64_t batches() const { return (windows_ + batch_size_ - 1) / batch_size_; }
  // Batch `index` in [0, batches()); the last may have fewer rows.
  Batch batch(int64_t index) const;

 private:
  TokenStore tokens_;
  TokenRange range_;
  int64_t seq_len_;
  int64_t batch_size_;
  int64_t windows_;
};

}  // namespace faultline
