#pragma once

#include "lab/catalogue.h"

// Cases that are wrong on purpose: the runner must fail each for its own reason.
namespace faultline::lab {

void define_broken_cases(Catalogue& lab);

}  // namespace faultline::lab
