#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace faultline {

// A file in memory, read as it is touched. The pages are private: writing to them changes neither
// the file nor what others see. Who cuts the file short while it is mapped ends the process, so we
// replace files only by renaming.
struct MappedFile {
  std::shared_ptr<std::byte> memory;  // keeps the mapping; null for an empty file
  size_t bytes = 0;

  std::span<const std::byte> content() const { return {memory.get(), bytes}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(memory.get()), bytes}; }
};

// Throws IoError naming the path when it is not a regular file that can be read.
MappedFile map_file(const std::string& path);

}  // namespace faultline
