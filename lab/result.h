#pragma once

#include "diagnose/detector.h"
#include "io/json.h"
#include "lab/fault.h"

namespace faultline::lab {

// What one run of a case showed.
struct RunRecord {
  Metrics metrics;
  std::vector<diagnose::Detection> detections;  // best first
};

// What became of a remedy that an article claims.
enum class Outcome : uint8_t {
  works,  // equal to the healthy run, and no detector fires
  hides,  // the fault's own detector falls silent, but the numbers are not the healthy ones
  fails,  // the fault is still seen
};
const char* name(Outcome outcome);

struct CaseResult {
  std::string id;
  std::string variant;
  std::string title;
  std::string seed;  // section of the source article
  std::string domain;
  RunRecord healthy;
  RunRecord faulty;
  RunRecord fixed;
  std::optional<RunRecord> claimed;
  Outcome outcome = Outcome::fails;  // of `claimed`
  std::vector<Expectation> expected;
  double fixed_bound = 0;  // relative; 0: bitwise
  std::string why;         // why it is not verified; empty: it is
  double seconds = 0;

  bool verified() const { return why.empty(); }
  std::string full_name() const { return variant.empty() ? id : id + ":" + variant; }
};

// A result that has only its names and texts yet.
CaseResult blank_result(const Fault& fault, const Variant& variant);

// A figure as people read it: a count to its last digit, a measure to six decimals.
std::string figure(double value, bool is_count);

// In the shape of the command line's contract; from_json restores every bit.
Json to_json(const CaseResult& result);
CaseResult result_from_json(const Json& json);

}  // namespace faultline::lab
