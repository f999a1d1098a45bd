#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"
#include "train/lora.h"

namespace faultline::train {
namespace {

const std::vector<std::string> kLoraKeys = {"r",      "alpha",        "targets",       "dropout",
                                            "rslora", "rank_pattern", "alpha_pattern", "regex"};

template <class T>
T number(const std::string& key, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  require(result.ec == std::errc{} && result.ptr == end, "lora: {} takes a number, got '{}'", key,
          text);
  return value;
}

std::vector<std::string> parts(const std::string& text, char between) {
  std::vector<std::string> result;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(between, begin);
    result.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return result;
}

// "c_attn:4+mlp.c_proj:2", in its order: the first pattern that matches a layer counts.
template <class T>
std::vector<std::pair<std::string, T>> patterns(const std::string& key, const std::string& text) {
  std::vector<std::pair<std::string, T>> result;
  for (const std::string& part : parts(text, '+')) {
    const size_t colon = part.rfind(':');
    require(colon != std::string::npos && colon > 0,
            "lora: {} takes PATTERN:NUMBER, several with + between them, got '{}'", key, part);
    const std::string pattern = part.substr(0, colon);
    for (const auto& [earlier, value] : result) {
      require(earlier != pattern, "lora: {} has '{}' twice; leave one out", key, pattern);
    }
    result.emplace_back(pattern, number<T>(key, part.substr(colon + 1)));
  }
  return result;
}

void set(nn::LoraConfig& config, const std::string& key, const std::string& value) {
  using Kind = nn::LoraTargets::Kind;
  if (key == "r") {
    config.rank = number<int64_t>(key, value);
  } else if (key == "alpha") {
    config.alpha = number<double>(key, value);
  } else if (key == "dropout") {
    config.dropout = number<double>(key, value);
  } else if (key == "rslora") {
    require(value == "true" || value == "false", "lora: rslora takes true or false, got '{}'",
            value);
    config.scaling = value == "true" ? nn::LoraScaling::by_root_of_rank : nn::LoraScaling::by_rank;
  } else if (key == "rank_pattern") {
    config.rank_pattern = patterns<int64_t>(key, value);
  } else if (key == "alpha_pattern") {
    config.alpha_pattern = patterns<double>(key, value);
  } else if (key == "regex") {
    config.targets = {Kind::expression, {value}};
  } else if (key == "targets") {
    config.targets = {Kind::suffixes, parts(value, '+')};
    if (value == "all-linear") config.targets = {};
  } else {
    fail("lora: there is no key '{}'; {}", key, suggestion(key, kLoraKeys));
  }
}

}  // namespace

nn::LoraConfig lora_from_text(const std::string& text) {
  nn::LoraConfig config;
  std::set<std::string> given;
  std::string left = text;
  while (!left.empty()) {
    const size_t equals = left.find('=');
    require(equals != std::string::npos, "lora: expected r=8,alpha=16, got '{}'", text);
    const std::string key = left.substr(0, equals);
    left.erase(0, equals + 1);
    const size_t end = key == "regex" ? std::string::npos : left.find(',');
    set(config, key, left.substr(0, end));
    require(given.insert(key).second, "lora: {} is given twice in '{}'; leave one out", key, text);
    left = end == std::string::npos ? "" : left.substr(end + 1);
    require(end == std::string::npos || !left.empty(), "lora: '{}' ends in a comma", text);
  }
  require(!given.contains("targets") || !given.contains("regex"),
          "lora: targets and regex both choose the layers; leave one out of '{}'", text);
  config.check();
  return config;
}

}  // namespace faultline::train
