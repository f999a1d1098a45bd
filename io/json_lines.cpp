#include "io/json_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace faultline {
namespace {

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw IoError(fmt::format("cannot write {}: {}", path, std::strerror(error)));
}

// Calls `visit(line with its end, object)` for every whole line.
template <class Visit>
void for_each_line(const std::string& path, Visit&& visit) {
  const MappedFile file = map_file(path);
  const std::string_view text = file.text();
  int64_t number = 1;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string_view::npos; at = end + 1) {
    const std::string where = fmt::format("{}, line {}", path, number++);
    const std::string_view line = text.substr(at, end + 1 - at);
    const Json object = Json::parse(line, where);
    require(object.is(Json::Kind::object), "{}: expected an object, found {}", where,
            name(object.kind()));
    visit(line, object);
  }
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

void cut_torn_line(const std::string& path) {
  if (!exists(path)) return;
  const MappedFile file = map_file(path);
  const size_t last_end = file.text().rfind('\n');
  const size_t whole = last_end == std::string_view::npos ? 0 : last_end + 1;
  if (whole != file.bytes && ::truncate(path.c_str(), static_cast<off_t>(whole)) != 0) {
    cannot_write(path, errno);
  }
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(std::string path) : path_(std::move(path)) {
  std::error_code error;
  const auto parent = std::filesystem::path(path_).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) cannot_write(path_, error.value());
  cut_torn_line(path_);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) cannot_write(path_, errno);
}

JsonLinesWriter::~JsonLinesWriter() { ::close(file_); }

void JsonLinesWriter::write(const Json& object) {
  require(object.is(Json::Kind::object), "{}: a line is an object, {} was given", path_,
          name(object.kind()));
  const std::string line = object.to_text() + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  ssize_t written = 0;
  do {
    written = ::write(file_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  // A short write means that the disk is full.
  const int reason = written < 0 ? errno : ENOSPC;
  if (written > 0 && before >= 0 && ::ftruncate(file_, before) != 0) cannot_write(path_, errno);
  cannot_write(path_, reason);
}

std::vector<Json> read_json_lines(const std::string& path) {
  std::vector<Json> lines;
  for_each_line(path, [&](std::string_view, const Json& object) { lines.push_back(object); });
  return lines;
}

void cut_back(const std::string& path, int64_t step) {
  if (!exists(path)) return;
  std::string kept;
  for_each_line(path, [&](std::string_view line, const Json& object) {
    const Json* at = object.find("step");
    const bool is_later = at != nullptr && at->is(Json::Kind::integer) && at->integer() > step;
    if (!is_later) kept += line;
  });
  write_file_atomically(path, kept);
}

}  // namespace faultline
