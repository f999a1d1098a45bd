#include "io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "io/checksum.h"
#include "io/file_bytes.h"
#include "io/percent.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

State small_state() {
  State state;
  state.tensors["model.weight"] = tensor<float>({1, 2, 3, 4}, {2, 2});
  state.tensors["adamw.step"] = tensor<int64_t>({7});
  state.tensors["model.mask"] = tensor<uint8_t>({1, 0, 1});
  state.set_integer("sampler.epoch", 3);
  state.set_real("lr", 0.1);
  return state;
}

void expect_equal(const State& a, const State& b) {
  EXPECT_EQ(a.values, b.values);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    const auto found = b.tensors.find(name);
    ASSERT_NE(found, b.tensors.end()) << name;
    EXPECT_EQ(tensor.dtype(), found->second.dtype());
    EXPECT_EQ(tensor.shape(), found->second.shape());
    const FileBytes x(tensor), y(found->second);
    EXPECT_TRUE(std::equal(x.bytes().begin(), x.bytes().end(), y.bytes().begin(), y.bytes().end()));
  }
}

TEST(Checkpoint, GivesBackWhatWasSaved) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 12, small_state());
  EXPECT_EQ(path, scratch / "checkpoints/step_12");
  EXPECT_THAT(scratch.names(),
              ElementsAre("checkpoints", "checkpoints/step_12", "checkpoints/step_12/state.json",
                          "checkpoints/step_12/state.safetensors"));
  const Checkpoint back = load_checkpoint(path);
  EXPECT_EQ(back.step, 12);
  expect_equal(back.state, small_state());
  expect_equal(load_checkpoint(save_checkpoint(scratch.path(), 0, State())).state, State());
}

RC_GTEST_PROP(Checkpoint, KeepsNamesAndValuesOfAnyBytes, ()) {
  State state;
  const auto bytes = rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  for (const auto& [name, value] :
       *rc::gen::container<std::map<std::string, std::string>>(bytes, bytes)) {
    state.values[name] = value;
    state.tensors[value] = tensor<float>({1.5f});
  }
  const ScratchDirectory scratch;
  expect_equal(load_checkpoint(save_checkpoint(scratch.path(), 1, state)).state, state);
}

TEST(Checkpoint, KeepsAwkwardNames) {
  State state;
  for (const char* name :
       {"__metadata__", "", "a/b", "..", "%41", "\xFF", "caf\xC3\xA9", "a\nb\"\\"}) {
    state.values[name] = name;
    state.tensors[name] = tensor<float>({1.5f});
  }
  const ScratchDirectory scratch;
  expect_equal(load_checkpoint(save_checkpoint(scratch.path(), 1, state)).state, state);
  EXPECT_EQ(percent_encoded("model.h.0.weight"), "model.h.0.weight");
}

// What is not finite, and the sign of zero, are bits like others.
TEST(Checkpoint, KeepsEveryBitOfAFloat) {
  const float inf = std::numeric_limits<float>::infinity();
  State state;
  state.tensors["x"] =
      tensor<float>({-0.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1e-45f});
  const ScratchDirectory scratch;
  expect_equal(load_checkpoint(save_checkpoint(scratch.path(), 1, state)).state, state);
}

// Flips one bit of a file in place.
void flip(const std::string& path, size_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const int before = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(before ^ (1 << bit)));
  ASSERT_TRUE(static_cast<bool>(file.flush()));
}

TEST(Checkpoint, EveryFlippedBitIsFound) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  for (const char* name : {"state.json", "state.safetensors"}) {
    const std::string file = path + "/" + name;
    const size_t bytes = content_of(file).size();
    for (size_t byte = 0; byte < bytes; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        flip(file, byte, bit);
        const std::string text = error_of<InvalidArgument>([&] { load_checkpoint(path); });
        EXPECT_THAT(text, HasSubstr(std::string(name) + ": damaged")) << byte << "." << bit;
        flip(file, byte, bit);
      }
    }
  }
  expect_equal(load_checkpoint(path).state, small_state());
}

TEST(Checkpoint, NamesTheDamagedTensor) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  const std::string file = "checkpoints/step_5/state.safetensors";
  const std::string good = content_of(scratch / file);
  // Behind the header: the step (8 bytes), the weight (16), the mask (3).
  const std::pair<size_t, const char*> places[] = {
      {27, "tensor \"adamw.step\""}, {19, "tensor \"model.weight\""}, {1, "tensor \"model.mask\""}};
  for (const auto& [from_end, name] : places) {
    std::string bad = good;
    bad[bad.size() - from_end] ^= 1;
    scratch.write(file, bad);
    EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(path); }), HasSubstr(name));
  }
  std::string bad = good;
  bad[8] ^= 1;
  scratch.write(file, bad);
  EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(path); }), HasSubstr("its header"));
}

TEST(Checkpoint, EveryTruncationIsFound) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  for (const char* name : {"state.json", "state.safetensors"}) {
    const std::string file = std::string("checkpoints/step_5/") + name;
    const std::string good = content_of(scratch / file);
    for (size_t length = 0; length < good.size(); ++length) {
      scratch.write(file, good.substr(0, length));
      EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(path); }), HasSubstr("damaged"));
    }
    scratch.write(file, good + "x");
    EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(path); }), HasSubstr("damaged"));
    scratch.write(file, good);
  }
}

TEST(Checkpoint, NamesWhatIsMissing) {
  const ScratchDirectory scratch;
  EXPECT_THAT(error_of<IoError>([&] { load_checkpoint(scratch / "nowhere"); }),
              HasSubstr("nowhere: a checkpoint is a directory"));
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  std::filesystem::remove(path + "/state.safetensors");
  EXPECT_THAT(error_of<IoError>([&] { load_checkpoint(path); }),
              HasSubstr("state.safetensors: No such file"));
  std::filesystem::remove(path + "/state.json");
  EXPECT_THAT(error_of<IoError>([&] { load_checkpoint(path); }),
              HasSubstr("state.json: No such file"));
}

TEST(Checkpoint, OfAnotherStepsFileIsRefused) {
  const ScratchDirectory scratch;
  State other = small_state();
  other.tensors["model.weight"] = tensor<float>({1, 2, 3, 5}, {2, 2});
  const std::string one = save_checkpoint(scratch.path(), 1, small_state());
  const std::string two = save_checkpoint(scratch.path(), 2, other);
  scratch.write("checkpoints/step_1/state.safetensors", content_of(two + "/state.safetensors"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(one); }), HasSubstr("model.weight"));
}

TEST(Checkpoint, SavedAgainReplacesTheOldOne) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  const Checkpoint before = load_checkpoint(path);
  State changed = small_state();
  changed.tensors["model.weight"] = tensor<float>({9});
  changed.values["new"] = "value";
  EXPECT_EQ(save_checkpoint(scratch.path(), 5, changed), path);
  expect_equal(load_checkpoint(path).state, changed);
  expect_equal(before.state, small_state());  // still mapped
  // A state that is a view of the very file that it replaces.
  save_checkpoint(scratch.path(), 5, load_checkpoint(path).state);
  expect_equal(load_checkpoint(path).state, changed);
  EXPECT_EQ(scratch.names().size(), 4u);
}

TEST(Checkpoint, OnAFullDiskLeavesTheOldOneAndNothingElse) {
  const ScratchDirectory scratch;
  const std::string path = save_checkpoint(scratch.path(), 5, small_state());
  State large = small_state();
  large.tensors["large"] = empty({100'000}, DType::u8);
  {
    const FullDisk full(4096);
    EXPECT_THAT(error_of<IoError>([&] { save_checkpoint(scratch.path(), 5, large); }),
                HasSubstr("File too large"));
    EXPECT_THROW(save_checkpoint(scratch.path(), 6, large), IoError);
  }
  expect_equal(load_checkpoint(path).state, small_state());
  EXPECT_EQ(scratch.names().size(), 4u);
}

TEST(Checkpoint, NamesAPathThatCannotBeWritten) {
  EXPECT_THAT(error_of<IoError>([] { save_checkpoint("/proc/nothing/run", 1, small_state()); }),
              HasSubstr("/proc/nothing/run/checkpoints/step_1"));
  EXPECT_THROW(save_checkpoint("/tmp", -1, State()), InvalidArgument);
}

TEST(LatestCheckpoint, IsTheOneOfTheHighestStep) {
  const ScratchDirectory scratch;
  EXPECT_EQ(latest_checkpoint(scratch.path()), std::nullopt);
  EXPECT_EQ(latest_checkpoint(scratch / "nowhere"), std::nullopt);
  for (const int64_t step : {9, 10, 0}) save_checkpoint(scratch.path(), step, State());
  for (const char* other : {".step_90.partial-1-0", "step_11.partial", "step_", "step_012",
                            "step_-3", "step_99999999999999999999", "step_ 12", "other"}) {
    std::filesystem::create_directory(scratch / (std::string("checkpoints/") + other));
  }
  EXPECT_EQ(latest_checkpoint(scratch.path()), scratch / "checkpoints/step_10");
}

TEST(LatestCheckpoint, IsNotPassedOverWhenItIsDamaged) {
  const ScratchDirectory scratch;
  save_checkpoint(scratch.path(), 1, small_state());
  save_checkpoint(scratch.path(), 2, small_state());
  scratch.write("checkpoints/step_2/state.json", "{");
  const auto latest = latest_checkpoint(scratch.path());
  ASSERT_EQ(latest, scratch / "checkpoints/step_2");
  EXPECT_THAT(error_of<InvalidArgument>([&] { load_checkpoint(*latest); }),
              HasSubstr("step_2/state.json: damaged"));
}

TEST(Checksum, IsXxh64) {
  // From the xxHash specification: the empty input with seed 0.
  EXPECT_EQ(hex(xxh64(std::string_view())), "ef46db3751d8e999");
}

}  // namespace
}  // namespace faultline
