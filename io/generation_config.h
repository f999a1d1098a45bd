#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/json_fields.h"

namespace faultline {

// Ids with a meaning. One outside the vocabulary, as some configurations have it, is nobody's and
// left out.
struct SpecialTokens {
  std::optional<int64_t> begin;
  std::vector<int64_t> ends;
  std::optional<int64_t> padding;

  bool operator==(const SpecialTokens&) const = default;
};

// bos_token_id, eos_token_id (an id or a list of them) and pad_token_id. `vocab_size` 0: not known.
SpecialTokens read_special_tokens(JsonFields& fields, int64_t vocab_size);
// Sets the same keys; null where there is none.
void write_special_tokens(Json& object, const SpecialTokens& tokens);

// What generation_config.json of a Hugging Face folder says of sampling; what it does not say has
// no value.
struct GenerationConfig {
  SpecialTokens tokens;
  std::optional<bool> do_sample;  // false: always the likeliest
  std::optional<double> temperature;
  std::optional<int64_t> top_k;  // 0: all
  std::optional<double> top_p;

  bool operator==(const GenerationConfig&) const = default;
};

// Reads FOLDER/generation_config.json; an empty configuration when the folder has none. Keys that
// only matter to other ways of generating are ignored; one that would change what is sampled
// (repetition_penalty, num_beams, ...) is refused unless it has the value that changes nothing.
// Throws InvalidArgument naming the file and the key.
GenerationConfig read_generation_config(const std::string& folder, int64_t vocab_size);
Json generation_config_json(const GenerationConfig& config);

}  // namespace faultline
