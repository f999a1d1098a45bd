#pragma once

#include "data/bpe_tokenizer.h"
#include "data/json_field.h"

namespace faultline {

// The frame of a tokenizer.json is all of it but the tokens and the merges.

// Reads the split patterns, add_prefix_space, ignore_merges and what is put around a prompt, and
// keeps the frame. Throws InvalidArgument naming file and key for everything that asks for
// something else.
BpeDefinition read_frame(const JsonField& root);

// The frame that says what the definition says.
Json make_frame(const BpeDefinition& definition);

}  // namespace faultline
