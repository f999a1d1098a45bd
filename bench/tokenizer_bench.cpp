#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/error.h"
#include "data/bpe_train.h"
#include "data/corpus.h"
#include "io/json.h"

// How fast text becomes ids on one thread. Trains a vocabulary on the corpus, or loads one, and
// prints MB/s of each round as JSON; bench/peers/tokenizers_peer.py compares.
namespace faultline {
namespace {

struct Options {
  std::string tokenizer;
  std::string data;
  std::string save;
  int64_t vocab_size = 50257;
  int64_t rounds = 5;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string read_text(const Options& options) {
  const Corpus corpus = options.data.empty() ? default_corpus({.documents = Documents::none})
                                             : read_corpus(options.data);
  return std::accumulate(corpus.documents.begin(), corpus.documents.end(), std::string());
}

// FNV-1a over the ids as little-endian 32-bit numbers; the peer computes the same.
uint64_t checksum_of(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xff)) * 0x100000001b3;
    }
  }
  return hash;
}

int run(const Options& options) {
  require(options.rounds >= 1, "tokenizer bench: --rounds must be at least 1, got {}",
          options.rounds);
  const std::string text = read_text(options);
  std::optional<BpeTokenizer> tokenizer;
  const double made = seconds_of([&] {
    tokenizer =
        options.tokenizer.empty()
            ? train_bpe(std::vector<std::string>{text},
                        {.vocab_size = options.vocab_size, .special_tokens = {"<|endoftext|>"}})
            : BpeTokenizer::load(options.tokenizer);
  });
  if (!options.save.empty()) tokenizer->save(options.save);
  std::vector<double> rates;
  std::vector<int32_t> ids;
  for (int64_t round = 0; round < options.rounds; ++round) {
    const double seconds = seconds_of([&] { ids = tokenizer->encode(text); });
    rates.push_back(static_cast<double>(text.size()) / seconds / 1e6);
  }
  fmt::print("{}\n", Json::object()
                         .set("bytes", text.size())
                         .set("vocab_size", tokenizer->vocab_size())
                         .set(options.tokenizer.empty() ? "train_s" : "load_s", made)
                         .set("tokens", ids.size())
                         .set("checksum", fmt::format("{:016x}", checksum_of(ids)))
                         .set("round_trip", tokenizer->decode(ids) == text)
                         .set("mb_per_s", Json::array_of(rates))
                         .to_text());
  return 0;
}

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  faultline::Options options;
  CLI::App app("Times the tokenizer on one thread");
  app.add_option("TOKENIZER", options.tokenizer, "A tokenizer.json; none: train one");
  app.add_option("--data", options.data, "A text instead of the default corpus");
  app.add_option("--save", options.save, "Write the tokenizer to this file");
  app.add_option("--vocab", options.vocab_size, "Tokens to train (default 50257)");
  app.add_option("--rounds", options.rounds, "Times to encode the text (default 5)");
  CLI11_PARSE(app, argc, argv);
  try {
    return faultline::run(options);
  } catch (const faultline::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
