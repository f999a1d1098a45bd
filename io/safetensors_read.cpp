#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_dtype.h"

namespace faultline {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
// A tensor has about nine values, so these are 200,000 tensors; the largest models that are public
// have half as many, in a hundred files. A header of 100 MB could ask for 50 million values, and
// gigabytes to hold them.
constexpr size_t kMaxHeaderValues = 2'000'000;

// How torch.save begins a file: a zip archive, or before 1.6 a bare pickle. The ninth byte of a
// safetensors file is the first of its header. The text protocols 0 and 1 begin with a mark, an
// empty or a global and end with a stop; no header is as long as these letters say.
bool is_pickle(std::string_view content) {
  if (content.size() < 2 || (content.size() > 8 && content[8] == '{')) return false;
  const bool zip = content.starts_with("PK\x03\x04");
  const bool binary = content[0] == '\x80' && content[1] >= 2 && content[1] <= 5;
  const bool textual =
      std::string_view("(c]}").find(content[0]) != std::string_view::npos && content.back() == '.';
  return zip || binary || textual;
}

// What the header says of one tensor.
struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
};

class Reader {
 public:
  Reader(const MappedFile& file, const std::string& path) : file_(file), path_(path) {}

  Safetensors read() {
    const Json header = parse_header();
    Safetensors result;
    std::vector<Entry> entries;
    for (const JsonMember& member : header.members()) {
      if (member.key == "__metadata__") {
        result.metadata = metadata(member.value);
      } else {
        entries.push_back(entry(member));
      }
    }
    check_layout(entries);
    for (const Entry& item : entries) result.tensors.emplace(item.name, tensor_of(item));
    return result;
  }

 private:
  Json parse_header() {
    require(
        !is_pickle(file_.text()),
        "{}: this is a pickle, not a safetensors file; a pickle runs code when it is opened, so "
        "it is not; save it as safetensors",
        path_);
    require(file_.bytes >= 8,
            "{}: a safetensors file begins with the 8 bytes of its header's length, "
            "this one has {} bytes",
            path_, file_.bytes);
    uint64_t length = 0;
    std::memcpy(&length, file_.memory.get(), sizeof length);
    require(length <= kMaxHeader,
            "{}: this is no safetensors file: its header would have {} bytes, at most {} are "
            "allowed",
            path_, length, kMaxHeader);
    require(
        length <= file_.bytes - 8,
        "{}: the safetensors header should have {} bytes, only {} follow; the file is cut short",
        path_, length, file_.bytes - 8);
    const std::string_view text = file_.text().substr(8, length);
    require(text.starts_with('{'), "{}: a safetensors header begins with '{{', this one does not",
            path_);
    data_begin_ = 8 + length;
    return Json::parse(text, path_ + ": header", kMaxHeaderValues);
  }

  std::map<std::string, std::string> metadata(const Json& value) {
    std::map<std::string, std::string> result;
    require(value.is(Json::Kind::object), "{}: __metadata__ should be an object, it is {}", path_,
            faultline::name(value.kind()));
    for (const JsonMember& member : value.members()) {
      require(member.value.is(Json::Kind::text), "{}: __metadata__ {} should be a string, it is {}",
              path_, json_quoted(member.key), faultline::name(member.value.kind()));
      result.emplace(member.key, member.value.text());
    }
    return result;
  }

  // Throws with the file and the tensor in front.
  template <class... Args>
  void expect(bool condition, const std::string& tensor, fmt::format_string<Args...> text,
              Args&&... args) {
    if (condition) return;
    fail("{}: tensor {}: {}", path_, json_quoted(tensor),
         fmt::format(text, std::forward<Args>(args)...));
  }

  const Json& field(const JsonMember& tensor, std::string_view key, Json::Kind kind) {
    expect(tensor.value.is(Json::Kind::object), tensor.key, "should be an object, it is {}",
           faultline::name(tensor.value.kind()));
    const Json* found = tensor.value.find(key);
    expect(found != nullptr, tensor.key, "has no {}", key);
    expect(found->is(kind), tensor.key, "{} should be {}, it is {}", key, faultline::name(kind),
           faultline::name(found->kind()));
    return *found;
  }

  // An array of integers that are not negative.
  std::vector<int64_t> sizes(const JsonMember& tensor, std::string_view key) {
    std::vector<int64_t> result;
    for (const Json& item : field(tensor, key, Json::Kind::array).items()) {
      const bool is_size = item.is(Json::Kind::integer) && item.integer() >= 0;
      expect(is_size, tensor.key, "{} should hold integers from 0 to 2^63 - 1, it holds {}", key,
             item.to_text().substr(0, 40));
      result.push_back(item.integer());
    }
    return result;
  }

  Entry entry(const JsonMember& tensor) {
    Entry result;
    result.name = tensor.key;
    const std::string& dtype = field(tensor, "dtype", Json::Kind::text).text();
    const auto known = dtype_of_safetensors(dtype);
    expect(known.has_value(), tensor.key, "has the dtype {}, we read {}",
           json_quoted(dtype.substr(0, 40)), kSafetensorsDTypes);
    result.dtype = *known;

    const std::vector<int64_t> shape = sizes(tensor, "shape");
    expect(shape.size() <= kMaxRank, tensor.key, "has {} dimensions, at most {} fit", shape.size(),
           kMaxRank);
    result.shape = Shape(shape);
    const std::vector<int64_t> offsets = sizes(tensor, "data_offsets");
    expect(offsets.size() == 2, tensor.key, "data_offsets should be [begin, end], it has {} items",
           offsets.size());
    result.begin = offsets[0];
    result.end = offsets[1];
    expect(result.begin <= result.end, tensor.key, "ends at byte {} before it begins at {}",
           result.end, result.begin);

    int64_t bytes = static_cast<int64_t>(size_of(result.dtype));
    bool overflow = false;
    for (const int64_t size : shape) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
    expect(!overflow, tensor.key, "shape {} has more than 2^63 bytes", to_string(result.shape));
    expect(bytes == result.end - result.begin, tensor.key,
           "{} {} takes {} bytes, data_offsets give it {}", dtype, to_string(result.shape), bytes,
           result.end - result.begin);
    return result;
  }

  // No holes, no overlaps, nothing behind the last.
  void check_layout(std::vector<Entry>& entries) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t end = 0;
    for (const Entry& item : entries) {
      expect(
          item.begin == end, item.name,
          "begins at byte {}, the tensors before it end at {}: tensors follow each other without "
          "gap or overlap",
          item.begin, end);
      end = item.end;
    }
    const auto there = static_cast<int64_t>(file_.bytes - data_begin_);
    require(end <= there, "{}: its tensors need {} bytes, only {} are there; the file is cut short",
            path_, end, there);
    require(end == there, "{}: {} bytes follow the last tensor, nothing should", path_,
            there - end);
  }

  Tensor tensor_of(const Entry& item) {
    const auto bytes = static_cast<size_t>(item.end - item.begin);
    std::byte* data = file_.memory.get() + data_begin_ + item.begin;
    if (item.dtype == DType::boolean) {
      const auto* bad =
          std::find_if(data, data + bytes, [](std::byte b) { return b > std::byte{1}; });
      expect(bad == data + bytes, item.name, "BOOL byte {} is neither 0 nor 1", bad - data);
    }
    if (reinterpret_cast<uintptr_t>(data) % size_of(item.dtype) == 0) {
      return Tensor::over(adopt(data, bytes, cpu_device(), file_.memory), item.dtype, item.shape);
    }
    auto copy = std::make_shared<std::vector<std::byte>>(data, data + bytes);
    std::byte* aligned = copy->data();
    return Tensor::over(adopt(aligned, bytes, cpu_device(), std::move(copy)), item.dtype,
                        item.shape);
  }

  const MappedFile& file_;
  const std::string& path_;
  size_t data_begin_ = 0;
};

}  // namespace

Safetensors read_safetensors(const MappedFile& file, const std::string& path) {
  return Reader(file, path).read();
}

Safetensors read_safetensors(const std::string& path) {
  return read_safetensors(map_file(path), path);
}

}  // namespace faultline
