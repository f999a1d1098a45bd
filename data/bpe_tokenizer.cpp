#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/byte_level.h"
#include "data/json_field.h"
#include "data/utf8.h"

namespace faultline {
namespace {

constexpr std::string_view kEndNames[] = {"<|endoftext|>", "<|end_of_text|>"};

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition, const std::string& where)
    : definition_(std::move(definition)), rule_(definition_.patterns, where) {
  name_tokens(where);
  check_merges(where);
  added_ = AddedTokens(definition_.added);
  merges_ = BpeMerges(definition_.merges, ids_of_bytes(where));
  lay_out_bytes();
  fill_whole_pieces();
  for (const AddedToken& token : definition_.added) {
    special_[static_cast<size_t>(token.id)] = token.special ? 1 : 0;
  }
  for (const std::string_view end : kEndNames) {
    const std::optional<int32_t> id = id_of(end);
    if (id && is_special(*id) && !end_of_document_) end_of_document_ = id;
  }
}

// Every id has one name, and every name one id. The texts of errors are made only when there is
// one: there are many tokens.
void BpeTokenizer::name_tokens(const std::string& where) {
  std::vector<std::string>& tokens = definition_.tokens;
  const size_t most = tokens.size() + definition_.added.size();
  for (const AddedToken& token : definition_.added) {
    if (token.id < 0 || static_cast<size_t>(token.id) >= most) {
      fail(
          "{}: added_tokens: {} has the id {}, but there are at most {} tokens, so ids below it "
          "have none",
          where, shown(token.content), token.id, most);
    }
    require(!token.content.empty(), "{}: added_tokens: the token {} is empty", where, token.id);
    tokens.resize(std::max(tokens.size(), static_cast<size_t>(token.id) + 1));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    const auto [known, fresh] = ids_.emplace(tokens[id], static_cast<int32_t>(id));
    if (!fresh) {
      fail("{}: the ids {} and {} have the same token {}", where, known->second, id,
           shown(tokens[id]));
    }
  }
  name_added_tokens(where);
  for (const auto* around : {&definition_.prompt_prefix, &definition_.prompt_suffix}) {
    for (const int32_t id : *around) {
      require(id >= 0 && static_cast<size_t>(id) < tokens.size(),
              "{}: post_processor: the id {} is outside the vocabulary of {} ids", where, id,
              tokens.size());
    }
  }
}

void BpeTokenizer::name_added_tokens(const std::string& where) {
  const std::vector<std::string>& tokens = definition_.tokens;
  std::vector<uint8_t> is_added(tokens.size());
  for (const AddedToken& token : definition_.added) {
    const auto id = static_cast<size_t>(token.id);
    require(is_added[id] == 0, "{}: added_tokens: the id {} is there twice", where, id);
    is_added[id] = 1;
    if (!tokens[id].empty() && tokens[id] != token.content) {
      fail("{}: added_tokens: the id {} is {}, but {} in the vocabulary", where, id,
           shown(token.content), shown(tokens[id]));
    }
    if (!tokens[id].empty() &&
        from_byte_level(token.content).value_or(token.content) != token.content) {
      fail(
          "{}: added_tokens: {} is also the vocabulary's token for other bytes, so its id would "
          "stand for both",
          where, shown(token.content));
    }
    const auto [known, fresh] = ids_.emplace(token.content, token.id);
    if (!fresh && known->second != token.id) {
      fail("{}: added_tokens: {} has the id {}, and also the id {}", where, shown(token.content),
           token.id, known->second);
    }
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    require(is_added[id] == 1 || !tokens[id].empty(),
            "{}: model.vocab: no token has the id {} of {}; ids must be without holes", where, id,
            tokens.size());
  }
}

void BpeTokenizer::check_merges(const std::string& where) const {
  const std::vector<std::string>& tokens = definition_.tokens;
  std::unordered_map<uint64_t, size_t> ranks;
  for (size_t rank = 0; rank < definition_.merges.size(); ++rank) {
    const BpeMerge& merge = definition_.merges[rank];
    for (const int32_t id : {merge.left, merge.right, merge.result}) {
      require(id >= 0 && static_cast<size_t>(id) < tokens.size(),
              "{}: model.merges[{}]: the id {} is outside the vocabulary of {} ids", where, rank,
              id, tokens.size());
    }
    const std::string& left = tokens[static_cast<size_t>(merge.left)];
    const std::string& right = tokens[static_cast<size_t>(merge.right)];
    const std::string& result = tokens[static_cast<size_t>(merge.result)];
    const bool joins = !left.empty() && !right.empty() &&
                       result.size() == left.size() + right.size() && result.starts_with(left) &&
                       result.ends_with(right);
    if (!joins) {
      fail("{}: model.merges[{}]: {} and {} do not join to the token {}", where, rank, shown(left),
           shown(right), merge.result);
    }
    const uint64_t pair =
        uint64_t{static_cast<uint32_t>(merge.left)} << 32 | static_cast<uint32_t>(merge.right);
    const auto [known, fresh] = ranks.emplace(pair, rank);
    if (!fresh) {
      fail("{}: model.merges[{}]: {} and {} are merged by model.merges[{}] already", where, rank,
           shown(left), shown(right), known->second);
    }
  }
}

std::array<int32_t, 256> BpeTokenizer::ids_of_bytes(const std::string& where) const {
  std::array<int32_t, 256> ids{};
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const std::string_view name = byte_level_character(static_cast<uint8_t>(byte));
    const auto found = ids_.find(name);
    if (found == ids_.end() || definition_.tokens[static_cast<size_t>(found->second)].empty()) {
      fail(
          "{}: model.vocab: the byte 0x{:02x}, written {}, has no token; some texts could not be "
          "encoded. Train with an initial alphabet of all bytes",
          where, byte, shown(name));
    }
    ids[byte] = found->second;
  }
  return ids;
}

// What each id stands for: an added token its content; any other the bytes that it writes, or, when
// it is no byte-level text, its own.
void BpeTokenizer::lay_out_bytes() {
  const std::vector<std::string>& tokens = definition_.tokens;
  std::vector<const AddedToken*> added(tokens.size());
  for (const AddedToken& token : definition_.added) added[static_cast<size_t>(token.id)] = &token;
  special_.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    places_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += added[id] != nullptr ? added[id]->content
                                   : from_byte_level(tokens[id]).value_or(tokens[id]);
  }
  places_.push_back(static_cast<uint32_t>(bytes_.size()));
}

size_t BpeTokenizer::whole_slot_of(std::string_view piece) const {
  size_t slot = XXH3_64bits(piece.data(), piece.size()) & (whole_.size() - 1);
  while (whole_[slot] >= 0 && bytes_at(whole_[slot]) != piece)
    slot = (slot + 1) & (whole_.size() - 1);
  return slot;
}

void BpeTokenizer::fill_whole_pieces() {
  const std::vector<std::string>& tokens = definition_.tokens;
  whole_.assign(std::bit_ceil(2 * tokens.size()), -1);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::optional<std::string> piece = from_byte_level(tokens[i]);
    if (!piece || piece->empty()) continue;
    ids.clear();
    merges_.encode(*piece, ids);
    const bool whole = definition_.ignore_merges || (ids.size() == 1 && ids[0] == id);
    if (whole) whole_[whole_slot_of(*piece)] = id;
  }
}

void BpeTokenizer::set_end_of_document(int32_t id) {
  bytes_of(id);
  end_of_document_ = id;
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  const auto take_text = [&](std::string_view part) { encode_text(part, ids); };
  added_.split(text, take_text, [&](int32_t id) { ids.push_back(id); });
  return ids;
}

std::vector<int32_t> BpeTokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> ids = encode(text);
  ids.insert(ids.begin(), definition_.prompt_prefix.begin(), definition_.prompt_prefix.end());
  ids.insert(ids.end(), definition_.prompt_suffix.begin(), definition_.prompt_suffix.end());
  return ids;
}

// A text without added tokens. The rule reads UTF-8 only, so what is not stands alone.
void BpeTokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  std::string with_blank;
  if (definition_.add_prefix_space && text[0] != ' ') {
    with_blank = " ";
    with_blank += text;
    text = with_blank;
  }
  const auto take = [&](std::string_view piece) { encode_piece(piece, ids); };
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_valid_utf8(text, at);
    rule_.split(text.substr(at, end - at), take);
    if (end == text.size()) break;
    const size_t length = utf8_part_at(text, end).length;
    encode_piece(text.substr(end, length), ids);
    at = end + length;
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  const int32_t whole = whole_[whole_slot_of(piece)];
  if (whole >= 0) {
    ids.push_back(whole);
  } else {
    merges_.encode(piece, ids);
  }
}

std::string_view BpeTokenizer::bytes_of(int32_t id) const {
  require(id >= 0 && id < vocab_size(), "tokenizer: id {} is outside the vocabulary of {} ids", id,
          vocab_size());
  return bytes_at(id);
}

bool BpeTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)] != 0;
}

std::optional<int32_t> BpeTokenizer::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace faultline
