#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace faultline {

struct JsonMember;

// A JSON value. Objects keep the order in which their members were set. Text written and read again
// gives every bit of every number back: integers in decimal, doubles with the shortest digits that
// do and always with a point or an exponent; NaN and the infinities as "nan", "inf", "-inf".
class Json {
 public:
  enum class Kind : uint8_t { null, boolean, integer, real, text, array, object };

  Json();  // null
  Json(bool value);
  // Throws InvalidArgument for an integer above 2^63 - 1.
  template <std::integral T>
  Json(T value) : Json(Integer{checked(value)}) {}
  template <std::floating_point T>
  Json(T value) : Json(Real{static_cast<double>(value)}) {}
  Json(const char* text);
  Json(std::string_view text);
  Json(std::string text);
  static Json array();
  static Json array(std::vector<Json> items);
  static Json object();
  // The keys must differ from each other.
  static Json object(std::vector<JsonMember> members);
  template <class T>
  static Json array_of(const std::vector<T>& items) {
    Json result = array();
    for (const T& item : items) result.push(item);
    return result;
  }

  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();

  // Sets a member of an object, in place where the key is there already. Returns *this, so calls
  // can be chained.
  Json& set(std::string key, Json value);
  // Appends to an array.
  Json& push(Json value);

  Kind kind() const;
  bool is(Kind wanted) const { return kind() == wanted; }

  // The value as that type; throws InvalidArgument that says what was found. A real is also read
  // from an integer and from "nan", "inf" and "-inf".
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  const std::string& text() const;
  const std::vector<Json>& items() const;
  const std::vector<JsonMember>& members() const;

  // The member of an object; nullptr when there is none. Throws when this is no object.
  const Json* find(std::string_view key) const;
  // The same; throws InvalidArgument naming the key when there is none.
  const Json& at(std::string_view key) const;

  // On one line without blanks.
  std::string to_text() const;
  // On several lines, each level two blanks further in, with a line end at the end.
  std::string to_indented_text() const;

  // Reads one JSON text (RFC 8259) that is all of `text`. Throws InvalidArgument that begins with
  // `source` and names the place: not JSON, invalid UTF-8, nested deeper than 64, a key twice in an
  // object, a number beyond double; more than `most_values` values, each array, object and what is
  // in them counted. A value takes some 100 bytes of memory, and may take two of the text.
  static Json parse(std::string_view text, const std::string& source,
                    size_t most_values = SIZE_MAX);

  bool operator==(const Json& other) const;

 private:
  struct Integer {
    int64_t value;
  };
  struct Real {
    double value;
  };
  explicit Json(Integer value);
  explicit Json(Real value);
  template <std::integral T>
  static int64_t checked(T value) {
    if (!std::in_range<int64_t>(value)) refuse_integer();
    return static_cast<int64_t>(value);
  }
  [[noreturn]] static void refuse_integer();
  void write(std::string& out, int indent) const;

  // In the order of Kind.
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<Json>,
               std::vector<JsonMember>>
      value_;
};

struct JsonMember {
  std::string key;
  Json value;
  bool operator==(const JsonMember&) const = default;
};

// The name of a kind as errors use it: "an integer", "an object", ...
std::string_view name(Json::Kind kind);

// `text` as a JSON string with its quotes. What is not UTF-8 becomes U+FFFD.
std::string json_quoted(std::string_view text);

// The shortest digits that give the double back, as Json writes it.
std::string json_number(double value);

}  // namespace faultline
