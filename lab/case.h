#pragma once

#include "lab/catalogue.h"

// One fault, one file: all that a file in lab/cases/ includes. A case tells what happens, holds the
// wrong code, the run that shows it, the figures that it must show, and who must catch it:
//
//   FAULT(adamw_step_counter) {
//     Fault& fault = lab.fault({.id = "adamw.step-counter", .domain = "optimizer", ...});
//     fault.variant("bf16", "A step counter in bf16 stops at 256")
//         .wrong([](Context& c) { return c.seams.replace<optim::StepCounterSeam>(...); })
//         .run<ConstantGradient>(1000)
//         .expect("counted", 256)
//         .caught_by("counter.advances")
//         .in_training({.steps = 400});
//   }
//
// docs/how-to/add-a-fault.md walks through one.
#define FAULT(stem) void define_##stem([[maybe_unused]] ::faultline::lab::Catalogue& lab)
