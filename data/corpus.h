#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// How a text is cut into documents. Verse, chapter and book read the reference at the head of each
// line ("Ge1:1 In the beginning ...", the output of Debian's bible-kjv); `none` keeps a file whole.
enum class Documents : uint8_t { verse, chapter, book, none };

// "verse", "chapter", "book", "none".
std::string_view name(Documents documents);
// Throws InvalidArgument that lists the names.
Documents documents_from_name(std::string_view text);

// What happens to bytes that are not UTF-8: each maximal invalid part becomes U+FFFD, or the text
// is refused. Both ways they are counted.
enum class InvalidUtf8 : uint8_t { replace, refuse };

struct CorpusOptions {
  // Default: chapter for the default corpus, none for any other text.
  std::optional<Documents> documents;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::replace;
};

// A list of documents and what there is to say about where they came from.
struct Corpus {
  // Text of each document: not empty, no byte 0. Concatenated they are the text that was read.
  std::vector<std::string> documents;

  std::string source;         // the path, the command, or "list"
  int64_t bytes = 0;          // of all documents
  int64_t empty_files = 0;    // files of a directory that hold nothing, passed over
  int64_t replaced = 0;       // U+FFFD written for invalid UTF-8
  std::string first_invalid;  // "FILE, byte 17", when `replaced` is not 0
  std::string warning;        // one line to show the user; empty when there is nothing to say
};

// Reads a text file or a pipe, or every regular file of a directory that is not hidden, in the
// order of their names. Throws IoError when the path is missing or unreadable; InvalidArgument when
// it holds no text, holds byte 0 (binary data), holds invalid UTF-8 that is to be refused, or has a
// line without the reference by which it is to be cut. Each names the file and the place.
Corpus read_corpus(const std::string& path, const CorpusOptions& options = {});

// The King James Bible as Debian's package bible-kjv prints it. Throws InvalidArgument that says
// what to install when the command is not there. Another edition than the one our figures are for
// is told in `warning`.
Corpus default_corpus(const CorpusOptions& options = {});

// Documents that the caller has in memory, under the same rules. Options cut each of them further.
Corpus corpus_of(const std::vector<std::string>& texts, const CorpusOptions& options = {});

}  // namespace faultline
