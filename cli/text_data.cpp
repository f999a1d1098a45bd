#include "cli/text_data.h"

#include <cstdio>
#include <filesystem>

#include "data/corpus.h"
#include "io/checksum.h"

namespace faultline::cli {

TextData load_text(const std::string& path, const train::Config& config,
                   const Tokenizer& tokenizer) {
  CorpusOptions options;
  if (!config.documents.empty()) options.documents = documents_from_name(config.documents);
  const Corpus corpus = path.empty() ? default_corpus(options) : read_corpus(path, options);
  if (!corpus.warning.empty()) fmt::print(stderr, "note: {}\n", corpus.warning);
  if (corpus.replaced > 0) {
    fmt::print(stderr, "note: {} places of {} are not UTF-8, the first in {}; each became U+FFFD\n",
               corpus.replaced, corpus.source, corpus.first_invalid);
  }
  TokenStore tokens = tokenizer.tokenize(corpus);
  const std::string source =
      path.empty() ? "" : std::filesystem::absolute(path).lexically_normal().string();
  train::DataRecord record{source, tokens.documents(), tokens.size(), hex(tokens.checksum())};
  return {std::move(tokens), std::move(record)};
}

}  // namespace faultline::cli
