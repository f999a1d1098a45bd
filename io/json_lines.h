#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"

namespace faultline {

// A file of JSON objects, one a line, that only grows. A line is handed to the system with one
// write as soon as it is complete, so a process that dies leaves whole lines and at most one torn
// one, the last.
class JsonLinesWriter {
 public:
  // Opens the file to append, making it and its directory where they are missing, and cuts off a
  // torn last line. Throws IoError.
  explicit JsonLinesWriter(std::string path);
  ~JsonLinesWriter();
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  // Appends one line. Throws IoError when it cannot be written whole; what was written of it is cut
  // off again.
  void write(const Json& object);

 private:
  std::string path_;
  int file_ = -1;
};

// All lines of the file, in order; a last line without its line end is torn and left out. Throws
// IoError when the file cannot be read, InvalidArgument naming file and line when one is no object.
std::vector<Json> read_json_lines(const std::string& path);

// Rewrites the file, atomically and byte for byte, to the lines whose integer "step" is at most
// `step` and the lines that have no step; a torn last line goes. A file that is not there stays so.
void cut_back(const std::string& path, int64_t step);

}  // namespace faultline
