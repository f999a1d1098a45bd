#include <algorithm>
#include <array>
#include <string_view>

#include "io/peft.h"

namespace faultline {
namespace {

struct Rename {
  std::string_view ours;
  std::string_view theirs;
};

// One model family: how the path of a block begins, and the layers inside it that go by another
// name there.
struct Family {
  Rename blocks;
  std::array<Rename, 4> layers;
};

constexpr Family kFamilies[] = {
    {{"h.", "transformer.h."},
     {{{"attn.qkv", "attn.c_attn"},
       {"attn.proj", "attn.c_proj"},
       {"mlp.fc", "mlp.c_fc"},
       {"mlp.proj", "mlp.c_proj"}}}},
    {{"layers.", "model.layers."}, {}},
};

}  // namespace

std::string peft_layer_name(const std::string& path) {
  for (const Family& family : kFamilies) {
    if (!path.starts_with(family.blocks.ours)) continue;
    std::string name = path;
    for (const Rename& layer : family.layers) {
      if (layer.ours.empty() || !name.ends_with(std::string(".").append(layer.ours))) continue;
      name.replace(name.size() - layer.ours.size(), std::string::npos, layer.theirs);
    }
    return std::string(family.blocks.theirs) + name.substr(family.blocks.ours.size());
  }
  return path;
}

}  // namespace faultline
