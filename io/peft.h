#pragma once

#include <string>
#include <vector>

#include "nn/lora.h"

// Adapters as the PEFT library stores them: a directory with
//   adapter_config.json         what the adapter is, and which layers have one
//   adapter_model.safetensors   base_model.model.<layer>.lora_A.weight [r, in], .lora_B.weight
//   [out, r]
// Layers go by the names of the Hugging Face model. PEFT's fan_in_fan_out says that the base stores
// a weight as [in, out]; A and B are the same either way, and our weights are [out, in], so it is
// written for others and means nothing here.
namespace faultline {

// The Hugging Face name of the layer with that path in a model here: "h.0.attn.qkv" of GPT-2 is
// "transformer.h.0.attn.c_attn", "layers.0.mlp.up_proj" of Llama has "model." in front. The path
// itself for a model of another kind.
std::string peft_layer_name(const std::string& path);

// XXH64 of the names and bits of the model's weights without its adapters, as sixteen digits: that
// of the base for which an adapter was trained. It does not depend on the file that held them.
std::string base_checksum(nn::Module& model);

// For which base an adapter is.
struct PeftBase {
  std::string name;      // base_model_name_or_path, "" for none
  std::string checksum;  // base_checksum of it, "" where it is not known
};

struct PeftConfig {
  nn::LoraConfig lora;
  PeftBase base;  // its checksum is that of the file, and of the model's once it is loaded
  std::vector<std::string> unknown;  // keys with a value that nobody here knows; they are ignored
};

// Reads adapter_config.json. Throws IoError when it is not there, and InvalidArgument that names
// the file and the key for what cannot be: another peft_type, r below 1, lora_alpha 0, a dropout
// outside [0, 1), no target_modules; and for every key that asks for a computation that is not
// here, such as use_dora, bias or modules_to_save.
PeftConfig read_peft_config(const std::string& directory);

// Adds the adapter in `directory` to the model under the name `adapter`: active, frozen, in f32;
// the rest of the model is frozen too. All of it or nothing: throws InvalidArgument that names the
// file and the tensor when one is missing, unknown, misshapen or not finite, as those of another
// base are; when the file has a checksum of its base and this model's weights are others; and for a
// directory that has a pickle (adapter_model.bin) only, which is never opened.
PeftConfig load_peft(nn::Module& model, const std::string& adapter, const std::string& directory,
                     const nn::DropoutKey& key);

// Writes the model's adapter `adapter`, which was made with `config`, to `directory`, in place of
// what is there. The base's name goes into adapter_config.json, its checksum into the metadata of
// the tensors, which PEFT passes over.
void save_peft(nn::Module& model, const std::string& adapter, const nn::LoraConfig& config,
               const PeftBase& base, const std::string& directory);

}  // namespace faultline
