#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "core/error.h"
#include "io/json.h"

namespace faultline {
namespace {

using Library = nlohmann::json;

constexpr size_t kMaxDepth = 64;

// Builds a Json from the library's parser, which keeps its own stack and so cannot overflow ours;
// the depth is bounded for those who walk the result.
class Builder {
 public:
  Builder(const std::string& source, size_t most_values)
      : source_(source), most_values_(most_values) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) {
    // Beyond int64 it is a number, but not one that can be asked for as an integer.
    if (value > static_cast<uint64_t>(INT64_MAX)) return add(Json(static_cast<double>(value)));
    return add(Json(value));
  }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(Library::binary_t&) { return false; }

  bool start_object(size_t) { return open(); }
  bool start_array(size_t) { return open(); }
  bool end_object() { return add(Json::object(close().members)); }
  bool end_array() { return add(Json::array(close().items)); }
  bool key(std::string& value) {
    require(open_.back().keys.insert(value).second, "{}: the key {} is there twice in one object",
            source_, json_quoted(value));
    open_.back().key = std::move(value);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    // "[json.exception...] what went wrong", on one line of bounded length.
    const std::string_view text = error.what();
    const size_t head = text.find("] ");
    std::string why(text.substr(head == std::string_view::npos ? 0 : head + 2, 120));
    std::replace_if(
        why.begin(), why.end(), [](unsigned char c) { return c < ' '; }, ' ');
    fail("{}: this is not JSON, at byte {}: {}", source_, position, why);
  }

  Json take() { return std::move(root_); }

 private:
  // An array or object that is not closed yet.
  struct Level {
    std::vector<Json> items;
    std::vector<JsonMember> members;
    std::optional<std::string> key;  // of the member whose value comes next; none in an array
    std::unordered_set<std::string> keys;
  };

  bool open() {
    require(open_.size() < kMaxDepth, "{}: nested deeper than {} levels", source_, kMaxDepth);
    open_.emplace_back();
    return true;
  }
  Level close() {
    Level done = std::move(open_.back());
    open_.pop_back();
    return done;
  }
  bool add(Json value) {
    require(++values_ <= most_values_, "{}: holds more than {} values", source_, most_values_);
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Level& level = open_.back(); level.key) {
      level.members.push_back({*std::exchange(level.key, std::nullopt), std::move(value)});
    } else {
      level.items.push_back(std::move(value));
    }
    return true;
  }

  const std::string& source_;
  const size_t most_values_;
  size_t values_ = 0;
  std::vector<Level> open_;
  Json root_;
};

}  // namespace

Json Json::parse(std::string_view text, const std::string& source, size_t most_values) {
  Builder builder(source, most_values);
  Library::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string json_quoted(std::string_view text) {
  return Library(text).dump(-1, ' ', false, Library::error_handler_t::replace);
}

}  // namespace faultline
