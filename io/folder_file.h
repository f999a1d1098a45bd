#pragma once

#include <string>

namespace faultline {

// The path FOLDER/NAME of a file of a model folder that is read and may be passed on. Somebody else
// may have made the folder: a link in it must not carry a file of this machine into what is
// written. So the file, links followed, must lie in the folder itself or, as in the Hub's cache,
// where MODEL/snapshots/REVISION/FILE is a link to MODEL/blobs/HASH, among the blobs. Throws
// InvalidArgument naming the path where it does not; a file that is not there is left to the
// reader to refuse.
std::string path_inside(const std::string& folder, const std::string& name);

}  // namespace faultline
