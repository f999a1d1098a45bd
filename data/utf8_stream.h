#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace faultline {

// Turns bytes that come in any portions (the bytes of one token, what a pipe gives) into whole
// characters: what it has given so far never ends inside one. Invalid parts become U+FFFD, as many
// as repair_utf8 writes for the same bytes in one piece.
class Utf8Stream {
 public:
  // The characters that these bytes complete; bytes of an unfinished one wait for the next call.
  std::string add(std::string_view bytes);

  // Nothing more comes: U+FFFD when a character is unfinished, else nothing. The stream begins
  // anew.
  std::string finish();

  // Bytes that wait: 0 to 3.
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  // U+FFFD given so far.
  int64_t replaced() const { return replaced_; }

 private:
  std::string waiting_;
  int64_t replaced_ = 0;
};

}  // namespace faultline
