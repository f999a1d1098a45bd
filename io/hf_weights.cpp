#include "io/hf_weights.h"

#include <filesystem>
#include <set>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/folder_file.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kWhyNoPickle =
    "a pickle runs code when it is opened, so it is not; save the model as safetensors";

bool is_there(const std::string& path) {
  std::error_code none;
  return fs::exists(path, none);
}

// Formats that people find in such folders.
bool is_pickle_name(const fs::path& name) {
  const std::string kind = name.extension().string();
  return kind == ".bin" || kind == ".pt" || kind == ".pth" || kind == ".ckpt" || kind == ".pkl";
}

Safetensors read_file(const std::string& folder, const std::string& name) {
  return read_safetensors(path_inside(folder, name));
}

[[noreturn]] void refuse_without_weights(const std::string& folder) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const fs::path name = entry.path().filename();
    require(!is_pickle_name(name), "{}: holds {} and no {}; {}", folder, name.string(), kSingle,
            kWhyNoPickle);
  }
  fail("{}: there is no {} and no {} in the folder", folder, kSingle, kIndex);
}

bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// File by tensor, as the index says.
std::map<std::string, std::string> read_index(const std::string& folder) {
  const std::string path = path_inside(folder, kIndex);
  const Json json = Json::parse(map_file(path).text(), path);
  require(json.is(Json::Kind::object), "{}: should be a JSON object, it is {}", path,
          faultline::name(json.kind()));
  const Json* map = json.find("weight_map");
  require(map != nullptr && map->is(Json::Kind::object),
          "{}: \"weight_map\" should be an object of tensors and their files", path);
  std::map<std::string, std::string> files;
  for (const JsonMember& member : map->members()) {
    const bool plain = member.value.is(Json::Kind::text) && is_plain_name(member.value.text());
    require(plain, "{}: {} is in {}; that should be the name of a .safetensors file in this folder",
            path, json_quoted(member.key), member.value.to_text().substr(0, 80));
    files.emplace(member.key, member.value.text());
  }
  require(!files.empty(), "{}: \"weight_map\" is empty", path);
  return files;
}

HfTensors read_shards(const std::string& folder, const std::string& index) {
  const std::map<std::string, std::string> files = read_index(folder);
  std::set<std::string> shards;
  for (const auto& [tensor, file] : files) shards.insert(file);
  HfTensors tensors;
  for (const std::string& shard : shards) {
    const std::string path = folder + "/" + shard;
    require(is_there(path), "{}: lists the file {}, which is not there", index, json_quoted(shard));
    for (auto& [name, tensor] : read_file(folder, shard).tensors) {
      const auto listed = files.find(name);
      require(listed != files.end(), "{}: holds the tensor {}, which {} does not list", path,
              json_quoted(name), kIndex);
      require(listed->second == shard, "{}: holds the tensor {}, which {} has in {}", path,
              json_quoted(name), kIndex, json_quoted(listed->second));
      tensors[name] = {tensor, path};
    }
  }
  for (const auto& [name, shard] : files) {
    require(tensors.contains(name), "{}/{}: has no tensor {}, which {} has there", folder, shard,
            json_quoted(name), kIndex);
  }
  return tensors;
}

int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(size_of(tensor.dtype()));
}

}  // namespace

HfTensors read_hf_weights(const std::string& folder) {
  const std::string single = folder + "/" + kSingle;
  const std::string index = folder + "/" + kIndex;
  require(!is_there(single) || !is_there(index),
          "{}: holds {} and {}; remove the one that is not the model", folder, kSingle, kIndex);
  if (is_there(index)) return read_shards(folder, index);
  if (!is_there(single)) refuse_without_weights(folder);
  HfTensors tensors;
  for (auto& [name, tensor] : read_file(folder, kSingle).tensors) tensors[name] = {tensor, single};
  return tensors;
}

void write_hf_weights(const std::string& folder, const std::map<std::string, Tensor>& tensors,
                      int64_t shard_bytes, const BetweenTensors& between) {
  std::vector<std::map<std::string, Tensor>> shards(1);
  int64_t total = 0;
  int64_t filled = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t bytes = bytes_of(tensor);
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back()[name] = tensor;
    filled += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    return write_safetensors(folder + "/" + kSingle, tensors, {}, between);
  }
  std::vector<JsonMember> map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder + "/" + file, shards[i], {}, between);
    for (const auto& [name, tensor] : shards[i]) map.push_back({name, file});
  }
  const Json index = Json::object()
                         .set("metadata", Json::object().set("total_size", total))
                         .set("weight_map", Json::object(std::move(map)));
  write_file_atomically(folder + "/" + kIndex, index.to_indented_text());
}

}  // namespace faultline
