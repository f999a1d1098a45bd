#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/rng.h"
#include "diagnose/detector.h"
#include "train/trainer.h"

namespace faultline::diagnose {

// What all detectors say, at the deepest level, about what `action` does on a fresh Context.
inline std::vector<Detection> watched(const std::function<void(Context&)>& action) {
  Context context(ContextOptions{.threads = 1});
  const ContextGuard guard(context);
  context.step = 1;
  const Watch watch(context, WatchLevel::deep);
  action(context);
  return watch.findings().ranked();
}

// "detector -> cause" of each, best first.
inline std::vector<std::string> names_of(const std::vector<Detection>& detections) {
  std::vector<std::string> names;
  for (const Detection& d : detections) names.push_back(d.detector + " -> " + d.cause);
  return names;
}

// A model of one layer that trains within milliseconds.
inline train::Config tiny_config() {
  train::Config config;
  config.num_layers = 1;
  config.hidden_size = 16;
  config.vocab_size = 16;
  config.seq_len = 16;
  config.batch_size = 4;
  config.lr = 1e-2;
  return config;
}

// Independent uniform symbols below `symbols`; 0 ends a document.
inline TokenStore uniform_tokens(int64_t count, int64_t symbols = 16, uint64_t seed = 1) {
  const RandomSequence random(seed, stream_of("test tokens"));
  TokenStoreBuilder builder(symbols, 0);
  std::vector<int32_t> document;
  for (int64_t i = 0; i < count; ++i) {
    const auto bound = static_cast<uint64_t>(symbols);
    const auto symbol = static_cast<int32_t>(random.below(bound, static_cast<uint64_t>(i)));
    if (symbol != 0) {
      document.push_back(symbol);
    } else {
      builder.add_document(document);
      document.clear();
    }
  }
  builder.add_document(document);
  return builder.finish();
}

}  // namespace faultline::diagnose
