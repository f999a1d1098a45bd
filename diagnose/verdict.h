#pragma once

#include <string>

#include "diagnose/detector.h"
#include "io/json.h"

namespace faultline::diagnose {

// What a watched run amounts to, in the shape that the command line's contract gives: verdict,
// causes ranked best first, the checks that ran and those that did not, with the reason; beside
// them `unexplained`, what is wrong without a cause that we know. The verdict is "fault" where a
// cause is named with more than a hint; "undecided" where there are only hints or the unexplained,
// or no check had anything to judge; else "healthy".
Json verdict_json(const Watch& watch);

// Writes it to DIR/verdict.json, whose directory is there, whole or not at all. Throws IoError.
void write_verdict(const std::string& directory, const Watch& watch);

// The same for a person, a few lines ending in a line end.
std::string verdict_text(const Watch& watch);

// A detection as the contract gives it, and back.
Json to_json(const Detection& detection);
Detection detection_from_json(const Json& json);

}  // namespace faultline::diagnose
