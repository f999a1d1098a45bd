#pragma once

#include "lab/result.h"

namespace faultline::lab {

// Why the runs of a case do not prove it, in one line, or "" when they do. A case is proven when
//   - it expects at least one figure, and every bound has a reason;
//   - all runs have metrics of the same names;
//   - the healthy run shows none of the figures, and no detector fires;
//   - the faulty run shows all of them; the case's detector ranks first and names this fault, and
//     no detector claims another fault (hints aside);
//   - the fixed run equals the healthy one, bitwise or within the case's bound, and no detector
//     fires.
std::string why_not_proven(const CaseResult& result, const Variant& variant);

// Whether two runs have the same figures, bitwise or within a relative bound. NaN equals NaN.
bool same_figures(const RunRecord& a, const RunRecord& b, double relative_bound);

// What a claimed remedy did, from what was measured.
Outcome judge_claim(const RunRecord& claimed, const RunRecord& healthy, const Variant& variant);

}  // namespace faultline::lab
