#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/json.h"
#include "nn/lora_trace.h"
#include "nn/repetition.h"

namespace faultline::cli {

// What can be said of a text that a model continued: how much its adapters add to each layer, and
// whether the text repeats itself because of what the model learned or because of its cache.
class TextReport {
 public:
  // Runs the model over the text again, as much of its end as the model has positions for. The
  // first `prompt` tokens of `text` were given to it.
  TextReport(nn::LanguageModel& model, std::span<const int32_t> text, int64_t prompt);

  // Lines for people.
  std::string text() const;
  // Sets "adapters" and "repetition".
  void add_to(Json& answer) const;

 private:
  std::vector<nn::AdapterDelta> adapters_;
  nn::RepetitionReport repetition_;
  std::string place_;  // where a pass with a cache leaves one without
  int64_t first_ = 0;  // the tokens from here on were looked at
  int64_t count_ = 0;
};

}  // namespace faultline::cli
