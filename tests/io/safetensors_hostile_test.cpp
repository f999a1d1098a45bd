#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "core/error.h"
#include "io/safetensors.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

std::string packed(const std::string& header, const std::string& data, uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}
std::string packed(const std::string& header, const std::string& data = std::string(16, '\0')) {
  return packed(header, data, header.size());
}

// Two tensors of eight bytes each; `first` and `second` are the objects that describe them.
const char kFirst[] = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
const char kSecond[] = R"({"dtype":"F64","shape":[1],"data_offsets":[8,16]})";
std::string two(const std::string& first, const std::string& second = kSecond) {
  return packed(R"({"a":)" + first + R"(,"b":)" + second + "}");
}
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string many_zeros(size_t count) {
  std::string text(2 * count - 1, '0');
  for (size_t i = 1; i < text.size(); i += 2) text[i] = ',';
  return text;
}

struct Hostile {
  std::string name;
  std::string file;
  std::string said;  // part of the error
};

std::vector<Hostile> hostile_files() {
  const std::string good = two(kFirst);
  return {
      {"empty", "", "this one has 0 bytes"},
      {"seven bytes", good.substr(0, 7), "this one has 7 bytes"},
      {"only a length", good.substr(0, 8), "only 0 follow"},
      {"cut in the header", good.substr(0, 40), "cut short"},
      {"truncated", good.substr(0, good.size() - 7), "only 9 are there"},
      {"trailing bytes", good + "xxxx", "4 bytes follow the last tensor"},
      {"header length 2^62", packed("{}", "", uint64_t{1} << 62), "at most 100000000"},
      {"header length 2^64 - 1", packed("{}", "", UINT64_MAX), "at most 100000000"},
      {"header length above the limit", packed("{}", "", 100'000'001), "at most 100000000"},
      {"header length past the end", packed("{}", "", 99'999'999), "only 2 follow"},
      {"header of length 0", packed("", "x"), "begins with '{'"},
      {"a pickle",
       std::string("\x80\x02"
                   "cos\nsystem\nX\x04\0\0\0echo\x85R.",
                   25),
       "this is a pickle"},
      {"a pickle of protocol 0", "(dp0\nVa\np1\nL1L\ns.", "this is a pickle"},
      {"a zip of pickles", "PK\x03\x04" + std::string(60, '\0'), "this is a pickle"},
      {"something else", "GGUF\x03" + std::string(60, 'x'), "this is no safetensors file"},
      {"header not JSON", packed("{not json}"), "not JSON"},
      {"header torn", packed("{\"a\":{\"dtype\":"), "not JSON"},
      {"header a list", packed("[1,2]"), "begins with '{'"},
      {"header begins with a blank", packed(" {}", ""), "begins with '{'"},
      {"header with something behind", packed("{} x", ""), "not JSON"},
      {"header a string", packed("\"a\""), "begins with '{'"},
      {"header of brackets", packed(std::string(100'000, '[')), "begins with '{'"},
      {"header deep", packed("{\"a\":" + std::string(100'000, '[')), "nested deeper"},
      // 2,000,001 values in 4 MB; what they take is refused before it is taken.
      {"header of zeros", packed("{\"__metadata__\":[" + many_zeros(2'000'000) + "]}"),
       "header: holds more than 2000000 values"},
      {"header deep in objects",
       [] {
         std::string text;
         for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
         return packed(text);
       }(),
       "nested deeper"},
      {"header not UTF-8", packed("{\"\xC0\xAF\":1}"), "not JSON"},
      {"a name twice", packed(std::string(R"({"a":)") + kFirst + R"(,"a":)" + kSecond + "}"),
       "twice"},
      {"a field twice", two(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       "twice"},
      {"unknown dtype", two(entry("\"X99\"", "[2]", "[0,8]")), "\"a\": has the dtype \"X99\""},
      {"unsupported dtype", two(entry("\"F8_E4M3\"", "[8]", "[0,8]")), "we read F64, F32"},
      {"lying dtype", two(entry("\"F64\"", "[2]", "[0,8]")),
       "takes 16 bytes, data_offsets give it 8"},
      {"dtype a number", two(entry("1", "[2]", "[0,8]")), "dtype should be a string"},
      {"no dtype", two(R"({"shape":[2],"data_offsets":[0,8]})"), "has no dtype"},
      {"no shape", two(R"({"dtype":"F32","data_offsets":[0,8]})"), "has no shape"},
      {"no offsets", two(R"({"dtype":"F32","shape":[2]})"), "has no data_offsets"},
      {"a tensor a number", two("7"), "should be an object, it is an integer"},
      {"negative offset", two(entry("\"F32\"", "[2]", "[-8,8]")), "it holds -8"},
      {"end before start", two(entry("\"F32\"", "[2]", "[8,0]")),
       "ends at byte 0 before it begins"},
      {"past the end", two(entry("\"F32\"", "[2]", "[0,1099511627776]")), "takes 8 bytes"},
      {"past the end, and large", two(kFirst, entry("\"F64\"", "[1000]", "[8,8008]")),
       "need 8008 bytes"},
      {"an offset beyond 2^63", two(entry("\"F32\"", "[2]", "[0,18446744073709551615]")),
       "from 0 to 2^63 - 1"},
      {"an offset beyond 2^64", two(entry("\"F32\"", "[2]", "[0,36893488147419103232]")),
       "from 0 to 2^63 - 1"},
      {"an offset with a point", two(entry("\"F32\"", "[2]", "[0,8.0]")), "it holds 8.0"},
      {"one offset", two(entry("\"F32\"", "[2]", "[0]")), "it has 1 items"},
      {"three offsets", two(entry("\"F32\"", "[2]", "[0,8,16]")), "it has 3 items"},
      {"offsets an object", two(entry("\"F32\"", "[2]", "{}")), "should be an array"},
      {"shape overflows", two(entry("\"F32\"", "[1099511627776,1099511627776]", "[0,8]")),
       "more than 2^63"},
      {"shape overflows to the right size", two(entry("\"F32\"", "[4611686018427387906]", "[0,8]")),
       "more than 2^63"},
      {"negative shape", two(entry("\"F32\"", "[-1,4]", "[0,8]")), "it holds -1"},
      {"two negative sizes", two(entry("\"F32\"", "[-1,-2]", "[0,8]")), "it holds -1"},
      {"wrong shape", two(entry("\"F32\"", "[3]", "[0,8]")), "takes 12 bytes"},
      {"shape a number", two(entry("\"F32\"", "2", "[0,8]")), "shape should be an array"},
      {"shape of strings", two(entry("\"F32\"", "[\"2\"]", "[0,8]")), "it holds \"2\""},
      {"seven dimensions", two(entry("\"F32\"", "[1,1,1,1,1,1,2]", "[0,8]")), "has 7 dimensions"},
      {"two tensors on the same bytes", two(kFirst, entry("\"F64\"", "[1]", "[0,8]")),
       "without gap or overlap"},
      {"overlap", two(kFirst, entry("\"F64\"", "[1]", "[4,12]")), "without gap or overlap"},
      {"a gap", packed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})"),
       "begins at byte 8"},
      {"a tensor is missing", packed(std::string(R"({"a":)") + kFirst + "}"), "8 bytes follow"},
      {"metadata a list", packed(R"({"__metadata__":[]})", ""), "__metadata__ should be an object"},
      {"metadata of numbers", packed(R"({"__metadata__":{"k":1}})", ""), "should be a string"},
      {"a bool of 2",
       packed(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02"),
       "BOOL byte 1"},
  };
}

TEST(HostileSafetensors, TheUntouchedFileIsRead) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read_safetensors(scratch.write("good", two(kFirst))).tensors.size(), 2u);
}

TEST(HostileSafetensors, EachIsRefusedInOneLineThatNamesTheFile) {
  const ScratchDirectory scratch;
  for (const Hostile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const std::string path = scratch.write("model.safetensors", hostile.file);
    const std::string text = error_of<InvalidArgument>([&] { read_safetensors(path); });
    EXPECT_THAT(text, HasSubstr("model.safetensors"));
    EXPECT_THAT(text, HasSubstr(hostile.said));
  }
}

TEST(HostileSafetensors, EveryPrefixIsRefused) {
  const ScratchDirectory scratch;
  const std::string good = two(kFirst);
  for (size_t length = 0; length < good.size(); ++length) {
    const std::string path = scratch.write("cut", good.substr(0, length));
    EXPECT_THROW(read_safetensors(path), InvalidArgument) << length;
  }
}

// Whatever is changed, the answer is tensors inside the file or an error of ours.
RC_GTEST_PROP(HostileSafetensors, RandomDamageIsReadOrRefused, ()) {
  std::string file = two(kFirst);
  const auto changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, file.size());
    file[at] = static_cast<char>(*rc::gen::inRange(0, 256));
  }
  const ScratchDirectory scratch;
  const std::string path = scratch.write("damaged", file);
  try {
    for (const auto& [name, tensor] : read_safetensors(path).tensors) {
      RC_ASSERT(tensor.to_vector<double>().size() == static_cast<size_t>(tensor.numel()));
    }
  } catch (const InvalidArgument& error) {
    RC_ASSERT(std::string(error.what()).find(path) == 0);
  }
}

TEST(HostileSafetensors, ThousandsOfTensorsAreReadInProportionalTime) {
  const ScratchDirectory scratch;
  std::map<std::string, Tensor> tensors;
  const Tensor one = tensor<float>({1});
  for (int i = 0; i < 20'000; ++i) tensors.emplace("layer." + std::to_string(i), one);
  write_safetensors(scratch / "many", tensors);
  EXPECT_EQ(read_safetensors(scratch / "many").tensors.size(), tensors.size());
}

}  // namespace
}  // namespace faultline
