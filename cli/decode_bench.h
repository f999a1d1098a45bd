#pragma once

#include <cstdint>
#include <string>

#include "train/config.h"

namespace faultline::cli {

struct DecodeBench {
  std::string model;  // as the user named it
  train::Config config;
  int64_t tokens = 0;   // to time, after two to warm up
  int64_t threads = 0;  // 0: all
  std::string json;
};

// Times tokens that a model of random weights generates one by one behind a short prompt, with a
// cache, and says how near they come to reading every weight once a token. Prints the result.
void run_decode_bench(const DecodeBench& bench);

}  // namespace faultline::cli
