#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/state.h"
#include "io/safetensors.h"

namespace faultline {

// A checkpoint is a directory DIR/checkpoints/step_N with two files:
//   state.safetensors  every tensor of a State
//   state.json         {"checksum":..,"content":{"format":1,"step":N,"values":{..},
//                      "tensors":{name: xxh64},"file":{"bytes":..,"xxh64":..}}}, where checksum is
//                      the XXH64 of the content's text
// It is written under a temporary name, synced and renamed, so step_N is whole or not there. Every
// bit of both files is covered by a checksum. Names and values may hold any bytes: what JSON cannot
// hold, and the percent sign, is written %XX.

// Saves `state` as the checkpoint of `step` of the run in `run_dir`, in place of one that is there.
// Returns its path. Throws IoError, and leaves what was there before, when it cannot be written;
// InvalidArgument on a negative step. What `between` throws ends it, see write_safetensors.
std::string save_checkpoint(const std::string& run_dir, int64_t step, const State& state,
                            const BetweenTensors& between = {});

struct Checkpoint {
  int64_t step = 0;
  // Tensors are views of the mapped file; it may be replaced or deleted while they live.
  State state;
};

// Reads and verifies the checkpoint directory `path`. Throws IoError when a file cannot be read;
// InvalidArgument that names the damaged tensor or file and what to do.
Checkpoint load_checkpoint(const std::string& path);

// Path of the run's checkpoint with the highest step; none when it has no checkpoint. What a crash
// left under a temporary name does not count. Does not look inside: a damaged one is an error when
// it is loaded, never passed over in silence.
std::optional<std::string> latest_checkpoint(const std::string& run_dir);

}  // namespace faultline
