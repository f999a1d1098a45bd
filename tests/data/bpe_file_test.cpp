#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <span>

#include "core/error.h"
#include "data/bpe_train.h"
#include "tests/data/tokenizer_golden.h"

namespace faultline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kTexts = {"the cat, the hat, the bat"};

// A small tokenizer.json: <|endoftext|>, 256 bytes, three merges.
Json small_file() {
  const ScratchDirectory scratch;
  train_bpe(kTexts, {.vocab_size = 260, .special_tokens = {"<|endoftext|>"}})
      .save(scratch / "tokenizer.json");
  return Json::parse(content_of(scratch / "tokenizer.json"), "small");
}

// The value with the member at the end of `path` replaced.
Json with(const Json& value, std::span<const std::string> path, const Json& replacement) {
  if (path.empty()) return replacement;
  Json result = value;
  const Json* member = value.find(path.front());
  return result.set(path.front(), with(member != nullptr ? *member : Json::object(),
                                       path.subspan(1), replacement));
}

Json parsed(const std::string& text) { return Json::parse(text, "test"); }

// What loading a file with this text says; it must name the file.
std::string refusal(std::string_view text) {
  const ScratchDirectory scratch;
  const std::string path = scratch.write("tokenizer.json", text);
  const std::string error = error_of<InvalidArgument>([&] { BpeTokenizer::load(path); });
  EXPECT_THAT(error, HasSubstr(path));
  return error;
}

std::string refusal_with(const std::vector<std::string>& path, const std::string& replacement) {
  return refusal(with(small_file(), path, parsed(replacement)).to_text());
}

void expect_loads(const Json& json) {
  const ScratchDirectory scratch;
  const BpeTokenizer tokenizer =
      BpeTokenizer::load(scratch.write("tokenizer.json", json.to_text()));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(kTexts[0])), kTexts[0]);
}

TEST(TokenizerFile, RefusesWhatItDoesNotImplement) {
  const std::tuple<std::vector<std::string>, std::string, std::string> cases[] = {
      {{"version"}, R"("2.0")", "version"},
      {{"truncation"}, R"({"max_length": 5})", "truncation"},
      {{"padding"}, R"({"strategy": "BatchLongest"})", "padding"},
      {{"normalizer"}, R"({"type": "NFC"})", "normalizer"},
      {{"surprise"}, "1", "surprise"},
      {{"pre_tokenizer"}, "null", "pre_tokenizer"},
      {{"pre_tokenizer"}, R"({"type": "Whitespace"})", "Whitespace"},
      {{"pre_tokenizer", "use_regex"}, "1", "pre_tokenizer.use_regex"},
      {{"pre_tokenizer", "extra"}, "true", "extra"},
      {{"pre_tokenizer"}, R"({"type": "Sequence", "pretokenizers": []})", "pre_tokenizer"},
      {{"post_processor"}, R"({"type": "RobertaProcessing"})", "RobertaProcessing"},
      {{"decoder"}, "null", "decoder"},
      {{"decoder"}, R"({"type": "Metaspace"})", "Metaspace"},
      {{"model", "type"}, R"("Unigram")", "model.type"},
      {{"model", "dropout"}, "0.1", "model.dropout"},
      {{"model", "continuing_subword_prefix"}, R"("##")", "model.continuing_subword_prefix"},
      {{"model", "end_of_word_suffix"}, R"("</w>")", "model.end_of_word_suffix"},
      {{"model", "byte_fallback"}, "true", "model.byte_fallback"},
      {{"model", "ignore_merges"}, R"("yes")", "model.ignore_merges"},
      {{"model", "new_option"}, "3", "new_option"},
      {{"added_tokens"},
       R"([{"id": 0, "content": "<|endoftext|>", "single_word": true}])",
       "added_tokens[0]"},
      {{"added_tokens"}, R"([{"id": 0, "content": "<|endoftext|>", "color": "red"}])", "color"},
  };
  for (const auto& [path, replacement, named] : cases) {
    EXPECT_THAT(refusal_with(path, replacement), HasSubstr(named));
  }
}

TEST(TokenizerFile, TakesNeutralValues) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"model", "dropout"}, "0.0"},
      {{"model", "dropout"}, "0"},
      {{"model", "continuing_subword_prefix"}, R"("")"},
      {{"model", "end_of_word_suffix"}, R"("")"},
      {{"model", "unk_token"}, R"("<|endoftext|>")"},
      {{"model", "fuse_unk"}, "true"},
      {{"surprise"}, "null"},
      {{"post_processor"}, R"({"type": "ByteLevel", "trim_offsets": false})"},
  };
  for (const auto& [path, value] : cases) expect_loads(with(small_file(), path, parsed(value)));
}

TEST(TokenizerFile, RefusesAVocabularyThatIsNone) {
  Json vocab = small_file().at("model").at("vocab");
  const auto refusal_of = [](const Json& changed) {
    return refusal(
        with(small_file(), std::vector<std::string>{"model", "vocab"}, changed).to_text());
  };
  EXPECT_THAT(refusal_of(parsed("{}")), HasSubstr("model.vocab"));
  EXPECT_THAT(refusal_of(parsed("[]")), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(refusal_of(Json(vocab).set("hole", 261)),
              AllOf(HasSubstr("model.vocab"), HasSubstr("260")));
  EXPECT_THAT(refusal_of(Json(vocab).set("far", 1'000'000'000'000)),
              AllOf(HasSubstr("model.vocab"), HasSubstr("far")));
  EXPECT_THAT(refusal_of(Json(vocab).set("twice", 5)),
              AllOf(HasSubstr("twice"), HasSubstr("the id 5")));
  EXPECT_THAT(refusal_of(Json(vocab).set("real", 5.5)), HasSubstr("real"));
  EXPECT_THAT(refusal_of(Json(vocab).set("below", -1)), HasSubstr("below"));
  EXPECT_THAT(refusal_of(Json(vocab).set("", 260)), HasSubstr("is empty"));
  // A byte that nobody writes.
  std::vector<JsonMember> members = vocab.members();
  for (JsonMember& member : members) {
    if (member.key == "x") member.key = "xx";
  }
  EXPECT_THAT(refusal_of(Json::object(members)), HasSubstr("0x78"));
}

TEST(TokenizerFile, RefusesMergesThatAreNone) {
  const auto refusal_of = [](const std::string& merges) {
    return refusal_with({"model", "merges"}, merges);
  };
  EXPECT_THAT(refusal_of(R"([["t", "h"], ["t", "h"]])"),
              AllOf(HasSubstr("model.merges[1]"), HasSubstr("model.merges[0]")));
  EXPECT_THAT(refusal_of(R"([["t", "h"], "t h"])"), HasSubstr("model.merges[1]"));
  EXPECT_THAT(refusal_of(R"([["nothing", "h"]])"),
              AllOf(HasSubstr("model.merges[0]"), HasSubstr("\"nothing\"")));
  EXPECT_THAT(refusal_of(R"(["t nothing"])"), HasSubstr("the right part \"nothing\""));
  EXPECT_THAT(refusal_of(R"([["q", "q"]])"), HasSubstr("the result \"qq\""));
  for (const std::string wrong : {R"(["t"])", R"(["t h e"])", R"([["t"]])", R"([["t","h","e"]])",
                                  R"([[1, 2]])", R"([3])", R"([null])", R"([{}])"}) {
    EXPECT_THAT(refusal_of(wrong), HasSubstr("model.merges[0]")) << wrong;
  }
  EXPECT_THAT(refusal_of("{}"), HasSubstr("model.merges: expected an array"));
}

TEST(TokenizerFile, RefusesAddedTokensThatContradict) {
  const auto refusal_of = [](const std::string& added) {
    return refusal_with({"added_tokens"}, added);
  };
  EXPECT_THAT(refusal_of(R"([{"id": 3, "content": "<|endoftext|>"}])"), HasSubstr("the id 3"));
  EXPECT_THAT(refusal_of(R"([{"id": 260, "content": "<|endoftext|>"}])"),
              AllOf(HasSubstr("260"), HasSubstr("also the id 0")));
  EXPECT_THAT(refusal_of(R"([{"id": 262, "content": "<x>"}])"), HasSubstr("262"));
  EXPECT_THAT(refusal_of(R"([{"id": 260, "content": "<x>"}, {"id": 260, "content": "<y>"}])"),
              HasSubstr("260 is there twice"));
  EXPECT_THAT(refusal_of(R"([{"id": 260, "content": "<x>"}, {"id": 261, "content": "<x>"}])"),
              HasSubstr("<x>"));
  EXPECT_THAT(refusal_of(R"([{"id": 260, "content": ""}])"), HasSubstr("empty"));
  EXPECT_THAT(refusal_of(R"([{"content": "<x>"}])"), HasSubstr("\"id\" is missing"));
  EXPECT_THAT(refusal_of(R"([{"id": -1, "content": "<x>"}])"), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(refusal_of(R"([{"id": 260, "content": 7}])"), HasSubstr("added_tokens[0].content"));
  EXPECT_THAT(refusal_of(R"([7])"), HasSubstr("added_tokens[0]"));
  // In the vocabulary this is the byte E9, as content it is C3 A9.
  const int64_t id = small_file().at("model").at("vocab").at("é").integer();
  EXPECT_THAT(refusal_of(fmt::format(R"([{{"id": {}, "content": "é"}}])", id)),
              HasSubstr("other bytes"));
}

TEST(TokenizerFile, RefusesATemplateThatIsNone) {
  const auto refusal_of = [](const std::string& single, const std::string& marks) {
    return refusal_with({"post_processor"},
                        fmt::format(R"({{"type": "TemplateProcessing", "single": [{}], "pair": [],
                                         "special_tokens": {{{}}}}})",
                                    single, marks));
  };
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})";
  const std::string mark = R"({"SpecialToken": {"id": "<x>", "type_id": 0}})";
  EXPECT_THAT(refusal_of(mark + "," + text, ""), HasSubstr("special_tokens"));
  EXPECT_THAT(refusal_of(mark + "," + text, R"("<x>": {"ids": [260]})"), HasSubstr("260"));
  EXPECT_THAT(refusal_of(mark, R"("<x>": {"ids": [0]})"), HasSubstr("$A is missing"));
  EXPECT_THAT(refusal_of(text + "," + text, ""), HasSubstr("once"));
  EXPECT_THAT(refusal_of(R"({"Sequence": {"id": "B", "type_id": 0}})", ""), HasSubstr("$A"));
  EXPECT_THAT(refusal_of(R"({"Sequence": {"id": "A", "type_id": 1}})", ""), HasSubstr("type_id"));
}

TEST(TokenizerFile, RefusesPatternsThatTheEnginesReadDifferently) {
  const auto refusal_of = [](const std::string& pattern) {
    const Json split = Json::object()
                           .set("type", "Split")
                           .set("pattern", Json::object().set("Regex", pattern))
                           .set("behavior", "Isolated")
                           .set("invert", false);
    const Json byte_level = parsed(
        R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false})");
    const Json sequence = Json::object()
                              .set("type", "Sequence")
                              .set("pretokenizers", Json::array().push(split).push(byte_level));
    return refusal(
        with(small_file(), std::vector<std::string>{"pre_tokenizer"}, sequence).to_text());
  };
  for (const std::string pattern :
       {R"(\w+)",  R"(\bx)",     R"(\h)",       R"(\p{Han}+)", R"(\p{^L})", R"(\pL)", "^x",
        "x$",      "[a-z&&[b]]", "[[:alpha:]]", "[]x]",        "[a",        "(?i)x",  "(?<name>x)",
        "(*UTF)x", "x{2}+",      "x{2}?",       "x{,3}",       "{x",        R"(\1)",  R"([\S])",
        R"(x\)",   "(x",         "x)",          "a**+*",       "x*",        "",       "x|"}) {
    EXPECT_THAT(refusal_of(pattern), HasSubstr("pattern")) << pattern;
  }
}

TEST(TokenizerFile, ReadsTheOlderPair) {
  const BpeTokenizer golden = BpeTokenizer::load(golden_path("tokenizer_gpt2.json"));
  const BpeDefinition& definition = golden.definition();
  Json vocab = Json::object();
  for (size_t id = 0; id < definition.tokens.size(); ++id) vocab.set(definition.tokens[id], id);
  std::string merges = "#version: 0.2\n";
  for (const BpeMerge& merge : definition.merges) {
    merges += definition.tokens[static_cast<size_t>(merge.left)] + " " +
              definition.tokens[static_cast<size_t>(merge.right)] + "\n";
  }
  const ScratchDirectory scratch;
  scratch.write("vocab.json", vocab.to_text());
  EXPECT_THAT(error_of<InvalidArgument>([&] { BpeTokenizer::load(scratch.path()); }),
              HasSubstr("merges.txt"));
  scratch.write("merges.txt", merges);
  const BpeTokenizer pair = BpeTokenizer::load(scratch.path());
  for (const std::string& text : TokenizerGolden().texts()) {
    EXPECT_EQ(pair.encode(text), golden.encode(text));
  }
  pair.save(scratch / "tokenizer.json");  // which goes before the pair from here on
  EXPECT_EQ(BpeTokenizer::load(scratch.path()).encode("the earth"), golden.encode("the earth"));

  const ScratchDirectory broken;
  broken.write("vocab.json", vocab.to_text());
  broken.write("merges.txt", merges + "nothing here\n");
  EXPECT_THAT(error_of<InvalidArgument>([&] { BpeTokenizer::load(broken.path()); }),
              AllOf(HasSubstr("merges.txt: line"), HasSubstr("nothing")));
}

TEST(TokenizerFile, NamesWhatCannotBeRead) {
  const ScratchDirectory scratch;
  EXPECT_THAT(error_of<IoError>([&] { BpeTokenizer::load(scratch / "none.json"); }),
              HasSubstr("none.json"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { BpeTokenizer::load(scratch.path()); }),
              HasSubstr(scratch.path()));
}

TEST(TokenizerFile, RefusesHostileText) {
  const std::string deep(100'000, '[');
  const std::string nested = R"({"version": "1.0", "model": )" + deep;
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("3"), deep, nested,
        std::string("\x80\x04\x95"), std::string(R"({"version": 1})"),
        std::string(R"({"version": "1.0", "version": "1.0"})"),
        R"({"version": "1.0", "model": {"vocab": {"a": 1e999}}})" + std::string(),
        std::string("{\"version\": \"\xFF\"}")}) {
    EXPECT_FALSE(refusal(text).empty());
  }
  for (const std::string id :
       {"99999999999999999999", "9223372036854775807", "2147483648", "1e5"}) {
    std::string text = small_file().to_text();
    const std::string entry = R"("the":)";
    const size_t at = text.find(entry);
    ASSERT_NE(at, std::string::npos);
    text.replace(at + entry.size(), 3, id);
    EXPECT_THAT(refusal(text), HasSubstr("the")) << id;
  }
}

// Cut short or damaged anywhere, a file is refused or it is a whole tokenizer.
TEST(TokenizerFile, RefusesEveryPartOfAFile) {
  const std::string whole = small_file().to_text();
  for (size_t length = 0; length < whole.size(); length += 13) refusal(whole.substr(0, length));
}

RC_GTEST_PROP(TokenizerFile, SurvivesDamage, ()) {
  static const std::string whole = small_file().to_text();
  std::string text = whole;
  for (int64_t n = *rc::gen::inRange<int64_t>(1, 5); n > 0; --n) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    const auto byte = *rc::gen::element('"', '{', '}', '[', ']', ',', ':', '0', '9', '-', 'e', 't',
                                        ' ', '\\', '\0', '\xC4', '\xFF');
    if (*rc::gen::arbitrary<bool>()) {
      text[at] = byte;
    } else {
      text.erase(at, *rc::gen::inRange<size_t>(1, 40));
    }
  }
  const ScratchDirectory scratch;
  const std::string path = scratch.write("tokenizer.json", text);
  try {
    const BpeTokenizer tokenizer = BpeTokenizer::load(path);
    RC_ASSERT(tokenizer.decode(tokenizer.encode("the hat\xFF")) == "the hat\xFF");
  } catch (const InvalidArgument& error) {
    RC_ASSERT(std::string(error.what()).find(path) != std::string::npos);
  }
}

}  // namespace
}  // namespace faultline
