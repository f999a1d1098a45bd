#include "io/checkpoint.h"

#include <charconv>
#include <filesystem>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/file_bytes.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/percent.h"
#include "io/safetensors.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr const char* kAdvice = "restore it from a copy, or resume from an older checkpoint";

std::string tensors_path(const std::string& directory) { return directory + "/state.safetensors"; }
std::string values_path(const std::string& directory) { return directory + "/state.json"; }

// The text of state.json is exactly these around the content.
constexpr std::string_view kHead = "{\"checksum\":\"";
constexpr std::string_view kMiddle = "\",\"content\":";
constexpr std::string_view kTail = "}\n";

std::string sealed(const std::string& content) {
  std::string text(kHead);
  text.append(hex(xxh64(content))).append(kMiddle).append(content).append(kTail);
  return text;
}

// The content of a sealed text. Throws unless every byte is what `sealed` wrote.
Json unsealed(std::string_view text, const std::string& path) {
  constexpr size_t kFront = kHead.size() + 16 + kMiddle.size();
  if (text.size() > kFront + kTail.size()) {
    const std::string content(text.substr(kFront, text.size() - kFront - kTail.size()));
    if (sealed(content) == text) return Json::parse(content, path);
  }
  fail("{}: damaged, it does not match its checksum; {}", path, kAdvice);
}

// The tensor that is damaged, as a text; empty when it cannot be told.
std::string damaged_tensor(const MappedFile& file, const std::string& path, const Json& checksums) {
  try {
    for (const auto& [name, tensor] : read_safetensors(file, path).tensors) {
      const Json* known = checksums.find(name);
      if (known == nullptr || known->text() != hex(xxh64(FileBytes(tensor).bytes()))) {
        return "tensor " + json_quoted(percent_decoded(name));
      }
    }
  } catch (const InvalidArgument&) {
    // The header itself is unreadable.
  }
  return "its header";
}

// Tensors of the file, each equal to its checksum.
std::map<std::string, Tensor> verified_tensors(const std::string& path, const Json& content) {
  const MappedFile file = map_file(path);
  const int64_t bytes = content.at("file").at("bytes").integer();
  require(static_cast<int64_t>(file.bytes) == bytes,
          "{}: damaged, it should have {} bytes and has {}; {}", path, bytes, file.bytes, kAdvice);
  const Json& checksums = content.at("tensors");
  if (hex(xxh64(file.content())) != content.at("file").at("xxh64").text()) {
    fail("{}: damaged, {} does not match its checksum; {}", path,
         damaged_tensor(file, path, checksums), kAdvice);
  }
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : read_safetensors(file, path).tensors) {
    // Equal files hold equal tensors; this finds what was damaged in memory before it was written.
    require(checksums.at(name).text() == hex(xxh64(FileBytes(tensor).bytes())),
            "{}: tensor {} was damaged while it was saved; {}", path,
            json_quoted(percent_decoded(name)), kAdvice);
    tensors.emplace(percent_decoded(name), tensor);
  }
  require(tensors.size() == checksums.members().size(),
          "{}: holds {} tensors, state.json lists {}; {}", path, tensors.size(),
          checksums.members().size(), kAdvice);
  return tensors;
}

// N of "step_N"; -1 for any other name.
int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  const bool is_step = error == std::errc{} && stop == end && name == fmt::format("step_{}", step);
  return is_step ? step : -1;
}

std::string checkpoints_of(const std::string& run_dir) { return run_dir + "/checkpoints"; }

}  // namespace

std::string save_checkpoint(const std::string& run_dir, int64_t step, const State& state,
                            const BetweenTensors& between) {
  require(step >= 0, "checkpoint: step {} is negative", step);
  const std::string path = fmt::format("{}/step_{}", checkpoints_of(run_dir), step);
  AtomicDirectory directory(path);

  std::map<std::string, Tensor> tensors;
  std::vector<JsonMember> checksums, values;
  for (const auto& [name, tensor] : state.tensors) {
    require(tensor.defined(), "checkpoint: tensor {} is undefined", json_quoted(name));
    const std::string written = percent_encoded(name);
    tensors.emplace(written, tensor);
    checksums.push_back({written, hex(xxh64(FileBytes(tensor).bytes()))});
  }
  for (const auto& [name, value] : state.values) {
    values.push_back({percent_encoded(name), percent_encoded(value)});
  }
  const std::string data_path = tensors_path(directory.temporary_path());
  write_safetensors(data_path, tensors, {}, between);
  const MappedFile file = map_file(data_path);

  Json content = Json::object();
  content.set("format", kFormat).set("step", step);
  content.set("values", Json::object(std::move(values)));
  content.set("tensors", Json::object(std::move(checksums)));
  content.set("file",
              Json::object().set("bytes", file.bytes).set("xxh64", hex(xxh64(file.content()))));
  write_file_atomically(values_path(directory.temporary_path()), sealed(content.to_text()));
  directory.commit();
  return path;
}

Checkpoint load_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw IoError(fmt::format(
        "cannot read {}: a checkpoint is a directory like RUN/checkpoints/step_100, this is none",
        path));
  }
  const MappedFile file = map_file(values_path(path));
  const Json content = unsealed(file.text(), values_path(path));
  const int64_t format = content.at("format").integer();
  require(format == kFormat, "{}: a checkpoint of format {}, this program reads {}", path, format,
          kFormat);
  Checkpoint result;
  result.step = content.at("step").integer();
  for (const JsonMember& member : content.at("values").members()) {
    result.state.values.emplace(percent_decoded(member.key), percent_decoded(member.value.text()));
  }
  result.state.tensors = verified_tensors(tensors_path(path), content);
  return result;
}

std::optional<std::string> latest_checkpoint(const std::string& run_dir) {
  int64_t highest = -1;
  std::error_code error;
  fs::directory_iterator entry(checkpoints_of(run_dir), error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return std::nullopt;
  }
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    highest = std::max(highest, step_of(entry->path().filename().string()));
  }
  if (error) {
    throw IoError(fmt::format("cannot read {}: {}", checkpoints_of(run_dir), error.message()));
  }
  if (highest < 0) return std::nullopt;
  return fmt::format("{}/step_{}", checkpoints_of(run_dir), highest);
}

}  // namespace faultline
