#pragma once

#include "lab/catalogue.h"
#include "lab/result.h"

namespace faultline::lab {

// What a report says about the run of the lab as a whole.
struct ReportFacts {
  uint64_t seed = 1;
  double seconds = 0;
  std::string date;  // as it is to be shown
};

// One HTML file about `results`, which belong to `entries` in the same order: a summary, which
// detector fired in which case, then each fault with the runs of its cases, pictures and texts;
// failed cases first. It needs no other file and no network.
std::string report_html(const std::vector<Catalogue::Entry>& entries,
                        const std::vector<CaseResult>& results, const ReportFacts& facts);

}  // namespace faultline::lab
