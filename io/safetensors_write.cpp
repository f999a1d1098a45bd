#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/file_bytes.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_dtype.h"

namespace faultline {
namespace {

using Item = std::pair<const std::string, Tensor>;

void check_text(const std::string& text, const std::string& path) {
  // What is not UTF-8 would be replaced, and could not be found again.
  const Json back = Json::parse(json_quoted(text), path);
  require(back.text() == text, "{}: {} is not UTF-8, a safetensors file cannot hold it", path,
          json_quoted(text));
}

std::vector<const Item*> in_file_order(const std::map<std::string, Tensor>& tensors,
                                       const std::string& path) {
  std::vector<const Item*> items;
  for (const Item& item : tensors) {
    const auto& [name, tensor] = item;
    check_text(name, path);
    require(name != "__metadata__", "{}: no tensor may be named __metadata__, it has a meaning",
            path);
    require(tensor.defined(), "{}: tensor {} is undefined, there is nothing to write", path,
            json_quoted(name));
    require(safetensors_rank(tensor.dtype()) < std::size(kSafetensorsOrder),
            "{}: tensor {} is {}, a safetensors file holds {}", path, json_quoted(name),
            faultline::name(tensor.dtype()), kSafetensorsDTypes);
    items.push_back(&item);
  }
  std::stable_sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return safetensors_rank(a->second.dtype()) < safetensors_rank(b->second.dtype());
  });
  return items;
}

std::string header_of(const std::vector<const Item*>& items,
                      const std::map<std::string, std::string>& metadata) {
  Json about = Json::object().set("format", "pt");
  for (const auto& [key, value] : metadata) about.set(key, value);
  std::vector<JsonMember> members = {{"__metadata__", about}};
  int64_t end = 0;
  for (const Item* item : items) {
    const auto& [name, tensor] = *item;
    const int64_t begin = end;
    end += tensor.numel() * static_cast<int64_t>(size_of(tensor.dtype()));
    Json shape = Json::array();
    for (const int64_t size : tensor.shape()) shape.push(size);
    Json entry = Json::object();
    entry.set("dtype", kSafetensorsOrder[safetensors_rank(tensor.dtype())].first);
    entry.set("shape", shape).set("data_offsets", Json::array().push(begin).push(end));
    members.push_back({name, entry});
  }
  std::string header = Json::object(std::move(members)).to_text();
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const BetweenTensors& between) {
  for (const auto& [key, value] : metadata) {
    check_text(key, path);
    check_text(value, path);
  }
  const std::vector<const Item*> items = in_file_order(tensors, path);
  const std::string header = header_of(items, metadata);
  const uint64_t length = header.size();

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const Item* item : items) {
    if (between) between();
    file.write(FileBytes(item->second).bytes());
  }
  file.commit();
}

}  // namespace faultline
