#pragma once

#include <string>
#include <string_view>

namespace faultline {

// Any bytes as a text that JSON holds and that reads as it is in the usual case: bytes that are not
// ASCII, the percent sign, and the leading '_' of a name that begins with "__" become %XX.
std::string percent_encoded(std::string_view bytes);

// The bytes again. A percent sign without two hexadecimal digits stays.
std::string percent_decoded(std::string_view text);

}  // namespace faultline
