#pragma once

#include <string_view>

#include "lab/catalogue.h"
#include "lab/result.h"

// The parts of which report.cpp makes the report.
namespace faultline::lab {

// Files of lab/report/, built into the program by cmake/Report.cmake.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;
extern const std::string_view kVega;  // "" where libjs-vega was not there

// A run of a case under its name: healthy, faulty, fixed and, where an article has a remedy of its
// own, claimed.
struct NamedRun {
  const char* name;
  const RunRecord* run;
};
std::vector<NamedRun> runs_of(const CaseResult& result);

// A case: its runs side by side, what was expected, what fired, its pictures.
std::string case_html(const Variant& variant, const CaseResult& result);

// The pictures of a case as tables, from which the script draws.
std::string pictures_html(const CaseResult& result);

}  // namespace faultline::lab
