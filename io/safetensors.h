#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/tensor.h"
#include "io/mapped_file.h"

namespace faultline {

// Called between tensors by what writes many, so that a user may stop it.
using BetweenTensors = std::function<void()>;

// The safetensors format (github.com/huggingface/safetensors): eight bytes with the length of a
// JSON header, the header, then the tensors without gaps, little-endian and row-major. The dtypes
// F64, F32, F16, BF16, I64, I32, U8 and BOOL are read and written; up to six dimensions.
struct Safetensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Maps the file. Tensors are views of the mapping, which lives as long as one of them; one that is
// not aligned for its dtype is a copy. Writing to a tensor does not reach the file. NaN and
// infinities are values like any other.
// Throws IoError when the file cannot be read; InvalidArgument, one line that names the file, the
// tensor, what was expected and what was found, when any rule of the format is broken: nothing in
// the file is trusted. A pickle under such a name is refused as one.
Safetensors read_safetensors(const std::string& path);
// The same for a file that is mapped already; `path` is for the errors.
Safetensors read_safetensors(const MappedFile& file, const std::string& path);

// Writes the tensors (of any layout and device; no c128), largest element size first and by name
// within one size, with the metadata {"format": "pt"} and the caller's. Names and metadata must be
// UTF-8 and no tensor be named __metadata__: InvalidArgument otherwise. The file appears whole
// or not at all: see AtomicFile. `between` is called before each tensor, and what it throws ends
// the writing.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const BetweenTensors& between = {});

}  // namespace faultline
