#pragma once

#include <string>
#include <string_view>

namespace faultline {

// A split pattern as PCRE2 must be given it to match what Oniguruma matches. Throws InvalidArgument
// beginning with `where` when the pattern uses what the two read differently; split_rule.h lists
// what is taken.
std::string pcre_pattern(std::string_view pattern, const std::string& where);

}  // namespace faultline
