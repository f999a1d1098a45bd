#include "io/json_fields.h"

#include <cmath>
#include <utility>

#include "core/error.h"

namespace faultline {
namespace {

// The value as errors show it, cut between two characters.
std::string shown(const Json& value) {
  std::string text = value.to_text();
  size_t length = 60;
  if (text.size() <= length) return text;
  while ((static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return text.substr(0, length) + "...";
}

bool switches_nothing_on(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::null:
      return true;
    case Json::Kind::boolean:
      return !value.boolean();
    case Json::Kind::integer:
    case Json::Kind::real:
      return value.real() == 0;
    case Json::Kind::text:
      return value.text().empty();
    case Json::Kind::array:
      return value.items().empty();
    case Json::Kind::object:
      return value.members().empty();
  }
  return false;
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string source)
    : object_(object), source_(std::move(source)) {
  require(object.is(Json::Kind::object), "{}: should be a JSON object, it is {}", source_,
          faultline::name(object.kind()));
}

const Json* JsonFields::find(std::string_view key) {
  known_.emplace(key);
  const Json* found = object_.find(key);
  return found == nullptr || found->is(Json::Kind::null) ? nullptr : found;
}

std::optional<int64_t> JsonFields::integer(std::string_view key, int64_t least, int64_t most) {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Json::Kind::integer) || found->integer() < least || found->integer() > most) {
    refuse(key, fmt::format("should be a whole number from {} to {}", least, most));
  }
  return found->integer();
}

std::optional<double> JsonFields::real(std::string_view key) {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  const bool number = found->is(Json::Kind::integer) || found->is(Json::Kind::real);
  if (!number || !std::isfinite(found->real())) refuse(key, "should be a number");
  return found->real();
}

bool JsonFields::flag(std::string_view key, bool fallback) {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is(Json::Kind::boolean)) refuse(key, "should be true or false");
  return found->boolean();
}

std::optional<std::string> JsonFields::text(std::string_view key) {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is(Json::Kind::text)) refuse(key, "should be a string");
  return found->text();
}

void JsonFields::require_flag(std::string_view key, bool only, std::string_view why) {
  if (flag(key, only) != only) refuse(key, why);
}

void JsonFields::require_off(std::string_view key, std::string_view why) {
  const Json* found = find(key);
  if (found != nullptr && !switches_nothing_on(*found)) refuse(key, why);
}

void JsonFields::ignore(std::span<const char* const> keys) {
  known_.insert(keys.begin(), keys.end());
}

void JsonFields::refuse_unknown() const {
  for (const JsonMember& member : object_.members()) {
    if (known_.contains(member.key) || member.key.starts_with('_')) continue;
    if (switches_nothing_on(member.value)) continue;
    refuse(member.key, "is not known here and may change what is computed; remove the key if not");
  }
}

void JsonFields::refuse(std::string_view key, std::string_view what) const {
  const Json* found = object_.find(key);
  fail("{}: {} is {}: {}", source_, json_quoted(key.substr(0, 80)),
       found == nullptr ? "absent" : shown(*found), what);
}

}  // namespace faultline
