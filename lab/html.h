#pragma once

#include <string>
#include <string_view>

namespace faultline::lab {

// `text` so that HTML shows it as it is, between tags and in a quoted attribute.
std::string escaped(std::string_view text);

// The same with its http addresses as links.
std::string linked(std::string_view text);

}  // namespace faultline::lab
