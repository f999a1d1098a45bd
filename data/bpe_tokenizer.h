#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/bpe_merges.h"
#include "data/split_rule.h"
#include "data/tokenizer.h"
#include "io/json.h"

namespace faultline {

// What a byte-level BPE tokenizer is made of, and all that its file holds.
struct BpeDefinition {
  // By id, as the file writes them: each byte as one character (data/byte_level.h). Empty where
  // only `added` has the id.
  std::vector<std::string> tokens;
  std::vector<BpeMerge> merges;  // by rank
  std::vector<AddedToken> added;
  std::vector<std::string> patterns;  // of the SplitRule
  bool add_prefix_space = false;      // a text that does not begin with a blank is given one
  // A piece that is a token is that token, whatever the merges would make of it (Llama 3).
  bool ignore_merges = false;
  std::vector<int32_t> prompt_prefix;  // what encode_prompt puts before the text, and after it
  std::vector<int32_t> prompt_suffix;
  // The members of a tokenizer.json that `patterns` and the others were read from, kept to be
  // written again. Null: they are made anew.
  Json frame;
};

// Byte-level byte-pair encoding as GPT-2 and Llama 3 use it, with the ids that Hugging Face
// tokenizers give. Bytes that are not UTF-8 are pieces of their own (each maximal invalid part), so
// any bytes can be encoded, and decode(encode(x)) is x unless the definition adds a blank or strips
// some. An added token found in the text becomes its id.
class BpeTokenizer final : public Tokenizer {
 public:
  // Throws InvalidArgument beginning with `where`: an id without a token, a token twice, a byte
  // without a token, a merge twice or of tokens that do not join to its result, an id outside the
  // vocabulary, a pattern that cannot be read.
  explicit BpeTokenizer(BpeDefinition definition, const std::string& where = "bpe");
  // Moved only: the names below point into the definition.
  BpeTokenizer(const BpeTokenizer&) = delete;
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;
  BpeTokenizer(BpeTokenizer&&) noexcept = default;
  BpeTokenizer& operator=(BpeTokenizer&&) noexcept = default;
  ~BpeTokenizer() override = default;

  // Reads a tokenizer.json, or a folder with one, or with GPT-2's older pair of vocab.json and
  // merges.txt. docs/formats.md lists what is read and what is refused. Throws IoError for a file
  // that cannot be read, InvalidArgument naming file and key for one that cannot be used.
  static BpeTokenizer load(const std::string& path);

  // Writes a tokenizer.json that loads here and in Hugging Face tokenizers with equal ids. The file
  // appears whole or not at all. Throws IoError.
  void save(const std::string& path) const;

  int64_t vocab_size() const override { return static_cast<int64_t>(places_.size()) - 1; }
  // <|endoftext|> or <|end_of_text|> when it is an added token, until set_end_of_document.
  std::optional<int32_t> end_of_document() const override { return end_of_document_; }
  // For the id that a model's configuration names (eos_token_id). Throws on an id outside.
  void set_end_of_document(int32_t id);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> encode_prompt(std::string_view text) const override;
  std::string_view bytes_of(int32_t id) const override;
  bool is_special(int32_t id) const override;

  // The id of a token given as the file writes it, an added one included.
  std::optional<int32_t> id_of(std::string_view token) const;
  const BpeDefinition& definition() const { return definition_; }

 private:
  void name_tokens(const std::string& where);
  void name_added_tokens(const std::string& where);
  void check_merges(const std::string& where) const;
  void lay_out_bytes();
  void fill_whole_pieces();
  std::array<int32_t, 256> ids_of_bytes(const std::string& where) const;
  size_t whole_slot_of(std::string_view piece) const;
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;
  std::string_view bytes_at(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return {bytes_.data() + places_[i], places_[i + 1] - places_[i]};
  }

  BpeDefinition definition_;
  std::unordered_map<std::string_view, int32_t> ids_;  // by token, as the file writes it
  SplitRule rule_;
  AddedTokens added_;
  BpeMerges merges_;
  std::string bytes_;             // of all tokens
  std::vector<uint32_t> places_;  // of each token in bytes_, and the end
  std::vector<uint8_t> special_;  // by id
  // Pieces whose encoding is one token, which most are: an open-addressing table of their ids, at
  // most half full, -1 where there is none.
  std::vector<int32_t> whole_;
  std::optional<int32_t> end_of_document_;
};

}  // namespace faultline
