#include "data/added_tokens.h"

#include <algorithm>

#include "data/utf8.h"

namespace faultline {
namespace {

// Unicode's White_Space.
bool is_blank(std::string_view character) {
  constexpr std::string_view kBlanks[] = {"\t",           "\n",           "\v",
                                          "\f",           "\r",           " ",
                                          "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                          "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82",
                                          "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85",
                                          "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88",
                                          "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
                                          "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
                                          "\xE3\x80\x80"};
  return std::find(std::begin(kBlanks), std::end(kBlanks), character) != std::end(kBlanks);
}

// Where the blanks that end at `end` begin, not before `lowest`.
size_t begin_of_blanks(std::string_view text, size_t lowest, size_t end) {
  while (end > lowest) {
    size_t begin = end - 1;
    while (begin > lowest && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_blank(text.substr(begin, end - begin))) break;
    end = begin;
  }
  return end;
}

size_t end_of_blanks(std::string_view text, size_t at) {
  while (at < text.size()) {
    const size_t length = utf8_part_at(text, at).length;
    if (!is_blank(text.substr(at, length))) break;
    at += length;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    Pass& pass = token.normalized ? normalized_ : exact_;
    pass.by_first_byte[static_cast<uint8_t>(token.content[0])].push_back(token);
    pass.empty = false;
  }
  for (Pass* pass : {&exact_, &normalized_}) {
    for (auto& bucket : pass->by_first_byte) {
      std::stable_sort(bucket.begin(), bucket.end(), [](const AddedToken& a, const AddedToken& b) {
        return a.content.size() > b.content.size();
      });
    }
  }
}

const AddedToken* AddedTokens::Pass::at(std::string_view text, size_t place) const {
  const std::string_view rest = text.substr(place);
  for (const AddedToken& token : by_first_byte[static_cast<uint8_t>(rest[0])]) {
    if (rest.starts_with(token.content)) return &token;
  }
  return nullptr;
}

void AddedTokens::run(const Pass& pass, std::string_view text, const TakeText& take_text,
                      const TakeToken& take_token) {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !pass.empty;) {
    const AddedToken* token = pass.at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? begin_of_blanks(text, done, at) : at;
    if (begin > done) take_text(text.substr(done, begin - done));
    take_token(token->id);
    at += token->content.size();
    if (token->rstrip) at = end_of_blanks(text, at);
    done = at;
  }
  if (done < text.size()) take_text(text.substr(done));
}

void AddedTokens::split(std::string_view text, const TakeText& take_text,
                        const TakeToken& take_token) const {
  const auto second = [&](std::string_view part) { run(normalized_, part, take_text, take_token); };
  run(exact_, text, second, take_token);
}

}  // namespace faultline
