#pragma once

#include "lab/catalogue.h"

// Cases that are wrong on purpose: the runner must fail each for its own reason.
namespace faultline::lab {

void define_broken_cases(Catalogue& lab);

// One that a catalogue would not take.
Fault fault_without_figure();

}  // namespace faultline::lab
