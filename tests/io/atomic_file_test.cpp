#include "io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "io/directory_lock.h"
#include "io/mapped_file.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(AtomicFile, AppearsOnlyAtCommit) {
  const ScratchDirectory scratch;
  scratch.write("a", "old");
  {
    AtomicFile file(scratch / "a");
    file.write("new ");
    file.write("content");
    EXPECT_EQ(content_of(scratch / "a"), "old");
    file.commit();
    EXPECT_EQ(content_of(scratch / "a"), "new content");
  }
  EXPECT_THAT(scratch.names(), ElementsAre("a"));
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const ScratchDirectory scratch;
  { AtomicFile(scratch / "a").write("half"); }
  EXPECT_THAT(scratch.names(), IsEmpty());
}

TEST(AtomicFile, MakesItsDirectories) {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "x/y/z", "deep");
  EXPECT_EQ(content_of(scratch / "x/y/z"), "deep");
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMeet) {
  const ScratchDirectory scratch;
  AtomicFile one(scratch / "a");
  AtomicFile two(scratch / "a");
  one.write("one");
  two.write("two");
  two.commit();
  one.commit();
  EXPECT_EQ(content_of(scratch / "a"), "one");
  EXPECT_THAT(scratch.names(), ElementsAre("a"));
}

TEST(AtomicFile, LeavesWhatWasThereOnAFullDisk) {
  const ScratchDirectory scratch;
  scratch.write("a", "old");
  {
    const FullDisk full(1000);
    EXPECT_THAT(
        error_of<IoError>([&] { write_file_atomically(scratch / "a", std::string(5000, 'x')); }),
        HasSubstr("/a: File too large"));
  }
  EXPECT_EQ(content_of(scratch / "a"), "old");
  EXPECT_THAT(scratch.names(), ElementsAre("a"));
}

TEST(AtomicFile, NamesAPathThatCannotBeWritten) {
  const ScratchDirectory scratch;
  scratch.write("file", "");
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(scratch / "file/a", "x"); }),
              HasSubstr("cannot write " + scratch.path() + "/file/a: Not a directory"));
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically("/proc/nothing/a", "x"); }),
              HasSubstr("/proc/nothing/a"));
  std::filesystem::create_directory(scratch / "folder");
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(scratch / "folder", "x"); }),
              HasSubstr("Is a directory"));
  EXPECT_THAT(scratch.names(), ElementsAre("file", "folder"));
}

TEST(AtomicDirectory, AppearsWholeAndReplacesTheOldOne) {
  const ScratchDirectory scratch;
  scratch.write("d/old.txt", "old");
  {
    AtomicDirectory directory(scratch / "d/");
    write_file_atomically(directory.temporary_path() + "/new.txt", "new");
    EXPECT_EQ(content_of(scratch / "d/old.txt"), "old");
    EXPECT_FALSE(std::filesystem::exists(scratch / "d/new.txt"));
    directory.commit();
    EXPECT_EQ(content_of(scratch / "d/new.txt"), "new");
  }
  EXPECT_THAT(scratch.names(), ElementsAre("d", "d/new.txt"));
}

TEST(AtomicDirectory, CommittedAsNewTakesNoNameThatIsInUse) {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "empty");
  AtomicDirectory(scratch / "empty").commit_new();
  AtomicDirectory first(scratch / "d");
  AtomicDirectory second(scratch / "d");
  write_file_atomically(first.temporary_path() + "/a", "first");
  write_file_atomically(second.temporary_path() + "/a", "second");
  first.commit_new();
  EXPECT_THAT(error_of<IoError>([&] { second.commit_new(); }), HasSubstr("not empty"));
  EXPECT_EQ(content_of(scratch / "d/a"), "first");
}

TEST(DirectoryLock, IsHeldByOneUntilItIsGone) {
  const ScratchDirectory scratch;
  {
    const DirectoryLock held(scratch.path());
    EXPECT_THAT(error_of<InvalidArgument>([&] { DirectoryLock{scratch.path()}; }),
                HasSubstr("in use"));
  }
  EXPECT_NO_THROW(DirectoryLock{scratch.path()});
  EXPECT_THAT(error_of<IoError>([&] { DirectoryLock{scratch / "none"}; }), HasSubstr("none"));
}

TEST(AtomicDirectory, LeavesNothingWithoutCommit) {
  const ScratchDirectory scratch;
  scratch.write("d/old.txt", "old");
  {
    const AtomicDirectory directory(scratch / "d");
    write_file_atomically(directory.temporary_path() + "/new.txt", "new");
  }
  EXPECT_THAT(scratch.names(), ElementsAre("d", "d/old.txt"));
}

TEST(AtomicDirectory, DoesNotReplaceAFile) {
  const ScratchDirectory scratch;
  scratch.write("d", "a file");
  EXPECT_THAT(error_of<IoError>([&] { AtomicDirectory(scratch / "d").commit(); }),
              HasSubstr("Not a directory"));
  EXPECT_THAT(scratch.names(), ElementsAre("d"));
}

TEST(MappedFile, IsPrivateAndOutlivesTheFile) {
  const ScratchDirectory scratch;
  const std::string path = scratch.write("a", "hello");
  const MappedFile file = map_file(path);
  file.memory.get()[0] = std::byte{'J'};
  EXPECT_EQ(file.text(), "Jello");
  EXPECT_EQ(content_of(path), "hello");
  std::filesystem::remove(path);
  EXPECT_EQ(file.text(), "Jello");
}

TEST(MappedFile, NamesWhatCannotBeMapped) {
  const ScratchDirectory scratch;
  EXPECT_EQ(map_file(scratch.write("empty", "")).text(), "");
  EXPECT_THAT(error_of<IoError>([&] { map_file(scratch / "none"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of<IoError>([&] { map_file(scratch.path()); }), HasSubstr("Is a directory"));
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of<IoError>([&] { map_file(scratch / "pipe"); }), HasSubstr("not a regular"));
}

}  // namespace
}  // namespace faultline
