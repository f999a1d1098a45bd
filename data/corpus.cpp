#include "data/corpus.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/error.h"
#include "data/utf8.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<std::string_view, Documents> kNames[] = {{"verse", Documents::verse},
                                                             {"chapter", Documents::chapter},
                                                             {"book", Documents::book},
                                                             {"none", Documents::none}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The part of a line's reference that names its document: "1Sm" of "1Sm3:4 And ..." for books,
// "1Sm3" for chapters, "1Sm3:4" for verses. Empty when the line has no reference.
std::string_view reference(std::string_view line, Documents documents) {
  size_t at = 0;
  const auto take = [&](auto&& belongs) {
    const size_t begin = at;
    while (at < line.size() && belongs(line[at])) ++at;
    return at - begin;
  };
  if (!line.empty() && is_digit(line[0])) ++at;
  if (take(is_letter) == 0) return {};
  const size_t book = at;
  if (take(is_digit) == 0 || at == line.size() || line[at] != ':') return {};
  const size_t chapter = at++;
  if (take(is_digit) == 0 || at == line.size() || line[at] != ' ') return {};
  if (documents == Documents::book) return line.substr(0, book);
  if (documents == Documents::chapter) return line.substr(0, chapter);
  return line.substr(0, at);
}

// Appends the documents of one text: runs of lines with the same reference.
void cut(std::string text, const std::string& where, Documents documents,
         std::vector<std::string>& result) {
  if (documents == Documents::none) {
    result.push_back(std::move(text));
    return;
  }
  std::string_view previous;
  int64_t line_number = 1;
  for (size_t at = 0; at < text.size(); ++line_number) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const std::string_view key = reference(line, documents);
    require(!key.empty(),
            "{}: line {} does not begin with a reference like 'Ge1:1 ', so it cannot be cut by {}; "
            "use documents=none",
            where, line_number, name(documents));
    if (key != previous) result.emplace_back();
    result.back().append(line);
    previous = key;
    at = end;
  }
}

// Checks one text and adds its documents.
void add_text(Corpus& corpus, std::string text, const std::string& where, Documents documents,
              InvalidUtf8 policy) {
  const size_t zero = text.find('\0');
  require(zero == std::string::npos,
          "{}: byte {} is 0: this is binary data, text was expected (byte 0 ends a document)",
          where, zero);
  Utf8Repair repair = repair_utf8(text);
  if (repair.replaced > 0) {
    require(policy == InvalidUtf8::replace,
            "{}: {} invalid UTF-8 sequence(s), the first at byte {}; convert the file to UTF-8, or "
            "let them be replaced",
            where, repair.replaced, repair.first_offset);
    if (corpus.replaced == 0) {
      corpus.first_invalid = fmt::format("{}, byte {}", where, repair.first_offset);
    }
    corpus.replaced += repair.replaced;
    text = std::move(repair.text);
  }
  corpus.bytes += static_cast<int64_t>(text.size());
  cut(std::move(text), where, documents, corpus.documents);
}

[[noreturn]] void cannot_read(const std::string& path, const std::string& why) {
  throw IoError(fmt::format("cannot read {}: {}", path, why));
}

std::string read_file(const fs::path& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (file == nullptr) cannot_read(path.string(), std::strerror(errno));
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), count);
  }
  if (std::ferror(file.get()) != 0) cannot_read(path.string(), std::strerror(errno));
  return text;
}

// The files that make up `path`, in the order of their names.
std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) cannot_read(path.string(), "no such file");
  if (error) cannot_read(path.string(), error.message());
  // A pipe is as good as a file; a device may never end.
  const bool is_file =
      status.type() == fs::file_type::regular || status.type() == fs::file_type::fifo;
  if (is_file) return {path};
  if (status.type() != fs::file_type::directory) {
    cannot_read(path.string(), "a text file or a directory of them was expected, this is neither");
  }

  std::vector<fs::path> files;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unknown;  // a dangling link is no regular file
    const bool hidden = entry->path().filename().string().starts_with('.');
    if (!hidden && entry->is_regular_file(unknown)) files.push_back(entry->path());
  }
  if (error) cannot_read(path.string(), error.message());
  require(!files.empty(), "{}: the directory holds no file to read (hidden ones do not count)",
          path.string());
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.filename().string() < b.filename().string();
  });
  return files;
}

}  // namespace

std::string_view name(Documents documents) { return kNames[static_cast<size_t>(documents)].first; }

Documents documents_from_name(std::string_view text) {
  for (const auto& [known, documents] : kNames) {
    if (text == known) return documents;
  }
  fail("documents: '{}' is not one of verse, chapter, book, none", text);
}

Corpus read_corpus(const std::string& path, const CorpusOptions& options) {
  Corpus corpus;
  corpus.source = path;
  for (const fs::path& file : files_of(path)) {
    std::string text = read_file(file);
    if (text.empty()) {
      ++corpus.empty_files;
      continue;
    }
    add_text(corpus, std::move(text), file.string(), options.documents.value_or(Documents::none),
             options.invalid_utf8);
  }
  require(!corpus.documents.empty(), "{}: there is no text in it (0 bytes)", path);
  return corpus;
}

Corpus corpus_of(const std::vector<std::string>& texts, const CorpusOptions& options) {
  Corpus corpus;
  corpus.source = "list";
  for (size_t i = 0; i < texts.size(); ++i) {
    require(!texts[i].empty(), "corpus: document {} of the list is empty", i);
    add_text(corpus, texts[i], fmt::format("document {}", i),
             options.documents.value_or(Documents::none), options.invalid_utf8);
  }
  require(!corpus.documents.empty(), "corpus: the list holds no document");
  return corpus;
}

}  // namespace faultline
