#include "lab/html.h"

#include <fmt/format.h>

#include <algorithm>

namespace faultline::lab {

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '\0':  // no character of HTML
        result += "\xEF\xBF\xBD";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string linked(std::string_view text) {
  constexpr std::string_view kEnds = " \t\n\"'<>";
  constexpr std::string_view kPunctuation = ".,;:)]";  // behind an address, not of it
  std::string result;
  while (true) {
    const size_t begin = std::min(text.find("https://"), text.find("http://"));
    result += escaped(text.substr(0, begin));
    if (begin == std::string_view::npos) return result;
    text.remove_prefix(begin);
    std::string_view address = text.substr(0, text.find_first_of(kEnds));
    while (kPunctuation.find(address.back()) != std::string_view::npos) address.remove_suffix(1);
    result += fmt::format("<a href=\"{0}\" rel=\"noreferrer\">{0}</a>", escaped(address));
    text.remove_prefix(address.size());
  }
}

}  // namespace faultline::lab
