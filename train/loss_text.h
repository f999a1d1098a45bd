#pragma once

#include <string>

namespace faultline::train {

// A loss for whoever reads it: "1.5842"; a NaN without the sign that its bits may carry.
std::string loss_text(double loss);

}  // namespace faultline::train
