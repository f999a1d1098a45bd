#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace faultline {

// The members of a JSON object in somebody else's format, each asked for by its name. A member that
// is null counts as absent. Errors are InvalidArgument: they name the source, the key, what was
// expected and what was found.
class JsonFields {
 public:
  // `object` must outlive this; `source` names it in errors: a file, or a file and a key.
  JsonFields(const Json& object, std::string source);

  // Null when absent. This and all that follows makes the key one that is known.
  const Json* find(std::string_view key);
  // A whole number from `least` to `most`.
  std::optional<int64_t> integer(std::string_view key, int64_t least, int64_t most);
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t fallback) {
    return integer(key, least, most).value_or(fallback);
  }
  // A finite number.
  std::optional<double> real(std::string_view key);
  double real(std::string_view key, double fallback) { return real(key).value_or(fallback); }
  bool flag(std::string_view key, bool fallback);
  std::optional<std::string> text(std::string_view key);

  // Refuses a flag with another value: `why` says what is computed instead.
  void require_flag(std::string_view key, bool only, std::string_view why);
  // Refuses every value that switches something on; null, false, 0, and what is empty do not.
  void require_off(std::string_view key, std::string_view why);

  // Keys that change nothing here.
  void ignore(std::span<const char* const> keys);
  // Refuses a key that was neither asked for nor ignored, unless its value switches nothing on or
  // its name begins with '_'.
  void refuse_unknown() const;

  // Throws: "SOURCE: KEY VALUE" and `what`.
  [[noreturn]] void refuse(std::string_view key, std::string_view what) const;
  const std::string& source() const { return source_; }

 private:
  const Json& object_;
  std::string source_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace faultline
