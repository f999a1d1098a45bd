#include "data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <numeric>

#include "core/error.h"
#include "data/tokenizer.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string joined(const Corpus& corpus) {
  return std::accumulate(corpus.documents.begin(), corpus.documents.end(), std::string());
}

const char kVerses[] = "1Sm1:1 a\n1Sm1:2 b\n1Sm2:1 c\n2Sm1:1 d\nSSol1:1 e\nSSol11:1 f\n";

TEST(Corpus, IsCutByVerseChapterAndBook) {
  const auto cut = [](Documents by) { return corpus_of({kVerses}, {.documents = by}).documents; };
  EXPECT_THAT(cut(Documents::book), ElementsAre("1Sm1:1 a\n1Sm1:2 b\n1Sm2:1 c\n", "2Sm1:1 d\n",
                                                "SSol1:1 e\nSSol11:1 f\n"));
  EXPECT_THAT(cut(Documents::chapter), ElementsAre("1Sm1:1 a\n1Sm1:2 b\n", "1Sm2:1 c\n",
                                                   "2Sm1:1 d\n", "SSol1:1 e\n", "SSol11:1 f\n"));
  EXPECT_THAT(cut(Documents::verse), ElementsAre("1Sm1:1 a\n", "1Sm1:2 b\n", "1Sm2:1 c\n",
                                                 "2Sm1:1 d\n", "SSol1:1 e\n", "SSol11:1 f\n"));
  EXPECT_THAT(cut(Documents::none), ElementsAre(kVerses));
}

TEST(Corpus, KeepsALastLineWithoutLineEnd) {
  const Corpus corpus = corpus_of({"Ge1:1 a\nGe2:1 b"}, {.documents = Documents::chapter});
  EXPECT_THAT(corpus.documents, ElementsAre("Ge1:1 a\n", "Ge2:1 b"));
}

TEST(Corpus, NamesTheLineThatHasNoReference) {
  for (const char* bad : {"plain words", "Ge1 x", "Ge1:x y", "1:1 x", "Ge:1 x", "Ge1:1", ""}) {
    const std::string text = error_of<InvalidArgument>([&] {
      corpus_of({std::string("Ge1:1 a\n") + bad + "\n"}, {.documents = Documents::chapter});
    });
    EXPECT_THAT(text, HasSubstr("line 2")) << bad;
    EXPECT_THAT(text, HasSubstr("documents=none")) << bad;
  }
}

TEST(Corpus, ReadsAFileAsOneDocument) {
  const ScratchDirectory scratch;
  const std::string text = "line\r\n\tcaf\xC3\xA9 \xF0\x9F\x98\x80";
  const Corpus corpus = read_corpus(scratch.write("a.txt", text));
  EXPECT_THAT(corpus.documents, ElementsAre(text));
  EXPECT_EQ(corpus.bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(corpus.replaced, 0);
  EXPECT_EQ(corpus.warning, "");
}

TEST(Corpus, ReadsTheVisibleRegularFilesOfADirectoryByName) {
  const ScratchDirectory scratch;
  scratch.write("b.txt", "second");
  scratch.write("a.txt", "first");
  scratch.write("c.txt", "");
  scratch.write(".hidden", "no");
  scratch.write("deeper/d.txt", "no");
  const Corpus corpus = read_corpus(scratch.path());
  EXPECT_THAT(corpus.documents, ElementsAre("first", "second"));
  EXPECT_EQ(corpus.empty_files, 1);
}

TEST(Corpus, RefusesWhatHoldsNoText) {
  const ScratchDirectory scratch;
  scratch.write("empty.txt", "");
  std::filesystem::create_directory(scratch / "folder");
  EXPECT_THAT(error_of<IoError>([&] { read_corpus(scratch / "missing.txt"); }),
              HasSubstr("missing.txt: no such file"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_corpus(scratch / "empty.txt"); }),
              HasSubstr("0 bytes"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_corpus(scratch / "folder"); }),
              HasSubstr("holds no file"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { corpus_of({}); }), HasSubstr("no document"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { corpus_of({"a", ""}); }), HasSubstr("document 1"));
}

// Root may read everything, so that a root who runs the tests becomes somebody else meanwhile.
class AsAnOrdinaryUser {
 public:
  AsAnOrdinaryUser() {
    if (root_) {
      EXPECT_EQ(::seteuid(kNobody), 0);
    }
  }
  ~AsAnOrdinaryUser() {
    if (root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  AsAnOrdinaryUser(const AsAnOrdinaryUser&) = delete;
  AsAnOrdinaryUser& operator=(const AsAnOrdinaryUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  bool root_ = ::geteuid() == 0;
};

TEST(Corpus, NamesAFileThatMayNotBeRead) {
  const ScratchDirectory scratch;
  const std::string path = scratch.write("secret.txt", "text");
  ::chmod(path.c_str(), 0);
  const AsAnOrdinaryUser user;
  EXPECT_THAT(error_of<IoError>([&] { read_corpus(path); }), HasSubstr("Permission denied"));
}

TEST(Corpus, RefusesBinaryDataWithFileAndOffset) {
  const ScratchDirectory scratch;
  const std::string path = scratch.write("x.bin", std::string("abc\0def", 7));
  const std::string text = error_of<InvalidArgument>([&] { read_corpus(path); });
  EXPECT_THAT(text, HasSubstr("x.bin: byte 3 is 0"));
  EXPECT_THAT(text, HasSubstr("binary data"));
}

// /dev/zero would be read for ever.
TEST(Corpus, RefusesADevice) {
  EXPECT_THAT(error_of<IoError>([] { read_corpus("/dev/zero"); }),
              HasSubstr("cannot read /dev/zero: a text file or a directory of them was expected"));
}

TEST(Corpus, CountsInvalidUtf8AndObeysThePolicy) {
  const ScratchDirectory scratch;
  scratch.write("a.txt", "fine");
  scratch.write("b.txt", "ab\xC0\xAF\xE2\x82");
  scratch.write("c.txt", "\x80");
  const Corpus corpus = read_corpus(scratch.path());
  EXPECT_EQ(corpus.replaced, 4);
  EXPECT_THAT(corpus.first_invalid, HasSubstr("b.txt, byte 2"));
  EXPECT_EQ(corpus.documents[1], "ab\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  const std::string text = error_of<InvalidArgument>(
      [&] { read_corpus(scratch / "b.txt", {.invalid_utf8 = InvalidUtf8::refuse}); });
  EXPECT_THAT(text, HasSubstr("b.txt: 3 invalid UTF-8 sequence(s), the first at byte 2"));
}

TEST(Corpus, DocumentNamesAreReadBack) {
  for (const auto by : {Documents::verse, Documents::chapter, Documents::book, Documents::none}) {
    EXPECT_EQ(documents_from_name(name(by)), by);
  }
  EXPECT_THAT(error_of<InvalidArgument>([] { documents_from_name("chapters"); }),
              HasSubstr("'chapters' is not one of verse, chapter, book, none"));
}

bool has_bible() { return std::system("command -v bible >/dev/null 2>&1") == 0; }

TEST(DefaultCorpus, IsTheKingJamesBibleByChapter) {
  if (!has_bible()) GTEST_SKIP() << "the package bible-kjv is not installed";
  const Corpus chapters = default_corpus();
  EXPECT_EQ(chapters.warning, "");
  EXPECT_EQ(chapters.bytes, 4'404'412);
  EXPECT_EQ(chapters.documents.size(), 1189u);
  const Corpus books = default_corpus({.documents = Documents::book});
  EXPECT_EQ(books.documents.size(), 66u);
  const Corpus verses = default_corpus({.documents = Documents::verse});
  EXPECT_EQ(verses.documents.size(), 31102u);
  const Corpus whole = default_corpus({.documents = Documents::none});
  ASSERT_EQ(whole.documents.size(), 1u);
  for (const Corpus* corpus : {&chapters, &books, &verses}) {
    EXPECT_EQ(joined(*corpus), whole.documents[0]);
  }
  EXPECT_TRUE(chapters.documents[0].starts_with("Ge1:1 In the beginning"));
}

// Sets a variable of the environment back when it goes.
class ScopedPath {
 public:
  explicit ScopedPath(const std::string& path) : before_(std::getenv("PATH")) {
    ::setenv("PATH", path.c_str(), 1);
  }
  ~ScopedPath() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST(DefaultCorpus, SaysWhatToInstall) {
  const ScratchDirectory scratch;
  const ScopedPath path(scratch.path());
  const std::string text = error_of<InvalidArgument>([] { default_corpus(); });
  for (const char* part : {"bible-kjv", "./x", "--data FILE"}) EXPECT_THAT(text, HasSubstr(part));
}

TEST(DefaultCorpus, WarnsOfAnotherEdition) {
  const ScratchDirectory scratch;
  ::chmod(scratch.write("bible", "#!/bin/sh\necho 'Ge1:1 Once upon a time'\n").c_str(), 0755);
  const ScopedPath path(scratch.path());
  const Corpus corpus = default_corpus();
  EXPECT_THAT(corpus.documents, ElementsAre("Ge1:1 Once upon a time\n"));
  EXPECT_THAT(corpus.warning, HasSubstr("another text (23 bytes)"));
}

TEST(DefaultCorpus, TakesNothingFromACommandThatFails) {
  const ScratchDirectory scratch;
  ::chmod(scratch.write("bible", "#!/bin/sh\necho 'Ge1:1 In'\nexit 3\n").c_str(), 0755);
  const ScopedPath path(scratch.path());
  EXPECT_THAT(error_of<InvalidArgument>([] { default_corpus(); }), HasSubstr("bible-kjv"));
}

}  // namespace
}  // namespace faultline
