#include "core/state.h"

#include <charconv>

#include "core/error.h"

namespace faultline {
namespace {

template <class T>
T parse(const State& state, const std::string& name, const char* kind) {
  const auto found = state.values.find(name);
  require(found != state.values.end(), "state: no value '{}'", name);
  const std::string& text = found->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc{} && end == text.data() + text.size(),
          "state: '{}' should hold {}, it holds '{}'", name, kind, text);
  return value;
}

template <class Map>
Map under(const Map& map, const std::string& prefix) {
  Map result;
  for (auto item = map.lower_bound(prefix); item != map.end() && item->first.starts_with(prefix);
       ++item) {
    result.emplace(item->first.substr(prefix.size()), item->second);
  }
  return result;
}

}  // namespace

void State::add(const std::string& prefix, const State& other) {
  for (const auto& [name, tensor] : other.tensors) tensors[prefix + "." + name] = tensor;
  for (const auto& [name, value] : other.values) values[prefix + "." + name] = value;
}

State State::part(const std::string& prefix) const {
  return {under(tensors, prefix + "."), under(values, prefix + ".")};
}

int64_t State::integer(const std::string& name) const {
  return parse<int64_t>(*this, name, "an integer");
}

double State::real(const std::string& name) const { return parse<double>(*this, name, "a number"); }

const Tensor& State::tensor(const std::string& name) const {
  const auto found = tensors.find(name);
  require(found != tensors.end(), "state: no tensor '{}'", name);
  return found->second;
}

void State::set_integer(const std::string& name, int64_t value) {
  values[name] = std::to_string(value);
}

void State::set_real(const std::string& name, double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  values[name] = std::string(text, result.ptr);
}

}  // namespace faultline
