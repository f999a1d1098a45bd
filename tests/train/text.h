#pragma once

#include <string>
#include <vector>

#include "core/rng.h"
#include "data/tokenizer.h"
#include "train/trainer.h"

namespace faultline::train {

// Some documents of words from a small vocabulary: there is something to learn, and they need no
// file.
inline TokenStore words(int documents = 24) {
  const std::vector<std::string> vocabulary{"in",    "the", "beginning", "was",
                                            "light", "and", "word"};
  const RandomSequence random(11, 5);
  std::vector<std::string> texts;
  uint64_t drawn = 0;
  for (int d = 0; d < documents; ++d) {
    std::string text;
    while (text.size() < 60 + static_cast<size_t>(d % 5) * 23) {
      text += vocabulary[random.below(vocabulary.size(), drawn++)] + " ";
    }
    texts.push_back(text);
  }
  return ByteTokenizer().tokenize(corpus_of(texts));
}

inline Config small() {
  Config config;
  config.num_layers = 2;
  config.hidden_size = 16;
  config.seq_len = 16;
  config.batch_size = 4;
  config.lr = 1e-2;
  config.dropout = 0.1;
  return config;
}

// The losses and gradient norms of the next `steps` steps: bits, not prints.
inline std::vector<double> numbers_of(Trainer& trainer, int64_t steps) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < steps; ++i) {
    const StepResult result = trainer.step();
    numbers.push_back(result.loss);
    numbers.push_back(result.grad_norm);
  }
  return numbers;
}

}  // namespace faultline::train
