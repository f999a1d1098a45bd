#include "data/utf8_stream.h"

#include <algorithm>

#include "data/utf8.h"

namespace faultline {
namespace {

// Where the unfinished character at the end of `bytes` begins; bytes.size() when there is none.
size_t begin_of_unfinished(std::string_view bytes) {
  constexpr size_t kLongestStart = 3;
  for (size_t back = std::min(kLongestStart, bytes.size()); back > 0; --back) {
    const size_t at = bytes.size() - back;
    if (utf8_part_at(bytes, at).kind == Utf8Kind::unfinished) return at;
  }
  return bytes.size();
}

}  // namespace

std::string Utf8Stream::add(std::string_view bytes) {
  waiting_ += bytes;
  const size_t whole = begin_of_unfinished(waiting_);
  Utf8Repair repair = repair_utf8(std::string_view(waiting_).substr(0, whole));
  waiting_.erase(0, whole);
  replaced_ += repair.replaced;
  return std::move(repair.text);
}

std::string Utf8Stream::finish() {
  Utf8Repair repair = repair_utf8(waiting_);
  waiting_.clear();
  replaced_ += repair.replaced;
  return std::move(repair.text);
}

}  // namespace faultline
