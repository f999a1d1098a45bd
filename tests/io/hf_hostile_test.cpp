#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "autograd/functional.h"
#include "core/error.h"
#include "io/hf_model.h"
#include "tests/io/hf_folder.h"

namespace faultline {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, Tensor>;

struct Bad {
  const char* name;
  const char* golden;
  std::function<void(const HfFolder&)> damage;
  std::vector<std::string> said;  // parts of the error
};

// A change of the weights.
std::function<void(const HfFolder&)> weights(const std::function<void(Tensors&)>& change) {
  return [change](const HfFolder& folder) { folder.change(change); };
}
// A change of one key of the configuration.
std::function<void(const HfFolder&)> key(const char* name, const Json& value) {
  return [name, value](const HfFolder& folder) { folder.set(name, value); };
}
// A file in place of the weights.
std::function<void(const HfFolder&)> file(const std::string& bytes) {
  return [bytes](const HfFolder& folder) { folder.write("model.safetensors", bytes); };
}

const char kFcWeight[] = "transformer.h.1.mlp.c_fc.weight";

std::vector<Bad> contradictions() {
  return {
      {"missing",
       "hf_gpt2",
       weights([](Tensors& t) { t.erase(kFcWeight); }),
       {kFcWeight, "there is no tensor", "[16, 64]", "n_layer 2"}},
      {"missing bias",
       "hf_gpt2",
       weights([](Tensors& t) { t.erase("transformer.ln_f.bias"); }),
       {"\"transformer.ln_f.bias\" [16]"}},
      {"extra",
       "hf_gpt2",
       weights([](Tensors& t) { t["transformer.h.1.extra"] = zeros({2}, DType::f32); }),
       {"model.safetensors", "\"transformer.h.1.extra\" [2] has no place"}},
      {"both prefixes",
       "hf_gpt2",
       weights([](Tensors& t) { t["wte.weight"] = t["transformer.wte.weight"]; }),
       {"\"wte.weight\" [48, 16] has no place"}},
      {"wrong shape",
       "hf_gpt2",
       weights([](Tensors& t) {
         t["transformer.wpe.weight"] = zeros({31, 16}, DType::f32);
       }),
       {"model.safetensors", "\"transformer.wpe.weight\" is [31, 16]", "makes it [32, 16]"}},
      {"a matrix the other way round",
       "hf_gpt2",
       weights([](Tensors& t) { t[kFcWeight] = contiguous(transpose(t[kFcWeight], 0, 1)); }),
       {kFcWeight, "is [64, 16]", "makes it [16, 64]"}},
      {"wrong rank",
       "hf_gpt2",
       weights([](Tensors& t) {
         t["transformer.ln_f.bias"] = zeros({16, 1}, DType::f32);
       }),
       {"is [16, 1]"}},
      {"integers",
       "hf_gpt2",
       weights([](Tensors& t) { t["transformer.ln_f.bias"] = zeros({16}, DType::i64); }),
       {"\"transformer.ln_f.bias\" is i64", "F32, F16 or BF16"}},
      {"double precision",
       "hf_llama",
       weights(
           [](Tensors& t) { t["model.norm.weight"] = cast(t["model.norm.weight"], DType::f64); }),
       {"\"model.norm.weight\" is f64"}},
      {"another dtype than the configuration says",
       "hf_gpt2",
       key("dtype", "float16"),
       {"config.json says that the weights are F16", "F32"}},
      {"the old key of the dtype",
       "hf_gpt2",
       [](const HfFolder& folder) {
         folder.set("dtype", Json());
         folder.set("torch_dtype", "bfloat16");
       },
       {"the weights are BF16"}},
      {"a head that is not the embedding",
       "hf_gpt2",
       weights([](Tensors& t) {
         t["lm_head.weight"] = zeros({48, 16}, DType::f32);
       }),
       {"\"lm_head.weight\" differs from wte.weight", "tie_word_embeddings"}},
      {"a head of another shape",
       "hf_gpt2",
       weights([](Tensors& t) { t["lm_head.weight"] = zeros({16}, DType::f32); }),
       {"\"lm_head.weight\" differs"}},
      {"untied without a head",
       "hf_llama",
       weights([](Tensors& t) { t.erase("lm_head.weight"); }),
       {"there is no tensor \"lm_head.weight\" [48, 16]"}},
      {"tied with a head of its own",
       "hf_llama",
       key("tie_word_embeddings", true),
       {"\"lm_head.weight\" differs from embed_tokens.weight"}},
      {"biases that the configuration denies",
       "hf_llama",
       weights(
           [](Tensors& t) { t["model.layers.0.self_attn.q_proj.bias"] = zeros({32}, DType::f32); }),
       {"q_proj.bias\" [32] has no place"}},
      {"biases that are not there",
       "hf_llama",
       key("mlp_bias", true),
       {"there is no tensor \"model.layers.0.mlp.gate_proj.bias\" [40]"}},
      {"more layers than tensors",
       "hf_gpt2",
       key("n_layer", 3),
       {"\"transformer.h.2.ln_1.weight\"", "n_layer 3"}},
      {"fewer layers than tensors",
       "hf_gpt2",
       key("n_layer", 1),
       {"\"transformer.h.1.", "has no place", "n_layer 1"}},
      {"a thousand layers", "hf_gpt2", key("n_layer", 1000), {"\"transformer.h.2.ln_1.weight\""}},
      {"heads of another size",
       "hf_llama",
       key("head_dim", 4),
       {"q_proj.weight\" is [32, 16]", "makes it [16, 16]"}},
      {"a wider model", "hf_llama", key("hidden_size", 24), {"embed_tokens.weight\" is [48, 16]"}},
      {"a larger vocabulary", "hf_gpt2", key("vocab_size", 50257), {"makes it [50257, 16]"}},
  };
}

std::vector<Bad> wrong_files() {
  std::string pickle(
      "\x80\x02"
      "cos\nsystem\nX\x04\0\0\0echo\x85R.",
      25);
  std::string zip("PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0archive/data.pkl", 30);
  return {
      {"no weights",
       "hf_gpt2",
       [](const HfFolder& f) { f.remove("model.safetensors"); },
       {"there is no model.safetensors and no model.safetensors.index.json"}},
      {"no configuration",
       "hf_gpt2",
       [](const HfFolder& f) { f.remove("config.json"); },
       {"there is no config.json"}},
      {"torn configuration",
       "hf_gpt2",
       [](const HfFolder& f) { f.write("config.json", "{\"n_layer\": "); },
       {"not JSON"}},
      {"a key twice",
       "hf_gpt2",
       [](const HfFolder& f) {
         f.write("config.json", R"({"model_type":"gpt2","n_layer":2,"n_layer":2})");
       },
       {"n_layer", "twice"}},
      {"deep configuration",
       "hf_gpt2",
       [](const HfFolder& f) { f.write("config.json", std::string(100'000, '[')); },
       {"nested deeper"}},
      {"a pickle", "hf_gpt2", file(pickle), {"model.safetensors: this is a pickle", "runs code"}},
      {"a zip of pickles", "hf_gpt2", file(zip), {"this is a pickle"}},
      {"only a pickle",
       "hf_gpt2",
       [](const HfFolder& f) {
         std::filesystem::rename(f / "model.safetensors", f / "pytorch_model.bin");
       },
       {"holds pytorch_model.bin and no model.safetensors", "runs code"}},
      {"header bomb",
       "hf_gpt2",
       file(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)),
       {"at most 100000000"}},
      {"a directory",
       "hf_gpt2",
       [](const HfFolder& f) {
         f.remove("model.safetensors");
         std::filesystem::create_directory(f / "model.safetensors");
       },
       {"model.safetensors"}},
  };
}

void expect_refused(const Bad& bad) {
  SCOPED_TRACE(bad.name);
  const HfFolder folder(bad.golden);
  bad.damage(folder);
  try {
    load_hf_model(folder.path());
    ADD_FAILURE() << "was read";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_THAT(text, HasSubstr(folder.path()));
    for (const std::string& said : bad.said) EXPECT_THAT(text, HasSubstr(said));
  }
}

TEST(HfHostile, TheUntouchedFoldersAreRead) {
  EXPECT_NO_THROW(load_hf_model(HfFolder("hf_gpt2").path()));
  EXPECT_NO_THROW(load_hf_model(HfFolder("hf_llama").path()));
}

TEST(HfHostile, AConfigurationThatContradictsItsTensorsIsRefusedByTensor) {
  for (const Bad& bad : contradictions()) expect_refused(bad);
}

TEST(HfHostile, WrongFilesAreRefusedByName) {
  for (const Bad& bad : wrong_files()) expect_refused(bad);
}

// The golden GPT-2 in two shards.
class Shards {
 public:
  Shards() {
    Tensors first = folder_.tensors();
    Tensors second;
    second.insert(first.extract(kFcWeight));
    folder_.remove("model.safetensors");
    folder_.write_tensors(first, "a.safetensors");
    folder_.write_tensors(second, "b.safetensors");
    for (const auto& [name, tensor] : first) map_.set(name, "a.safetensors");
    map_.set(kFcWeight, "b.safetensors");
    write_index();
  }

  const HfFolder& folder() const { return folder_; }
  void list(const std::string& tensor, const Json& file) {
    map_.set(tensor, file);
    write_index();
  }
  void index(const std::string& text) const { folder_.write("model.safetensors.index.json", text); }
  std::string refusal() const {
    std::string text;
    try {
      load_hf_model(folder_.path());
      ADD_FAILURE() << "was read";
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  }

 private:
  void write_index() const { index(Json::object().set("weight_map", map_).to_text()); }

  HfFolder folder_{"hf_gpt2"};
  Json map_ = Json::object();
};

TEST(HfShards, AreReadTogether) { EXPECT_NO_THROW(load_hf_model(Shards().folder().path())); }

TEST(HfShards, AFileNameThatLeavesTheFolderIsRefused) {
  for (const char* name : {"../b.safetensors", "/etc/b.safetensors", "sub/b.safetensors", "", ".",
                           "..", ".b.safetensors", "a\\b.safetensors", "b.bin", "b"}) {
    SCOPED_TRACE(name);
    Shards shards;
    shards.list(kFcWeight, name);
    EXPECT_THAT(shards.refusal(), HasSubstr("should be the name of a .safetensors file"));
  }
  Shards shards;
  shards.list(kFcWeight, 7);
  EXPECT_THAT(shards.refusal(), HasSubstr("is in 7"));
}

TEST(HfShards, ALinkThatLeavesTheFolderIsRefused) {
  const Shards shards;
  const ScratchDirectory elsewhere;
  const std::string target = elsewhere / "b.safetensors";
  std::filesystem::rename(shards.folder() / "b.safetensors", target);
  std::filesystem::create_symlink(target, shards.folder() / "b.safetensors");
  EXPECT_THAT(shards.refusal(), HasSubstr("b.safetensors: is a link that leaves the folder"));
}

TEST(HfShards, ALinkInsideTheFolderIsFollowed) {
  const Shards shards;
  const std::string here = shards.folder() / "b.safetensors";
  std::filesystem::rename(here, shards.folder() / "c.safetensors");
  std::filesystem::create_symlink("c.safetensors", here);
  EXPECT_NO_THROW(load_hf_model(shards.folder().path()));
}

// MODEL/snapshots/REVISION holds links into MODEL/blobs.
TEST(HfShards, TheCacheOfTheHubIsRead) {
  const Shards shards;
  const ScratchDirectory cache;
  std::filesystem::create_directories(cache / "blobs");
  std::filesystem::create_directories(cache / "snapshots/1");
  for (const auto& entry : std::filesystem::directory_iterator(shards.folder().path())) {
    const std::string name = entry.path().filename().string();
    std::filesystem::copy_file(entry.path(), cache / ("blobs/" + name));
    std::filesystem::create_symlink("../../blobs/" + name, cache / ("snapshots/1/" + name));
  }
  EXPECT_NO_THROW(load_hf_model(cache / "snapshots/1"));
}

TEST(HfShards, AMissingShardIsNamed) {
  const Shards shards;
  shards.folder().remove("b.safetensors");
  EXPECT_THAT(shards.refusal(), HasSubstr("lists the file \"b.safetensors\", which is not there"));
}

TEST(HfShards, ATensorThatIsNotWhereTheIndexSaysIsNamed) {
  Shards shards;
  shards.list("transformer.ln_f.bias", "b.safetensors");
  EXPECT_THAT(shards.refusal(),
              HasSubstr("a.safetensors: holds the tensor \"transformer.ln_f.bias\""));
  Shards absent;
  absent.list("transformer.h.9.bias", "b.safetensors");
  EXPECT_THAT(absent.refusal(), HasSubstr("b.safetensors: has no tensor \"transformer.h.9.bias\""));
}

TEST(HfShards, ATensorThatTheIndexDoesNotListIsNamed) {
  const Shards shards;
  shards.folder().write_tensors(
      {{"stray", zeros({1}, DType::f32)}, {kFcWeight, zeros({16, 64}, DType::f32)}},
      "b.safetensors");
  EXPECT_THAT(shards.refusal(), HasSubstr("b.safetensors: holds the tensor \"stray\""));
}

TEST(HfShards, ATensorInTwoShardsIsNamed) {
  const Shards shards;
  shards.folder().write_tensors({{"transformer.ln_f.bias", zeros({16}, DType::f32)},
                                 {kFcWeight, zeros({16, 64}, DType::f32)}},
                                "b.safetensors");
  EXPECT_THAT(shards.refusal(),
              HasSubstr("b.safetensors: holds the tensor \"transformer.ln_f.bias\""));
}

TEST(HfShards, OneFileBesideAnIndexIsRefused) {
  const Shards shards;
  shards.folder().write_tensors({{"stray", zeros({1}, DType::f32)}});
  EXPECT_THAT(shards.refusal(), HasSubstr("remove the one that is not the model"));
}

TEST(HfShards, AnIndexOfAnotherFormIsRefused) {
  const Shards shards;
  const std::pair<const char*, const char*> indices[] = {
      {"[]", "should be a JSON object"},
      {"{}", "\"weight_map\" should be an object"},
      {R"({"weight_map":[]})", "\"weight_map\" should be an object"},
      {R"({"weight_map":{}})", "\"weight_map\" is empty"},
      {R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})", "twice"},
      {R"({"weight_map")", "not JSON"}};
  for (const auto& [text, said] : indices) {
    SCOPED_TRACE(text);
    shards.index(text);
    const std::string error = shards.refusal();
    EXPECT_THAT(error, HasSubstr("model.safetensors.index.json"));
    EXPECT_THAT(error, HasSubstr(said));
  }
}

TEST(HfShards, APickleUnderTheNameOfAShardIsNotOpened) {
  const Shards shards;
  shards.folder().write("b.safetensors", "PK\x03\x04 a zip");
  EXPECT_THAT(shards.refusal(), HasSubstr("b.safetensors: this is a pickle"));
}

// A model that no machine holds is refused from its configuration, although its file says the same.
TEST(HfHostile, AModelBeyondTheMemoryIsRefusedBeforeAnythingIsAllocated) {
  const HfFolder folder("hf_gpt2");
  folder.set("n_embd", 1 << 20);
  folder.set("n_layer", 1 << 20);
  EXPECT_THAT(error_of<InvalidArgument>([&] { load_hf_model(folder.path()); }),
              HasSubstr("this machine has"));
}

}  // namespace
}  // namespace faultline
