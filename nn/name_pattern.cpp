#include "nn/name_pattern.h"

#include <regex>

#include "core/error.h"

namespace faultline::nn {

struct NamePattern::Compiled {
  std::regex regex;
};

namespace {
constexpr size_t kLongest = 1000;

constexpr std::regex::flag_type syntax() {
#ifdef __GLIBCXX__
  // Without it a nested repetition takes time that is exponential in the name's length.
  return std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
  return std::regex::ECMAScript;
#endif
}
}  // namespace

NamePattern::NamePattern(const std::string& expression, const std::string& given) {
  require(given.size() <= kLongest, "pattern: {} characters are more than {}", given.size(),
          kLongest);
  try {
    compiled_ = std::make_shared<Compiled>(Compiled{std::regex(expression, syntax())});
  } catch (const std::regex_error& error) {
    fail("pattern: '{}' is no regular expression that can be used ({})", given, error.what());
  }
}

NamePattern NamePattern::whole(const std::string& expression) { return {expression, expression}; }

NamePattern NamePattern::end(const std::string& expression) {
  return {"(?:.*\\.)?(?:" + expression + ")", expression};
}

bool NamePattern::matches(const std::string& name) const {
  return std::regex_match(name, compiled_->regex);
}

}  // namespace faultline::nn
