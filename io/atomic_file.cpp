#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/whole_number.h"

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

// What the temporary names of `path` begin with; the writer's process and a number follow.
std::string temporary_prefix(const std::string& path) {
  return fmt::format(".{}.partial-", fs::path(path).filename().string());
}

// Calls `create` with temporary names beside `path` until one is new; returns it. Two writers of
// one path never share a name.
template <class Create>
std::string new_temporary(const std::string& path, Create&& create) {
  for (int n = 0;; ++n) {
    std::string name =
        fmt::format("{}/{}{}-{}", parent_of(path), temporary_prefix(path), ::getpid(), n);
    if (create(name.c_str()) >= 0) return name;
    if (errno != EEXIST) cannot_write(path);
  }
}

// The process in "PID-N"; none in any other text, as in the "PID-N-old" of take_name, which may be
// all that is left of what was there.
std::optional<pid_t> writer_in(std::string_view text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos || !whole_number<int>(text.substr(dash + 1))) return {};
  return whole_number<pid_t>(text.substr(0, dash));
}

// Whether nobody writes it any more. A process of another container is in no table of ours, but
// holds its lock.
bool is_abandoned(const fs::path& temporary, pid_t writer) {
  if (writer <= 0 || ::kill(writer, 0) == 0 || errno != ESRCH) return false;
  const int file = ::open(temporary.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  const bool free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return free;
}

// Removes what killed writers of `path` left beside it. Whether it can does not matter.
void remove_abandoned(const std::string& path) {
  const std::string prefix = temporary_prefix(path);
  std::error_code error;
  fs::directory_iterator entry(parent_of(path), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const auto writer = writer_in(std::string_view(name).substr(prefix.size()));
    std::error_code ignored;
    if (writer && is_abandoned(entry->path(), *writer)) fs::remove_all(entry->path(), ignored);
  }
}

// Whether what is there is neither a file nor a directory, such as a device or a pipe.
bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

// The name of the file that `path` leads to, there or not. None where a link of /proc leads to it,
// as /dev/stdout does: that is a file which somebody has open, and a new one would not reach them.
std::optional<std::string> name_of_file(const std::string& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  fs::path place = path;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    if (!fs::is_symlink(place, error)) return place.string();
    const fs::path folder = fs::canonical(parent_of(place.string()), error);
    if (folder.string().starts_with("/proc/")) return std::nullopt;
    place = folder / fs::read_symlink(place, error);
  }
  cannot_write(path, std::strerror(ELOOP));
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
  const std::optional<std::string> place = name_of_file(path_);
  if (!place || is_special(path_)) {
    file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
    if (file_ < 0) cannot_write(path_);
    return;
  }
  place_ = *place;
  const std::string folder = parent_of(place_);
  std::error_code unknown;
  if (!fs::exists(folder, unknown) && !unknown) {
    cannot_write(path_, fmt::format("there is no directory {}", folder));
  }
  remove_abandoned(place_);
  temporary_ = new_temporary(place_, [&](const char* name) {
    return file_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
  ::flock(file_, LOCK_EX | LOCK_NB);
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
  // Devices and pipes have nothing to sync.
  if (!temporary_.empty() && ::fsync(file_) != 0) cannot_write(path_);
  if (::close(std::exchange(file_, -1)) != 0) cannot_write(path_);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), place_.c_str()) != 0) cannot_write(path_);
  temporary_.clear();
  sync_directory(parent_of(place_), path_);
}

AtomicDirectory::AtomicDirectory(std::string path) : path_(without_slashes(std::move(path))) {
  make_parents(path_);
  remove_abandoned(path_);
  temporary_ = new_temporary(path_, [](const char* name) { return ::mkdir(name, 0777); });
  lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ >= 0) ::flock(lock_, LOCK_EX | LOCK_NB);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  unlock();
}

void AtomicDirectory::unlock() {
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

void AtomicDirectory::commit_new() {
  sync_directory(temporary_, path_);
  unlock();  // it belongs to who opens it next
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const bool taken = errno == ENOTEMPTY || errno == EEXIST;
    if (taken) cannot_write(path_, "another process wrote it meanwhile; it is left as it is");
    cannot_write(path_);
  }
  temporary_.clear();
  sync_directory(parent_of(path_), path_);
}

void AtomicDirectory::commit() {
  sync_directory(temporary_, path_);
  unlock();
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
