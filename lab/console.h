#pragma once

#include "lab/catalogue.h"
#include "lab/result.h"

// What the lab says to a person. Nothing here prints.
namespace faultline::lab {

// The lines of one case: name and title; healthy, faulty, fixed (and claimed, where an article has
// a remedy of its own) with their figures and what the detectors said; the verdict.
std::string case_text(const CaseResult& result);

// One line about all of them.
std::string summary_text(const std::vector<CaseResult>& results, double seconds);

// `lab --list`, for a person and as the contract gives it.
std::string list_text(const std::vector<Catalogue::Entry>& entries);
Json list_json(const std::vector<Catalogue::Entry>& entries);

// `explain ID`, for a terminal of `width` columns, and `explain ID:VARIANT`, which tells of that
// variant alone.
std::string explain_text(const Fault& fault, int width = 80);
std::string explain_text(const Catalogue::Entry& entry, int width = 80);
// All that a fault's page needs: the keys of the contract, and beside them the texts for a page,
// the detectors with the causes that they tell apart, and each variant's figures and training form.
Json explain_json(const Fault& fault);
// The same of one variant alone.
Json explain_json(const Catalogue::Entry& entry);

// `explain` without an id: the faults, domain by domain.
std::string faults_text(const Catalogue& catalogue, int width = 80);

}  // namespace faultline::lab
