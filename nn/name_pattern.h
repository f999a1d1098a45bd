#pragma once

#include <memory>
#include <string>

namespace faultline::nn {

// A regular expression (ECMAScript) over the names of modules. Takes time that is a polynomial of
// the two lengths, whoever wrote it. Making one throws InvalidArgument when the text is none, has
// more than 1,000 characters or a back reference.
class NamePattern {
 public:
  // The whole name.
  static NamePattern whole(const std::string& expression);
  // The whole name, or an end of it that follows a dot.
  static NamePattern end(const std::string& expression);

  bool matches(const std::string& name) const;

 private:
  NamePattern(const std::string& expression, const std::string& given);

  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace faultline::nn
