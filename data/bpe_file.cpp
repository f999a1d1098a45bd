#include <algorithm>
#include <filesystem>
#include <limits>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "data/json_field.h"
#include "data/tokenizer_frame.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = size_t{256} << 20;  // the largest vocabularies take 35 MB

using Vocabulary = std::unordered_map<std::string_view, int32_t>;

std::string read_file(const std::string& path) {
  const MappedFile file = map_file(path);
  require(file.bytes <= kMaxBytes, "{}: {} bytes; a tokenizer has at most {}", path, file.bytes,
          kMaxBytes);
  return std::string(file.text());
}

// The tokens by id. Ids that only `added` has are left empty; one that nobody has is a hole.
std::vector<std::string> read_vocabulary(const JsonField& vocab, size_t added) {
  const std::vector<JsonMember>& members = vocab.members();
  vocab.expect(!members.empty(), "the vocabulary is empty");
  const size_t most = members.size() + added;
  std::vector<std::string> tokens;
  for (const auto& [token, value] : members) {
    const auto refuse_entry = [&, &name = token](const std::string& why) {
      vocab.refuse("the token {} {}", shown(name), why);
    };
    if (token.empty()) refuse_entry("is empty");
    if (!value.is(Json::Kind::integer)) refuse_entry("has an id that is no integer");
    const int64_t number = value.integer();
    if (number < 0 || static_cast<size_t>(number) >= most) {
      refuse_entry(fmt::format("has the id {}, but there are {} tokens, so ids below it have none",
                               number, most));
    }
    const auto id = static_cast<size_t>(number);
    tokens.resize(std::max(tokens.size(), id + 1));
    if (!tokens[id].empty()) {
      refuse_entry(fmt::format("has the id {}, and so has {}", id, shown(tokens[id])));
    }
    tokens[id] = token;
  }
  return tokens;
}

Vocabulary ids_of(const std::vector<std::string>& tokens) {
  Vocabulary ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

// `where` is called for the place only when something is wrong: there are many merges.
template <class Where>
BpeMerge merge_of(const Vocabulary& ids, std::string_view left, std::string_view right,
                  const Where& where) {
  const auto id_of = [&](std::string_view token, std::string_view what) {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      fail("{}: {} {} of the merge is no token of the vocabulary", where(), what, shown(token));
    }
    return found->second;
  };
  const int32_t left_id = id_of(left, "the left part");
  const int32_t right_id = id_of(right, "the right part");
  return {left_id, right_id, id_of(std::string(left) + std::string(right), "the result")};
}

// "a b" as its two parts.
template <class Where>
std::pair<std::string_view, std::string_view> parts_of(std::string_view text, const Where& where) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
    fail("{}: a merge is two tokens with one blank between, found {}", where(), shown(text));
  }
  return {text.substr(0, blank), text.substr(blank + 1)};
}

std::vector<BpeMerge> read_merges(const JsonField& field, const Vocabulary& ids) {
  field.expect(field.is(Json::Kind::array), "expected an array, found {}",
               name(field.value().kind()));
  std::vector<BpeMerge> merges;
  for (const Json& item : field.value().items()) {
    const auto where = [&] { return fmt::format("{}[{}]", field.where(), merges.size()); };
    if (item.is(Json::Kind::text)) {
      const auto [left, right] = parts_of(item.text(), where);
      merges.push_back(merge_of(ids, left, right, where));
      continue;
    }
    const bool pair = item.is(Json::Kind::array) && item.items().size() == 2 &&
                      item.items()[0].is(Json::Kind::text) && item.items()[1].is(Json::Kind::text);
    if (!pair) fail(R"({}: a merge is "a b" or ["a", "b"], found {})", where(), shown_value(item));
    merges.push_back(merge_of(ids, item.items()[0].text(), item.items()[1].text(), where));
  }
  return merges;
}

std::vector<AddedToken> read_added(const JsonField& root) {
  std::vector<AddedToken> added;
  const auto field = root.find("added_tokens");
  if (!field) return added;
  for (const JsonField& item : field->items()) {
    item.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const auto flag = [&](std::string_view key) {
      const auto member = item.find(key);
      return member && member->boolean();
    };
    item.expect(!flag("single_word"), "single_word is true, which Faultline does not implement");
    const int64_t id = item.at("id").integer(0, std::numeric_limits<int32_t>::max());
    const std::string& content = item.at("content").text();
    item.expect(!content.empty(), "the content is empty");
    added.push_back({.id = static_cast<int32_t>(id),
                     .content = content,
                     .special = flag("special"),
                     .lstrip = flag("lstrip"),
                     .rstrip = flag("rstrip"),
                     .normalized = flag("normalized")});
  }
  return added;
}

BpeDefinition read_tokenizer_json(const std::string& path) {
  const Json json = Json::parse(read_file(path), path);
  const JsonField root(json, path);
  BpeDefinition definition = read_frame(root);
  definition.added = read_added(root);
  const JsonField model = root.at("model");
  definition.tokens = read_vocabulary(model.at("vocab"), definition.added.size());
  definition.merges = read_merges(model.at("merges"), ids_of(definition.tokens));
  return definition;
}

// GPT-2's older pair: vocab.json, and merges.txt with a line each after a line "#version".
BpeDefinition read_gpt2_pair(const fs::path& folder) {
  const std::string vocab_path = folder / "vocab.json";
  const std::string merges_path = folder / "merges.txt";
  require(!fs::exists(folder / "added_tokens.json"),
          "{}: tokens are added to vocab.json and merges.txt, which is read only from a "
          "tokenizer.json; save the tokenizer with transformers to get one",
          (folder / "added_tokens.json").string());
  BpeDefinition definition;
  definition.patterns = {std::string(kGpt2Pattern)};
  const Json json = Json::parse(read_file(vocab_path), vocab_path);
  definition.tokens = read_vocabulary(JsonField(json, vocab_path), 0);
  const Vocabulary ids = ids_of(definition.tokens);
  const std::string text = read_file(merges_path);
  size_t line_number = 0;
  for (size_t at = 0; at < text.size(); ++line_number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 0 && line.starts_with("#version"))) continue;
    const auto where = [&] { return fmt::format("{}: line {}", merges_path, line_number + 1); };
    const auto [left, right] = parts_of(line, where);
    definition.merges.push_back(merge_of(ids, left, right, where));
  }
  if (const auto end = ids.find("<|endoftext|>"); end != ids.end()) {
    definition.added = {{.id = end->second, .content = "<|endoftext|>", .special = true}};
  }
  return definition;
}

Json added_to_json(const std::vector<AddedToken>& added) {
  Json list = Json::array();
  for (const AddedToken& token : added) {
    list.push(Json::object()
                  .set("id", token.id)
                  .set("content", token.content)
                  .set("single_word", false)
                  .set("lstrip", token.lstrip)
                  .set("rstrip", token.rstrip)
                  .set("normalized", token.normalized)
                  .set("special", token.special));
  }
  return list;
}

}  // namespace

BpeTokenizer BpeTokenizer::load(const std::string& path) {
  if (!fs::is_directory(path)) return BpeTokenizer(read_tokenizer_json(path), path);
  const fs::path folder = path;
  if (fs::exists(folder / "tokenizer.json")) return load(folder / "tokenizer.json");
  require(fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt"),
          "{}: no tokenizer in this folder: neither tokenizer.json nor vocab.json with merges.txt",
          path);
  return BpeTokenizer(read_gpt2_pair(folder), folder / "vocab.json");
}

void BpeTokenizer::save(const std::string& path) const {
  const std::vector<std::string>& tokens = definition_.tokens;
  std::vector<JsonMember> vocab;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) vocab.push_back({tokens[id], Json(id)});
  }
  Json merges = Json::array();
  for (const BpeMerge& merge : definition_.merges) {
    merges.push(Json::array()
                    .push(tokens[static_cast<size_t>(merge.left)])
                    .push(tokens[static_cast<size_t>(merge.right)]));
  }
  Json root = definition_.frame.is(Json::Kind::null) ? make_frame(definition_) : definition_.frame;
  Json model = root.at("model");
  model.set("vocab", Json::object(std::move(vocab))).set("merges", std::move(merges));
  root.set("added_tokens", added_to_json(definition_.added)).set("model", std::move(model));
  std::string text = root.to_indented_text();
  text.pop_back();  // Hugging Face's files end without a line end; so ours equal theirs
  write_file_atomically(path, text);
}

}  // namespace faultline
