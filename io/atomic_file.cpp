#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
  throw IoError(fmt::format("cannot write {}: {}", path, why));
}
[[noreturn]] void cannot_write(const std::string& path) {
  cannot_write(path, std::strerror(errno));
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// "a/b/" names the same as "a/b".
std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void make_parents(const std::string& path) {
  std::error_code error;
  fs::create_directories(parent_of(path), error);
  if (error) cannot_write(path, error.message());
}

// Calls `create` with temporary names beside `path` until one is new; returns it. Two writers of
// one path never share a name.
template <class Create>
std::string new_temporary(const std::string& path, Create&& create) {
  for (int n = 0;; ++n) {
    std::string name = fmt::format("{}/.{}.partial-{}-{}", parent_of(path),
                                   fs::path(path).filename().string(), ::getpid(), n);
    if (create(name.c_str()) >= 0) return name;
    if (errno != EEXIST) cannot_write(path);
  }
}

void sync_directory(const std::string& directory, const std::string& path) {
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) cannot_write(path);
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  // Some file systems have no sync for directories and say so.
  if (result != 0 && error != EINVAL && error != ENOTSUP) {
    cannot_write(path, std::strerror(error));
  }
}

// Gives the directory `temporary` the name `path`, which another one has. Returns where that is
// now.
std::string take_name(const std::string& temporary, const std::string& path) {
  const char* from = temporary.c_str();
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return temporary;
  if (errno != EINVAL && errno != ENOSYS) cannot_write(path);
  // The file system cannot exchange names: for a moment the old one has only its temporary name.
  std::string old = temporary + "-old";
  if (::rename(path.c_str(), old.c_str()) != 0) cannot_write(path);
  if (::rename(from, path.c_str()) == 0) return old;
  const int error = errno;
  ::rename(old.c_str(), path.c_str());
  cannot_write(path, std::strerror(error));
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  make_parents(path_);
  temporary_ = new_temporary(path_, [&](const char* name) {
    return file_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot_write(path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(file_) != 0) cannot_write(path_);
  if (::close(std::exchange(file_, -1)) != 0) cannot_write(path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot_write(path_);
  temporary_.clear();
  sync_directory(parent_of(path_), path_);
}

AtomicDirectory::AtomicDirectory(std::string path) : path_(without_slashes(std::move(path))) {
  make_parents(path_);
  temporary_ = new_temporary(path_, [](const char* name) { return ::mkdir(name, 0777); });
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit_new() {
  sync_directory(temporary_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot_write(path_);
  temporary_.clear();
  sync_directory(parent_of(path_), path_);
}

void AtomicDirectory::commit() {
  sync_directory(temporary_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    temporary_.clear();
  } else if (errno == ENOTEMPTY || errno == EEXIST) {
    // The old one is left under a temporary name, and the destructor removes it.
    temporary_ = take_name(temporary_, path_);
  } else {
    cannot_write(path_);
  }
  sync_directory(parent_of(path_), path_);
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace faultline
