#include "data/bpe_train.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <unordered_map>

#include "core/error.h"
#include "data/byte_level.h"
#include "data/utf8.h"

namespace faultline {
namespace {

struct Word {
  std::vector<int32_t> tokens;
  int64_t count;  // how often the texts have it
};

struct PairHash {
  size_t operator()(const std::pair<int32_t, int32_t>& pair) const {
    const uint64_t both =
        uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second);
    return both * 0x9E3779B97F4A7C15 >> 16;
  }
};

using Pair = std::pair<int32_t, int32_t>;

class Trainer {
 public:
  Trainer(BpeDefinition& definition, std::vector<Word> words)
      : definition_(definition), words_(std::move(words)) {
    for (size_t id = 0; id < definition_.tokens.size(); ++id) {
      ids_.emplace(definition_.tokens[id], static_cast<int32_t>(id));
    }
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& tokens = words_[w].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        count(tokens[i], tokens[i + 1], words_[w].count, w);
      }
    }
    offer_fresh();
  }

  void run(size_t vocab_size, int64_t min_frequency) {
    while (definition_.tokens.size() < vocab_size && !waiting_.empty()) {
      Candidate best = std::move(const_cast<Candidate&>(waiting_.top()));
      waiting_.pop();
      const int64_t now = counts_.at(best.pair);
      if (now != best.count) {  // other merges took some of its places
        best.count = now;
        waiting_.push(std::move(best));
        continue;
      }
      if (best.count < std::max<int64_t>(1, min_frequency)) break;
      merge(best);
    }
    keep_last_of_each_pair();
  }

 private:
  struct Candidate {
    Pair pair;
    int64_t count;
    std::vector<size_t> words;  // in which it may stand
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void count(int32_t left, int32_t right, int64_t change, size_t word) {
    counts_[{left, right}] += change;
    if (change <= 0) return;
    std::vector<size_t>& places = fresh_[{left, right}];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  // Pairs that have new places become candidates; one that is a candidate already is so twice, and
  // each goes with its own places.
  void offer_fresh() {
    for (auto& [pair, places] : fresh_) {
      const int64_t count = counts_.at(pair);
      if (count > 0) waiting_.push({pair, count, std::move(places)});
    }
    fresh_.clear();
  }

  void merge(const Candidate& best) {
    const auto [left, right] = best.pair;
    const std::string name = definition_.tokens[static_cast<size_t>(left)] +
                             definition_.tokens[static_cast<size_t>(right)];
    const auto [known, is_new] =
        ids_.emplace(name, static_cast<int32_t>(definition_.tokens.size()));
    if (is_new) definition_.tokens.push_back(name);
    const int32_t result = known->second;
    definition_.merges.push_back({left, right, result});
    for (const size_t word : best.words) merge_in(word, left, right, result);
    offer_fresh();
  }

  void merge_in(size_t index, int32_t left, int32_t right, int32_t result) {
    Word& word = words_[index];
    std::vector<int32_t>& tokens = word.tokens;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool here = tokens[i] == left && i + 1 < tokens.size() && tokens[i + 1] == right;
      if (!here) {
        tokens[kept++] = tokens[i];
        continue;
      }
      if (kept > 0) {
        count(tokens[kept - 1], left, -word.count, index);
        count(tokens[kept - 1], result, word.count, index);
      }
      ++i;
      if (i + 1 < tokens.size()) {
        count(right, tokens[i + 1], -word.count, index);
        count(result, tokens[i + 1], word.count, index);
      }
      tokens[kept++] = result;
    }
    tokens.resize(kept);
  }

  // A token that is made in two ways can bring a merged pair back, which is then merged again. Such
  // a pair has the rank of its last merge.
  void keep_last_of_each_pair() {
    std::vector<BpeMerge>& merges = definition_.merges;
    std::unordered_map<Pair, size_t, PairHash> last;
    for (size_t i = 0; i < merges.size(); ++i) last[{merges[i].left, merges[i].right}] = i;
    std::vector<BpeMerge> kept;
    for (size_t i = 0; i < merges.size(); ++i) {
      if (last.at({merges[i].left, merges[i].right}) == i) kept.push_back(merges[i]);
    }
    merges = std::move(kept);
  }

  BpeDefinition& definition_;
  std::vector<Word> words_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<size_t>, PairHash> fresh_;
  std::priority_queue<Candidate> waiting_;
};

// The pieces of all texts, each once, as the ids of their bytes.
std::vector<Word> words_of(std::span<const std::string> texts, const SplitRule& rule,
                           const std::array<int32_t, 256>& ids_of_bytes) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const std::string& text : texts) {
    const size_t valid = end_of_valid_utf8(text, 0);
    require(valid == text.size(),
            "bpe training: a text is not UTF-8, at byte {}; repair it first (repair_utf8)", valid);
    rule.split(text, [&](std::string_view piece) { ++counts[piece]; });
  }
  std::vector<std::pair<std::string_view, int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Word> words;
  for (const auto& [piece, count] : sorted) {
    Word word{{}, count};
    for (const char byte : piece) word.tokens.push_back(ids_of_bytes[static_cast<uint8_t>(byte)]);
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

BpeTokenizer train_bpe(std::span<const std::string> texts, const BpeTraining& options) {
  const auto least = static_cast<int64_t>(options.special_tokens.size()) + 256;
  require(
      options.vocab_size >= least && options.vocab_size < INT32_MAX,
      "bpe training: a vocabulary of {} was asked for; the 256 bytes and {} special tokens take "
      "{}",
      options.vocab_size, options.special_tokens.size(), least);
  BpeDefinition definition;
  definition.patterns = options.patterns;
  for (const std::string& special : options.special_tokens) {
    const auto id = static_cast<int32_t>(definition.tokens.size());
    definition.tokens.push_back(special);
    definition.added.push_back({.id = id, .content = special, .special = true});
  }
  // The characters of the bytes in their own order, which is not that of the bytes.
  std::map<std::string_view, uint8_t> alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet.emplace(byte_level_character(static_cast<uint8_t>(byte)), static_cast<uint8_t>(byte));
  }
  std::array<int32_t, 256> ids_of_bytes{};
  for (const auto& [character, byte] : alphabet) {
    ids_of_bytes[byte] = static_cast<int32_t>(definition.tokens.size());
    definition.tokens.emplace_back(character);
  }
  const SplitRule rule(options.patterns, "bpe training");
  Trainer trainer(definition, words_of(texts, rule, ids_of_bytes));
  trainer.run(static_cast<size_t>(options.vocab_size), options.min_frequency);
  return BpeTokenizer(std::move(definition), "bpe training");
}

}  // namespace faultline
