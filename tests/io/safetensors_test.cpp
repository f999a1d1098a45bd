#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <complex>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "io/file_bytes.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const FileBytes file(tensor);
  return {file.bytes().begin(), file.bytes().end()};
}

// A tensor of random bits (0 and 1 for bool), so NaNs of every kind are among them.
Tensor random_tensor(DType dtype, const Shape& shape) {
  Tensor result = empty(shape, dtype);
  const auto bytes = static_cast<size_t>(result.numel()) * size_of(dtype);
  const auto highest = dtype == DType::boolean ? 2 : 256;
  const auto bits = *rc::gen::container<std::vector<int>>(bytes, rc::gen::inRange(0, highest));
  for (size_t i = 0; i < bytes; ++i) result.view().data[i] = static_cast<std::byte>(bits[i]);
  return result;
}

Tensor random_tensor() {
  const auto dtype = *rc::gen::element(DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32,
                                       DType::i64, DType::u8, DType::boolean);
  const auto sizes = *rc::gen::resize(
      4, rc::gen::container<std::vector<int64_t>>(rc::gen::element<int64_t>(0, 1, 2, 3, 5)));
  return random_tensor(dtype, Shape(std::span(sizes).first(std::min<size_t>(sizes.size(), 4))));
}

void expect_equal(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(bytes_of(a), bytes_of(b));
}

RC_GTEST_PROP(Safetensors, GiveBackEveryBit, ()) {
  const auto names = *rc::gen::container<std::set<std::string>>(
      rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)));
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : names) tensors.emplace(name, random_tensor());
  const std::map<std::string, std::string> metadata = {{"note", "caf\xC3\xA9 \"\n"}};
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", tensors, metadata);
  RC_ASSERT(scratch.names() == std::vector<std::string>{"a"});
  const Safetensors back = read_safetensors(scratch / "a");
  RC_ASSERT(back.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) expect_equal(back.tensors.at(name), tensor);
  RC_ASSERT(back.metadata.at("note") == metadata.at("note"));
  RC_ASSERT(back.metadata.at("format") == "pt");
}

RC_GTEST_PROP(Safetensors, HoldTheElementsOfAView, ()) {
  const Tensor whole = random_tensor(*rc::gen::element(DType::f32, DType::bf16, DType::u8), {4, 6});
  const Tensor part = whole.alias({3, 2}, {2, 7}, 1);  // strides that no slice has
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"part", part}});
  const Tensor back = read_safetensors(scratch / "a").tensors.at("part");
  RC_ASSERT(back.is_contiguous());
  const auto size = size_of(whole.dtype());
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      RC_ASSERT(std::memcmp(back.view().data + (i * 2 + j) * size,
                            whole.view().data + (1 + i * 2 + j * 7) * size, size) == 0);
    }
  }
}

// The whole file, byte for byte as the format's own writer lays it out.
TEST(Safetensors, AreLaidOutAsTheFormatSays) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"b", tensor<float>({1, 2})},
                                    {"a", tensor<float>({3}, Shape{})},
                                    {"z", tensor<int64_t>({4})},
                                    {"m", tensor<uint8_t>({5, 6, 7})},
                                    {"none", empty({0, 3}, DType::f64)}});
  const std::string file = content_of(scratch / "a");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  std::string header = file.substr(8, length);
  EXPECT_EQ(length % 8, 0u);
  header.erase(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"__metadata__":{"format":"pt"},)"
                    R"("z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                    R"("none":{"dtype":"F64","shape":[0,3],"data_offsets":[8,8]},)"
                    R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
                    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
                    R"("m":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})");
  EXPECT_EQ(file.size(), 8 + length + 23);
}

TEST(Safetensors, AreViewsOfTheMappedFileAndKeepIt) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"x", tensor<float>({1, 2, 3})}, {"y", tensor<float>({4})}});
  const std::string before = content_of(scratch / "a");
  Tensor x, y;
  {
    Safetensors file = read_safetensors(scratch / "a");
    x = file.tensors.at("x");
    y = file.tensors.at("y");
  }
  EXPECT_EQ(y.view().data, x.view().data + 12);
  EXPECT_NE(x.block().keep_alive, nullptr);
  x.mutable_data<float>()[0] = 9;
  EXPECT_EQ(content_of(scratch / "a"), before);
  std::filesystem::remove(scratch / "a");
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(9, 2, 3));
  EXPECT_THAT(y.to_vector<float>(), ElementsAre(4));
}

// Other writers may leave a header of any length and put u8 before f32.
TEST(Safetensors, MisalignedAreCopied) {
  const ScratchDirectory scratch;
  const float value = 1.5f;
  for (int padding = 0; padding < 8; ++padding) {
    std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})" +
                         std::string(padding, ' ');
    const uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), 8);
    file += header + "\x07";
    file.append(reinterpret_cast<const char*>(&value), 4);
    const Safetensors read = read_safetensors(scratch.write("a", file));
    const Tensor b = read.tensors.at("b");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.view().data) % 4, 0u);
    EXPECT_THAT(b.to_vector<float>(), ElementsAre(1.5f));
    EXPECT_THAT(read.tensors.at("a").to_vector<int32_t>(), ElementsAre(7));
  }
}

TEST(Safetensors, MayHoldNoTensor) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {});
  EXPECT_TRUE(read_safetensors(scratch / "a").tensors.empty());
  EXPECT_TRUE(read_safetensors(scratch.write("b", std::string("\x02\0\0\0\0\0\0\0{}", 10)))
                  .metadata.empty());
}

TEST(Safetensors, RefuseToWriteWhatCouldNotBeRead) {
  const ScratchDirectory scratch;
  const auto refused = [&](const std::string& name, const Tensor& value) {
    return error_of<InvalidArgument>([&] { write_safetensors(scratch / "a", {{name, value}}); });
  };
  const Tensor one = tensor<float>({1});
  EXPECT_THAT(refused("__metadata__", one), HasSubstr("__metadata__"));
  EXPECT_THAT(refused("bad\xFF", one), HasSubstr("is not UTF-8"));
  EXPECT_THAT(refused("x", Tensor()), HasSubstr("\"x\" is undefined"));
  EXPECT_THAT(refused("x", tensor<std::complex<double>>({{1, 2}})), HasSubstr("c128"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                write_safetensors(scratch / "a", {{"x", one}}, {{"k", "\xC0"}});
              }),
              HasSubstr("is not UTF-8"));
  EXPECT_THAT(scratch.names(), testing::IsEmpty());
}

TEST(Safetensors, LeaveNothingBehindOnAFullDisk) {
  const ScratchDirectory scratch;
  scratch.write("a", "what was there");
  {
    const FullDisk full(4096);
    EXPECT_THAT(error_of<IoError>([&] {
                  write_safetensors(scratch / "a", {{"x", empty({100'000}, DType::u8)}});
                }),
                HasSubstr("/a: File too large"));
  }
  EXPECT_THAT(scratch.names(), ElementsAre("a"));
  EXPECT_EQ(content_of(scratch / "a"), "what was there");
}

}  // namespace
}  // namespace faultline
