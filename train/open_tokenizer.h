#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace faultline::train {

// The tokenizer of a run or a Hugging Face folder: bytes for a run that began from a preset, else
// what tokenizer.json, or vocab.json and merges.txt, hold. Documents end with the first
// eos_token_id of the configuration. Throws InvalidArgument when a folder has no tokenizer, or one
// that cannot be used, naming file and key: one with more ids than the model, or without an
// eos_token_id of the configurations; IoError when a file cannot be read.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& directory);

}  // namespace faultline::train
