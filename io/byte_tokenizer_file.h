#pragma once

#include <string>

namespace faultline {

// The byte tokenizer (the id of a byte is its value) as a Hugging Face tokenizer.json: a byte-level
// BPE of the 256 bytes without a merge, each byte spelled as the character that GPT-2 gives it.
// Byte 0, which ends a document, is no special token there: its spelling is a letter that a text
// may hold. It is the eos_token_id of the model instead.
std::string byte_tokenizer_json();

// The tokenizer_config.json beside it, for transformers. `positions` is the model's length.
std::string byte_tokenizer_config_json(int64_t positions);

// Whether a tokenizer.json has exactly that content, in any layout.
bool is_byte_tokenizer(const std::string& path);

}  // namespace faultline
