#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/json.h"

namespace faultline {

// A text or a value as an error shows it: on one line, cut when it is long.
std::string shown(std::string_view text);
std::string shown_value(const Json& value);

// A value of a JSON file and where it stands ("tokenizer.json: model.vocab"), so that every error
// names file and key. Keeps a pointer to the value, which must live on.
class JsonField {
 public:
  JsonField(const Json& root, std::string file) : value_(&root), file_(std::move(file)) {}

  const Json& value() const { return *value_; }
  bool is(Json::Kind kind) const { return value_->is(kind); }

  // A member of an object: absent and null are nothing.
  std::optional<JsonField> find(std::string_view key) const;
  // The same, which must be there.
  JsonField at(std::string_view key) const;
  // The items of an array, each as a field.
  std::vector<JsonField> items() const;

  bool boolean() const;
  const std::string& text() const;
  // An integer in [lowest, highest].
  int64_t integer(int64_t lowest, int64_t highest) const;
  const std::vector<JsonMember>& members() const;

  // Refuses an object with a member that is not null and not one of these.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  // Throws InvalidArgument: "FILE: KEY: " and the text.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: {}", where(), fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) refuse(text, std::forward<Args>(args)...);
  }

  // "FILE: KEY", or the file alone for its root.
  std::string where() const { return key_.empty() ? file_ : file_ + ": " + key_; }

 private:
  JsonField(const Json& value, std::string file, std::string key)
      : value_(&value), file_(std::move(file)), key_(std::move(key)) {}
  void expect_kind(Json::Kind kind) const;

  const Json* value_;
  std::string file_;
  std::string key_;  // "model.vocab", "added_tokens[3].id"
};

}  // namespace faultline
