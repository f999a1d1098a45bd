#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace faultline {

// What is written becomes visible under its name whole or not at all: it is written beside it under
// a temporary name (".NAME.partial-PID-N"), synced and renamed. Without commit, or when anything
// fails, the destructor removes it. A killed process may leave a temporary name behind; nothing
// reads those, and the next writer of the same name removes them.
// Every failure is an IoError with the path and the system's reason.

// A file. Its directory must be there. Where `path` is a link, the file that it leads to is
// replaced and the link stays. What is there and is no regular file (a device, a pipe) is never
// replaced: the bytes go straight into it, and nothing of the above holds for them.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes) { write(std::as_bytes(std::span(bytes))); }
  // Syncs, renames over what is there, syncs the directory.
  void commit();

 private:
  std::string path_;       // as given
  std::string place_;      // the same with links followed
  std::string temporary_;  // "" when the bytes go straight into `path_`
  int file_ = -1;
};

// A directory. Missing parent directories are made.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(std::string path);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to put the files until commit. Write them with AtomicFile, which syncs them.
  const std::string& temporary_path() const { return temporary_; }
  // Syncs the directory and renames it; one that has the name already is exchanged and removed.
  void commit();
  // The same where nothing has the name but perhaps an empty directory. Throws, and leaves what is
  // there, when it has been taken meanwhile.
  void commit_new();

 private:
  void unlock();

  std::string path_;
  std::string temporary_;
  int lock_ = -1;  // tells other writers of the same name that this one lives
};

void write_file_atomically(const std::string& path, std::string_view bytes);

}  // namespace faultline
