#include "data/json_field.h"

#include <algorithm>

namespace faultline {
namespace {

constexpr size_t kShown = 60;

}  // namespace

std::string shown(std::string_view text) {
  return text.size() <= kShown ? json_quoted(text) : json_quoted(text.substr(0, kShown)) + "...";
}

std::string shown_value(const Json& value) {
  if (value.is(Json::Kind::text)) return shown(value.text());
  if (value.is(Json::Kind::array) || value.is(Json::Kind::object)) {
    return std::string(name(value.kind()));
  }
  return value.to_text();
}

void JsonField::expect_kind(Json::Kind kind) const {
  if (is(kind)) return;
  refuse("expected {}, found {}", name(kind), shown_value(*value_));
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  expect_kind(Json::Kind::object);
  const Json* member = value_->find(key);
  if (member == nullptr || member->is(Json::Kind::null)) return std::nullopt;
  return JsonField(*member, file_,
                   key_.empty() ? std::string(key) : fmt::format("{}.{}", key_, key));
}

JsonField JsonField::at(std::string_view key) const {
  const std::optional<JsonField> member = find(key);
  expect(member.has_value(), "the key {} is missing", shown(key));
  return *member;
}

std::vector<JsonField> JsonField::items() const {
  expect_kind(Json::Kind::array);
  std::vector<JsonField> fields;
  for (const Json& item : value_->items()) {
    fields.push_back(JsonField(item, file_, fmt::format("{}[{}]", key_, fields.size())));
  }
  return fields;
}

bool JsonField::boolean() const {
  expect_kind(Json::Kind::boolean);
  return value_->boolean();
}

const std::string& JsonField::text() const {
  expect_kind(Json::Kind::text);
  return value_->text();
}

int64_t JsonField::integer(int64_t lowest, int64_t highest) const {
  expect_kind(Json::Kind::integer);
  const int64_t value = value_->integer();
  expect(value >= lowest && value <= highest, "expected {} to {}, found {}", lowest, highest,
         value);
  return value;
}

const std::vector<JsonMember>& JsonField::members() const {
  expect_kind(Json::Kind::object);
  return value_->members();
}

void JsonField::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const JsonMember& member : members()) {
    const bool known = std::find(keys.begin(), keys.end(), member.key) != keys.end();
    expect(known || member.value.is(Json::Kind::null), "the key {} is not known to Faultline",
           shown(member.key));
  }
}

}  // namespace faultline
