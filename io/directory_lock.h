#pragma once

#include <string>

namespace faultline {

// Keeps a directory to one process: held from construction until this is destroyed or the process
// ends, however it ends. Binds those who ask for it, and nobody else; writes nothing. A file system
// that has no locks gives none.
class DirectoryLock {
 public:
  // Throws InvalidArgument at once when another one is held, IoError when there is no such
  // directory.
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace faultline
