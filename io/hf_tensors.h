#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/state.h"
#include "io/hf_config.h"

namespace faultline {

// How the tensors of a Hugging Face folder and of our models are called and laid out. GPT-2 names
// begin with "transformer.", in old files with nothing; its four matrices of a block are [in, out]
// there (Conv1D) and [out, in] here. Llama has our names behind "model.".

enum class HfLayout : uint8_t { same, transposed };

// One tensor of a model.
struct HfTensorName {
  std::string file;  // without the prefix that a file may leave out
  std::string own;
  Shape shape;  // in the file
  HfLayout layout = HfLayout::same;
};

// Those of block `layer`, and those outside of the blocks, of a model of that configuration.
std::vector<HfTensorName> hf_layer_tensors(const HfConfig& config, int64_t layer);
std::vector<HfTensorName> hf_outer_tensors(const HfConfig& config);

// Numbers that the model has. In a double, which does not overflow.
double hf_parameter_count(const HfConfig& config);

// A tensor and the file that it came from.
struct HfTensor {
  Tensor tensor;
  std::string file;
};
using HfTensors = std::map<std::string, HfTensor>;

// The tensors as the model of that configuration takes them: our names and layout, the files' F32,
// F16 or BF16, views of the files' memory. `source` is the folder, for errors. Throws
// InvalidArgument that names file, tensor, what was expected and what was found, when one is
// missing, of another shape, no such number, not finite, or beyond the model; when a head
// contradicts tie_word_embeddings; when no tensor has the dtype that the configuration claims.
// Buffers that old versions stored (causal masks, rotary frequencies) are left out.
State model_state(const HfConfig& config, const HfTensors& tensors, const std::string& source);

// A model's state by the names and in the layout of the files; views.
std::map<std::string, Tensor> hf_tensors(const HfConfig& config, const State& state);

}  // namespace faultline
