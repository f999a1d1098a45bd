#include "io/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace faultline {

DirectoryLock::DirectoryLock(const std::string& directory)
    : file_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (file_ < 0) throw IoError(fmt::format("cannot read {}: {}", directory, std::strerror(errno)));
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(file_);
  fail("'{}' is in use by another process; wait until it is done, or use another directory",
       directory);
}

DirectoryLock::~DirectoryLock() { ::close(file_); }

}  // namespace faultline
