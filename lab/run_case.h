#pragma once

#include "lab/catalogue.h"
#include "lab/result.h"

namespace faultline::lab {

// Runs a case in this process: healthy, faulty, fixed and, where there is one, claimed, each on a
// Context of its own that every detector watches at the deepest level. Whatever an experiment
// throws becomes the reason why the case is not verified.
CaseResult run_case(
    const Catalogue::Entry& entry, const RunOptions& options,
    const std::vector<diagnose::DetectorDefinition>& detectors = diagnose::all_detectors());

}  // namespace faultline::lab
