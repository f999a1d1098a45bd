#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace faultline {

MappedFile map_file(const std::string& path) {
  const auto stop = [&](const char* why) {
    throw IoError(fmt::format("cannot read {}: {}", path, why));
  };
  // O_NONBLOCK: opening a pipe must not wait for its writer before it is refused.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) stop(std::strerror(errno));
  const std::shared_ptr<const void> closes(nullptr, [file](const void*) { ::close(file); });
  struct stat status {};
  if (::fstat(file, &status) != 0) stop(std::strerror(errno));
  if (S_ISDIR(status.st_mode)) stop(std::strerror(EISDIR));
  if (!S_ISREG(status.st_mode)) stop("not a regular file");

  MappedFile result;
  result.bytes = static_cast<size_t>(status.st_size);
  if (result.bytes == 0) return result;
  void* data =
      ::mmap(nullptr, result.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) stop(std::strerror(errno));
  result.memory = std::shared_ptr<std::byte>(
      static_cast<std::byte*>(data), [bytes = result.bytes](std::byte* p) { ::munmap(p, bytes); });
  return result;
}

}  // namespace faultline
