#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// A token that is found in the text as it stands, before any merge: a mark such as <|endoftext|>,
// or a word added to a trained vocabulary.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;     // a mark, not text
  bool lstrip = false;      // takes the blanks before it
  bool rstrip = false;      // takes the blanks after it
  bool normalized = false;  // is looked for after all that are not
  bool operator==(const AddedToken&) const = default;
};

// Finds added tokens in a text: the leftmost first, of those the longest. Immutable.
class AddedTokens {
 public:
  AddedTokens() = default;
  // Contents must not be empty nor there twice.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  using TakeText = std::function<void(std::string_view)>;
  using TakeToken = std::function<void(int32_t id)>;
  // Calls `take_text` with each part between added tokens that is not empty, `take_token` for each
  // of them, in order.
  void split(std::string_view text, const TakeText& take_text, const TakeToken& take_token) const;

 private:
  // The tokens of one pass, by their first byte, the longest first.
  struct Pass {
    std::array<std::vector<AddedToken>, 256> by_first_byte;
    bool empty = true;
    const AddedToken* at(std::string_view text, size_t place) const;
  };
  static void run(const Pass& pass, std::string_view text, const TakeText& take_text,
                  const TakeToken& take_token);

  Pass exact_;       // normalized is false
  Pass normalized_;  // searches what the first pass left
};

}  // namespace faultline
