#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "io/json.h"
#include "io/safetensors.h"
#include "tests/io/scratch_directory.h"

namespace faultline {

// A copy of a folder that transformers wrote (tests/golden/make_hf_folder_golden.py), to be
// damaged.
class HfFolder {
 public:
  explicit HfFolder(const std::string& golden) {
    const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
    const std::filesystem::path from =
        std::filesystem::path(root != nullptr ? root : ".") / "tests/golden" / golden;
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
      std::filesystem::copy_file(from / name, scratch_ / name);
    }
    logits_ = read_safetensors((from / "logits_golden.safetensors").string()).tensors;
  }

  std::string path() const { return scratch_.path(); }
  std::string operator/(const std::string& name) const { return scratch_ / name; }
  void write(const std::string& name, std::string_view bytes) const { scratch_.write(name, bytes); }
  void remove(const std::string& name) const { std::filesystem::remove(scratch_ / name); }

  Json config() const { return Json::parse(content_of(scratch_ / "config.json"), "config.json"); }
  void set(const std::string& key, const Json& value) const {
    write("config.json", config().set(key, value).to_text());
  }

  std::map<std::string, Tensor> tensors() const {
    return read_safetensors(scratch_ / "model.safetensors").tensors;
  }
  void write_tensors(const std::map<std::string, Tensor>& tensors,
                     const std::string& name = "model.safetensors") const {
    write_safetensors(scratch_ / name, tensors);
  }
  void change(const std::function<void(std::map<std::string, Tensor>&)>& change) const {
    std::map<std::string, Tensor> all = tensors();
    change(all);
    write_tensors(all);
  }

  // What transformers computes in f64: tokens i32 [B, T] and logits [B, T, V].
  const Tensor& tokens() const { return logits_.at("tokens"); }
  const Tensor& logits() const { return logits_.at("logits"); }

 private:
  ScratchDirectory scratch_;
  std::map<std::string, Tensor> logits_;
};

}  // namespace faultline
