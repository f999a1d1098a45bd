#include "lab/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace faultline::lab {
namespace {

// |found - value| <= bound; a NaN is met by a NaN only, an infinity by itself.
bool meets(double found, double value, double bound) {
  if (std::isnan(value) || std::isnan(found)) return std::isnan(value) && std::isnan(found);
  if (std::isinf(value) || std::isinf(found)) return value == found;
  return std::abs(found - value) <= bound;
}

std::vector<std::string> names_of(const RunRecord& run) {
  std::vector<std::string> names;
  for (const Metric& metric : run.metrics.all()) names.push_back(metric.name);
  return names;
}

std::string describe(const diagnose::Detection& detection) {
  const char* cause = detection.cause.empty() ? "no known cause" : detection.cause.c_str();
  return fmt::format("{} names {} at step {} ({})", detection.detector, cause, detection.step,
                     detection.evidence);
}

std::string why_figures_fail(const CaseResult& result) {
  if (result.expected.empty()) {
    return "the case expects no figure; say with .expect what the faulty run must show";
  }
  for (const Expectation& figure : result.expected) {
    if (figure.bound != 0 && figure.reason.empty()) {
      return fmt::format("the bound of figure '{}' has no reason", figure.metric);
    }
    const auto faulty = result.faulty.metrics.find(figure.metric);
    const auto healthy = result.healthy.metrics.find(figure.metric);
    if (!faulty || !healthy) {
      return fmt::format("there is no metric '{}', of which a figure is expected", figure.metric);
    }
    if (!meets(*faulty, figure.value, figure.bound)) {
      return fmt::format("the faulty run shows {} = {}, expected {}{}", figure.metric, *faulty,
                         figure.value,
                         figure.bound == 0 ? "" : fmt::format(" within {}", figure.bound));
    }
    if (meets(*healthy, figure.value, figure.bound)) {
      return fmt::format("the healthy run shows the faulty figure {} = {} too", figure.metric,
                         *healthy);
    }
  }
  return "";
}

std::string why_detection_fails(const CaseResult& result, const Variant& variant) {
  if (result.faulty.detections.empty()) {
    return fmt::format("no detector fires in the faulty run; expected {}", variant.detector());
  }
  const diagnose::Detection& first = result.faulty.detections.front();
  if (first.detector != variant.detector() || first.cause != variant.fault_id()) {
    return fmt::format("{}, first; expected {} to name {}", describe(first), variant.detector(),
                       variant.fault_id());
  }
  for (const diagnose::Detection& other : result.faulty.detections) {
    const bool names_another = !other.cause.empty() && other.cause != variant.fault_id();
    if (names_another && other.confidence >= diagnose::kHint) {
      return fmt::format("{}, which is not the fault", describe(other));
    }
  }
  return "";
}

std::string why_fix_fails(const CaseResult& result, const Variant& variant) {
  if (variant.fixed_bound() != 0 && variant.fixed_reason().empty()) {
    return "the bound of the fixed run has no reason";
  }
  if (!result.fixed.detections.empty()) {
    return fmt::format("in the fixed run {}", describe(result.fixed.detections.front()));
  }
  if (same_figures(result.fixed, result.healthy, variant.fixed_bound())) return "";
  for (const Metric& metric : result.healthy.metrics.all()) {
    const double fixed = *result.fixed.metrics.find(metric.name);
    if (!meets(fixed, metric.value, variant.fixed_bound() * std::abs(metric.value))) {
      return fmt::format("the fixed run shows {} = {}, the healthy one {}", metric.name, fixed,
                         metric.value);
    }
  }
  return "the fixed run's figures differ from the healthy ones";
}

}  // namespace

bool same_figures(const RunRecord& a, const RunRecord& b, double relative_bound) {
  if (names_of(a) != names_of(b)) return false;
  return std::all_of(a.metrics.all().begin(), a.metrics.all().end(), [&](const Metric& metric) {
    const double other = *b.metrics.find(metric.name);
    return meets(metric.value, other, relative_bound * std::abs(other));
  });
}

std::string why_not_proven(const CaseResult& result, const Variant& variant) {
  if (names_of(result.healthy) != names_of(result.faulty) ||
      names_of(result.healthy) != names_of(result.fixed)) {
    return "healthy, faulty and fixed have metrics of different names";
  }
  if (!result.healthy.detections.empty()) {
    return fmt::format("in the healthy run {}", describe(result.healthy.detections.front()));
  }
  if (std::string why = why_figures_fail(result); !why.empty()) return why;
  if (std::string why = why_detection_fails(result, variant); !why.empty()) return why;
  return why_fix_fails(result, variant);
}

Outcome judge_claim(const RunRecord& claimed, const RunRecord& healthy, const Variant& variant) {
  if (claimed.detections.empty() && same_figures(claimed, healthy, variant.fixed_bound())) {
    return Outcome::works;
  }
  const bool seen =
      std::any_of(claimed.detections.begin(), claimed.detections.end(),
                  [&](const diagnose::Detection& d) { return d.detector == variant.detector(); });
  return seen ? Outcome::fails : Outcome::hides;
}

}  // namespace faultline::lab
