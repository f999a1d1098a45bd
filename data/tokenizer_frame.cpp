#include "data/tokenizer_frame.h"

#include <algorithm>

#include "core/error.h"

namespace faultline {
namespace {

const std::string& type_of(const JsonField& part) { return part.at("type").text(); }

void expect_absent(const JsonField& object, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const auto member = object.find(key);
    if (!member) continue;
    member->refuse("expected null, found {}; Faultline does not implement it",
                   shown_value(member->value()));
  }
}

// trim_offsets moves only the offsets, which we do not give.
void check_byte_level(const JsonField& part) {
  part.expect(type_of(part) == "ByteLevel", "expected the type ByteLevel, found {}",
              shown(type_of(part)));
  part.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  for (const std::string_view key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
    if (const auto flag = part.find(key)) flag->boolean();
  }
}

std::string split_pattern(const JsonField& split) {
  split.allow_only({"type", "pattern", "behavior", "invert"});
  const JsonField behavior = split.at("behavior");
  behavior.expect(behavior.text() == "Isolated", "expected \"Isolated\", found {}",
                  shown(behavior.text()));
  const auto invert = split.find("invert");
  if (invert) invert->expect(!invert->boolean(), "expected false, found true");
  const JsonField pattern = split.at("pattern");
  pattern.allow_only({"Regex"});
  return pattern.at("Regex").text();
}

// ByteLevel alone, or any number of Splits and ByteLevel last.
void read_pre_tokenizer(const JsonField& field, BpeDefinition& definition) {
  if (type_of(field) == "ByteLevel") {
    check_byte_level(field);
    const auto use_regex = field.find("use_regex");
    definition.add_prefix_space = field.at("add_prefix_space").boolean();
    if (!use_regex || use_regex->boolean()) definition.patterns.emplace_back(kGpt2Pattern);
    return;
  }
  field.expect(type_of(field) == "Sequence",
               "the type {} is not implemented; expected ByteLevel, or a Sequence of Splits and "
               "ByteLevel",
               shown(type_of(field)));
  field.allow_only({"type", "pretokenizers"});
  const std::vector<JsonField> parts = field.at("pretokenizers").items();
  field.expect(!parts.empty() && type_of(parts.back()) == "ByteLevel",
               "a Sequence must end with ByteLevel");
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    parts[i].expect(type_of(parts[i]) == "Split",
                    "the type {} is not implemented; expected Splits before ByteLevel",
                    shown(type_of(parts[i])));
    definition.patterns.push_back(split_pattern(parts[i]));
  }
  const bool split_before = !definition.patterns.empty();
  read_pre_tokenizer(parts.back(), definition);
  parts.back().expect(!split_before || !definition.add_prefix_space,
                      "add_prefix_space is true after a Split, which would put a blank before "
                      "every piece; Faultline does not implement it");
}

// A TemplateProcessing: marks before and after the text.
void read_template(const JsonField& part, BpeDefinition& definition) {
  part.allow_only({"type", "single", "pair", "special_tokens"});
  bool after = false;
  for (const JsonField& item : part.at("single").items()) {
    item.allow_only({"Sequence", "SpecialToken"});
    const auto sequence = item.find("Sequence");
    const JsonField piece = sequence ? *sequence : item.at("SpecialToken");
    piece.allow_only({"id", "type_id"});
    if (const auto type = piece.find("type_id")) type->integer(0, 0);
    if (sequence) {
      item.expect(piece.at("id").text() == "A" && !after, "the text $A must be there once");
      after = true;
      continue;
    }
    const JsonField mark = part.at("special_tokens").at(piece.at("id").text());
    for (const JsonField& id : mark.at("ids").items()) {
      (after ? definition.prompt_suffix : definition.prompt_prefix)
          .push_back(static_cast<int32_t>(id.integer(0, INT32_MAX)));
    }
  }
  part.expect(after, "the text $A is missing in single");
}

void read_post_processor(const JsonField& field, BpeDefinition& definition) {
  if (type_of(field) == "ByteLevel") return check_byte_level(field);
  if (type_of(field) == "TemplateProcessing") {
    field.expect(definition.prompt_prefix.empty() && definition.prompt_suffix.empty(),
                 "a second TemplateProcessing is not implemented");
    return read_template(field, definition);
  }
  field.expect(type_of(field) == "Sequence",
               "the type {} is not implemented; expected ByteLevel, TemplateProcessing or a "
               "Sequence of them",
               shown(type_of(field)));
  field.allow_only({"type", "processors"});
  for (const JsonField& part : field.at("processors").items()) {
    part.expect(type_of(part) != "Sequence", "a Sequence in a Sequence is not implemented");
    read_post_processor(part, definition);
  }
}

// unk_token and fuse_unk are for texts that have no encoding; with a token for every byte there
// are none.
void read_model(const JsonField& model, BpeDefinition& definition) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (const auto type = model.find("type")) {
    type->expect(type->text() == "BPE", "expected \"BPE\", found {}", shown(type->text()));
  }
  if (const auto dropout = model.find("dropout")) {
    const bool zero = (dropout->is(Json::Kind::real) || dropout->is(Json::Kind::integer)) &&
                      dropout->value().real() == 0;
    dropout->expect(zero, "expected null or 0; merges are never left out by chance here");
  }
  if (const auto unknown = model.find("unk_token")) unknown->text();
  if (const auto fuse = model.find("fuse_unk")) fuse->boolean();
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.find(key);
    if (affix) {
      affix->expect(affix->text().empty(),
                    "expected null or \"\", found {}; byte-level tokens "
                    "have none",
                    shown(affix->text()));
    }
  }
  if (const auto fallback = model.find("byte_fallback")) {
    fallback->expect(!fallback->boolean(),
                     "true: this is a SentencePiece vocabulary (Llama 2), not a byte-level one; "
                     "Faultline does not implement it");
  }
  const auto ignore_merges = model.find("ignore_merges");
  definition.ignore_merges = ignore_merges && ignore_merges->boolean();
}

// The file without tokens and merges, in its order.
Json frame_of(const JsonField& root) {
  Json frame = Json::object();
  for (const auto& [key, value] : root.members()) {
    frame.set(key, key == "model" || key == "added_tokens" ? Json() : value);
  }
  Json model = Json::object();
  for (const auto& [key, value] : root.at("model").members()) {
    model.set(key, key == "vocab" || key == "merges" ? Json() : value);
  }
  return frame.set("model", std::move(model));
}

enum class UseRegex : uint8_t { no, yes };  // cut by GPT-2's rule

Json byte_level(UseRegex use_regex) {
  return Json::object()
      .set("type", "ByteLevel")
      .set("add_prefix_space", false)
      .set("trim_offsets", true)
      .set("use_regex", use_regex == UseRegex::yes);
}

Json pre_tokenizer_of(const BpeDefinition& definition) {
  const bool gpt2 = definition.patterns.size() == 1 && definition.patterns.front() == kGpt2Pattern;
  if (gpt2 || definition.patterns.empty()) {
    return byte_level(gpt2 ? UseRegex::yes : UseRegex::no)
        .set("add_prefix_space", definition.add_prefix_space);
  }
  require(!definition.add_prefix_space,
          "bpe: add_prefix_space goes with GPT-2's rule only; a tokenizer.json cannot say it of "
          "another");
  Json parts = Json::array();
  for (const std::string& pattern : definition.patterns) {
    parts.push(Json::object()
                   .set("type", "Split")
                   .set("pattern", Json::object().set("Regex", pattern))
                   .set("behavior", "Isolated")
                   .set("invert", false));
  }
  parts.push(byte_level(UseRegex::no));
  return Json::object().set("type", "Sequence").set("pretokenizers", std::move(parts));
}

// The marks around a prompt, as a TemplateProcessing for one text and for two.
Json post_processor_of(const BpeDefinition& definition) {
  if (definition.prompt_prefix.empty() && definition.prompt_suffix.empty()) return {};
  Json marks = Json::object();
  const auto name_of = [&](int32_t id) {
    const auto is_it = [&](const AddedToken& token) { return token.id == id; };
    const auto added = std::find_if(definition.added.begin(), definition.added.end(), is_it);
    return added != definition.added.end() ? added->content
                                           : definition.tokens[static_cast<size_t>(id)];
  };
  const auto part = [](const char* kind, const std::string& id, int type_id) {
    return Json::object().set(kind, Json::object().set("id", id).set("type_id", type_id));
  };
  const auto add_text = [&](Json& list, const std::string& text, int type_id) {
    for (const int32_t id : definition.prompt_prefix) {
      list.push(part("SpecialToken", name_of(id), type_id));
    }
    list.push(part("Sequence", text, type_id));
    for (const int32_t id : definition.prompt_suffix) {
      list.push(part("SpecialToken", name_of(id), type_id));
    }
  };
  Json single = Json::array();
  Json pair = Json::array();
  add_text(single, "A", 0);
  add_text(pair, "A", 0);
  add_text(pair, "B", 1);
  for (const auto* around : {&definition.prompt_prefix, &definition.prompt_suffix}) {
    for (const int32_t id : *around) {
      marks.set(name_of(id), Json::object()
                                 .set("id", name_of(id))
                                 .set("ids", Json::array().push(id))
                                 .set("tokens", Json::array().push(name_of(id))));
    }
  }
  return Json::object()
      .set("type", "TemplateProcessing")
      .set("single", std::move(single))
      .set("pair", std::move(pair))
      .set("special_tokens", std::move(marks));
}

}  // namespace

BpeDefinition read_frame(const JsonField& root) {
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"});
  const JsonField version = root.at("version");
  version.expect(version.text() == "1.0", "expected \"1.0\", found {}", shown(version.text()));
  expect_absent(root, {"truncation", "padding", "normalizer"});
  BpeDefinition definition;
  read_pre_tokenizer(root.at("pre_tokenizer"), definition);
  if (const auto post = root.find("post_processor")) read_post_processor(*post, definition);
  check_byte_level(root.at("decoder"));
  read_model(root.at("model"), definition);
  definition.frame = frame_of(root);
  return definition;
}

Json make_frame(const BpeDefinition& definition) {
  Json model = Json::object()
                   .set("type", "BPE")
                   .set("dropout", Json())
                   .set("unk_token", Json())
                   .set("continuing_subword_prefix", Json())
                   .set("end_of_word_suffix", Json())
                   .set("fuse_unk", false)
                   .set("byte_fallback", false)
                   .set("ignore_merges", definition.ignore_merges)
                   .set("vocab", Json())
                   .set("merges", Json());
  return Json::object()
      .set("version", "1.0")
      .set("truncation", Json())
      .set("padding", Json())
      .set("added_tokens", Json())
      .set("normalizer", Json())
      .set("pre_tokenizer", pre_tokenizer_of(definition))
      .set("post_processor", post_processor_of(definition))
      .set("decoder", byte_level(UseRegex::yes).set("add_prefix_space", true))
      .set("model", std::move(model));
}

}  // namespace faultline
