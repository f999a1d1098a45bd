#include "io/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

TEST(AtomicFile, MakesNoDirectories) {
  const ScratchDirectory scratch;
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(scratch / "x/y", "deep"); }),
              HasSubstr("/x/y: there is no directory " + scratch.path() + "/x"));
  EXPECT_THAT(scratch.names(), IsEmpty());
}

TEST(AtomicFile, ReplacesTheFileThatALinkLeadsToAndNotTheLink) {
  namespace fs = std::filesystem;
  const ScratchDirectory scratch;
  scratch.write("there/a", "old");
  fs::create_symlink("there/a", scratch / "link");
  fs::create_symlink(scratch / "link", scratch / "second");
  fs::create_symlink("there/new", scratch / "dangling");
  write_file_atomically(scratch / "second", "new");
  write_file_atomically(scratch / "dangling", "made");
  EXPECT_EQ(content_of(scratch / "there/a"), "new");
  EXPECT_EQ(content_of(scratch / "there/new"), "made");
  EXPECT_TRUE(fs::is_symlink(scratch / "link") && fs::is_symlink(scratch / "second"));
  EXPECT_EQ(scratch.names().size(), 6u);  // three links, a directory, two files
  fs::create_symlink("round", scratch / "round");
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(scratch / "round", "x"); }),
              HasSubstr("Too many levels of symbolic links"));
}

// A device in its place would be a regular file afterwards. A pipe is one that needs no rights.
TEST(AtomicFile, WritesIntoWhatIsNoRegularFile) {
  const ScratchDirectory scratch;
  const std::string pipe = scratch / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", scratch / "link");
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_file_atomically(pipe, "one ");
  write_file_atomically(scratch / "link", "two ");
  // As /dev/fd/N: a link of /proc to what a process has open.
  const int writer = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
  write_file_atomically("/proc/self/fd/" + std::to_string(writer), "three");
  char text[32] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 13);
  EXPECT_STREQ(text, "one two three");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(scratch.names().size(), 2u);  // the pipe and the link
  ::close(reader);
  ::close(writer);
}

// The number of a process that is no more.
pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(AtomicFile, RemovesWhatKilledWritersOfItsNameLeft) {
  const ScratchDirectory scratch;
  const std::string dead = std::to_string(dead_process());
  const std::string kept[] = {
      ".a.partial-" + std::to_string(::getppid()) + "-0",  // of a writer that lives
      ".a.partial-" + dead + "-0-old",                     // perhaps the only one left
      ".b.partial-" + dead + "-0", ".a.partial-x-0"};
  for (const std::string& name : kept) scratch.write(name, "");
  scratch.write(".a.partial-" + dead + "-0", "half");
  scratch.write(".a.partial-" + dead + "-1/inside", "half");
  write_file_atomically(scratch / "a", "whole");
  std::vector<std::string> expected(std::begin(kept), std::end(kept));
  expected.emplace_back("a");
  EXPECT_THAT(scratch.names(), testing::UnorderedElementsAreArray(expected));
}

TEST(AtomicDirectory, RemovesWhatKilledWritersOfItsNameLeft) {
  const ScratchDirectory scratch;
  const std::string left = ".d.partial-" + std::to_string(dead_process()) + "-0";
  scratch.write(left + "/inside", "half");
  {
    // As of a writer whose process this one does not see.
    const DirectoryLock held(scratch / left);
    AtomicDirectory(scratch / "d").commit();
    EXPECT_THAT(scratch.names(), ElementsAre(left, left + "/inside", "d"));
  }
  AtomicDirectory(scratch / "d").commit();
  EXPECT_THAT(scratch.names(), ElementsAre("d"));
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
  EXPECT_THAT(error_of<IoError>([&] { second.commit_new(); }),
              HasSubstr("another process wrote it"));
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
