#include "io/folder_file.h"

#include <filesystem>

#include "core/error.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& folder, const fs::path& file) {
  if (file.parent_path() == folder) return true;
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" &&
         file.parent_path() == snapshots.parent_path() / "blobs";
}

}  // namespace

std::string path_inside(const std::string& folder, const std::string& name) {
  std::string path = folder + "/" + name;
  std::error_code missing;
  const fs::path place = fs::canonical(folder, missing);
  if (missing) return path;
  const fs::path file = fs::canonical(path, missing);
  if (missing) return path;
  require(is_inside(place, file), "{}: is a link that leaves the folder; put the file itself there",
          path);
  return path;
}

}  // namespace faultline
