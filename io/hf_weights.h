#pragma once

#include <map>
#include <string>

#include "io/hf_tensors.h"
#include "io/safetensors.h"

namespace faultline {

// The weights of a Hugging Face folder: model.safetensors, or several files that
// model.safetensors.index.json lists.

// Maps all of them. Nothing but safetensors is ever opened: a folder that only has a pickle
// (pytorch_model.bin) is refused, and so is a pickle under the name of a safetensors file. A file
// that the index lists must be in the folder itself, by a plain name and not by a link that leaves
// it, except into the blobs of the Hub's own cache. Each tensor is in the file where the index says
// and nowhere else. Throws InvalidArgument naming file and tensor; IoError when a file cannot be
// read.
HfTensors read_hf_weights(const std::string& folder);

// Writes them to `folder`, which exists: one file, or, when they take more than `shard_bytes`,
// several of at most that size (a tensor is never cut) and the index. What `between` throws ends
// it, see write_safetensors.
void write_hf_weights(const std::string& folder, const std::map<std::string, Tensor>& tensors,
                      int64_t shard_bytes, const BetweenTensors& between = {});

}  // namespace faultline
