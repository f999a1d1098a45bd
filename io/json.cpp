#include "io/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace faultline {

Json::Json() = default;
Json::Json(bool value) : value_(value) {}
Json::Json(Integer value) : value_(value.value) {}
Json::Json(Real value) : value_(value.value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string_view text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Json Json::array() { return array(std::vector<Json>()); }
Json Json::object() { return object(std::vector<JsonMember>()); }

Json Json::array(std::vector<Json> items) {
  Json result;
  result.value_ = std::move(items);
  return result;
}

Json Json::object(std::vector<JsonMember> members) {
  Json result;
  result.value_ = std::move(members);
  return result;
}

std::string_view name(Json::Kind kind) {
  constexpr std::array<std::string_view, 7> kNames = {
      "null", "true or false", "an integer", "a number", "a string", "an array", "an object"};
  return kNames[static_cast<size_t>(kind)];
}

void Json::refuse_integer() { fail("json: an integer above 2^63 - 1 was given; write it as text"); }

Json::Kind Json::kind() const { return static_cast<Kind>(value_.index()); }

namespace {
[[noreturn]] void mismatch(Json::Kind wanted, const Json& found) {
  std::string text = found.to_text();
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  fail("expected {}, found {}: {}", name(wanted), name(found.kind()), text);
}
}  // namespace

Json& Json::set(std::string key, Json value) {
  auto* members = std::get_if<std::vector<JsonMember>>(&value_);
  if (members == nullptr) mismatch(Kind::object, *this);
  const auto found = std::find_if(members->begin(), members->end(),
                                  [&](const JsonMember& m) { return m.key == key; });
  if (found != members->end()) {
    found->value = std::move(value);
  } else {
    members->push_back({std::move(key), std::move(value)});
  }
  return *this;
}

Json& Json::push(Json value) {
  auto* items = std::get_if<std::vector<Json>>(&value_);
  if (items == nullptr) mismatch(Kind::array, *this);
  items->push_back(std::move(value));
  return *this;
}

bool Json::boolean() const {
  if (const auto* value = std::get_if<bool>(&value_)) return *value;
  mismatch(Kind::boolean, *this);
}

int64_t Json::integer() const {
  if (const auto* value = std::get_if<int64_t>(&value_)) return *value;
  mismatch(Kind::integer, *this);
}

double Json::real() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::string>(&value_)) {
    if (*value == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (*value == "inf") return std::numeric_limits<double>::infinity();
    if (*value == "-inf") return -std::numeric_limits<double>::infinity();
  }
  mismatch(Kind::real, *this);
}

const std::string& Json::text() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  mismatch(Kind::text, *this);
}

const std::vector<Json>& Json::items() const {
  if (const auto* value = std::get_if<std::vector<Json>>(&value_)) return *value;
  mismatch(Kind::array, *this);
}

const std::vector<JsonMember>& Json::members() const {
  if (const auto* value = std::get_if<std::vector<JsonMember>>(&value_)) return *value;
  mismatch(Kind::object, *this);
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  require(found != nullptr, "there is no '{}'", key);
  return *found;
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

std::string json_number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string text(digits, end);
  // Read as a double again, the sign of -0 too.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void Json::write(std::string& out, int indent) const {
  const bool lines = indent >= 0;
  const int inner = lines ? indent + 2 : -1;
  const auto new_line = [&](int blanks) {
    if (lines) out.append("\n").append(static_cast<size_t>(blanks), ' ');
  };
  switch (kind()) {
    case Kind::null:
      out += "null";
      return;
    case Kind::boolean:
      out += boolean() ? "true" : "false";
      return;
    case Kind::integer:
      out += std::to_string(integer());
      return;
    case Kind::real:
      out += json_number(real());
      return;
    case Kind::text:
      out += json_quoted(text());
      return;
    case Kind::array: {
      out += '[';
      const char* comma = "";
      for (const Json& item : items()) {
        out += std::exchange(comma, ",");
        new_line(inner);
        item.write(out, inner);
      }
      if (!items().empty()) new_line(indent);
      out += ']';
      return;
    }
    case Kind::object: {
      out += '{';
      const char* comma = "";
      for (const JsonMember& member : members()) {
        out += std::exchange(comma, ",");
        new_line(inner);
        out += json_quoted(member.key);
        out += lines ? ": " : ":";
        member.value.write(out, inner);
      }
      if (!members().empty()) new_line(indent);
      out += '}';
      return;
    }
  }
}

std::string Json::to_text() const {
  std::string out;
  write(out, -1);
  return out;
}

std::string Json::to_indented_text() const {
  std::string out;
  write(out, 0);
  return out + "\n";
}

}  // namespace faultline
