#include "lab/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace faultline::lab {
namespace {

// The metrics to show: those of which a figure is expected, else the first few.
std::vector<std::string> shown_metrics(const CaseResult& result) {
  constexpr size_t kMost = 4;
  std::vector<std::string> names;
  for (const Expectation& expected : result.expected) {
    if (names.size() < kMost) names.push_back(expected.metric);
  }
  for (const Metric& metric : result.healthy.metrics.all()) {
    if (names.size() >= 2 || !result.expected.empty()) break;
    names.push_back(metric.name);
  }
  return names;
}

// "1000 counted" or "p 0.204108"; columns of one name are of one width.
std::string column(const RunRecord& run, const std::string& name, size_t width) {
  for (const Metric& metric : run.metrics.all()) {
    if (metric.name != name) continue;
    const std::string value = figure(metric.value, metric.is_count);
    return metric.is_count ? fmt::format("{:>{}} {}", value, width, name)
                           : fmt::format("{} {:>{}}", name, value, width);
  }
  return "";
}

size_t width_of(const CaseResult& result, const std::string& name) {
  size_t width = 0;
  for (const RunRecord* run : {&result.healthy, &result.faulty, &result.fixed}) {
    for (const Metric& metric : run->metrics.all()) {
      if (metric.name != name) continue;
      width = std::max(width, figure(metric.value, metric.is_count).size());
    }
  }
  return width;
}

std::string run_line(const char* label, const CaseResult& result, const RunRecord& run,
                     const std::string& ending) {
  std::string line = fmt::format("  {:<8} ", label);
  for (const std::string& name : shown_metrics(result)) {
    line += column(run, name, width_of(result, name)) + "  ";
  }
  return line + ending + "\n";
}

std::string detections(const RunRecord& run) {
  if (run.detections.empty()) return "silent";
  const diagnose::Detection& first = run.detections.front();
  const std::string op = first.op.empty() ? "" : ", op " + first.op;
  return fmt::format("{}, step {}{}", first.detector, first.step, op);
}

std::string training_text(const Variant& variant) {
  return variant.has_training_form() ? fmt::format("{} steps", variant.training().steps) : "-";
}

}  // namespace

std::string case_text(const CaseResult& result) {
  std::string text = fmt::format("{}   {}\n", result.full_name(), result.title);
  const std::string equal = result.fixed_bound == 0
                                ? "equal to healthy"
                                : fmt::format("within {} of healthy", result.fixed_bound);
  text += run_line("healthy", result, result.healthy, detections(result.healthy));
  text += run_line("faulty", result, result.faulty, detections(result.faulty));
  text += run_line("fixed", result, result.fixed,
                   result.verified() ? "silent, " + equal : detections(result.fixed));
  if (result.claimed) {
    text += run_line("claimed", result, *result.claimed,
                     fmt::format("{}: {}", name(result.outcome), detections(*result.claimed)));
  }
  if (result.verified()) {
    text += fmt::format("  verified {:.1f} s   faultline explain {}\n", result.seconds, result.id);
  } else {
    text += fmt::format("  FAILED   {:.1f} s   {}\n", result.seconds, result.why);
  }
  return text;
}

std::string summary_text(const std::vector<CaseResult>& results, double seconds) {
  std::vector<std::string> failed;
  for (const CaseResult& result : results) {
    if (!result.verified()) failed.push_back(result.full_name());
  }
  const std::string counted =
      fmt::format("{} {}", results.size(), results.size() == 1 ? "case" : "cases");
  if (failed.empty()) return fmt::format("{}, all verified, {:.1f} s\n", counted, seconds);
  return fmt::format("{}, {} verified, {} FAILED: {}, {:.1f} s\n", counted,
                     results.size() - failed.size(), failed.size(), fmt::join(failed, ", "),
                     seconds);
}

std::string list_text(const std::vector<Catalogue::Entry>& entries) {
  size_t width = 0;
  for (const auto& entry : entries) width = std::max(width, entry.variant->full_name().size());
  std::string text;
  for (const auto& [fault, variant] : entries) {
    text += fmt::format("{:<{}}  {:<10} {:<8} {:<10} {}\n", variant->full_name(), width,
                        fault->text().domain, fault->text().seed, training_text(*variant),
                        variant->title());
  }
  return text;
}

Json list_json(const std::vector<Catalogue::Entry>& entries) {
  Json list = Json::array();
  for (const auto& [fault, variant] : entries) {
    list.push(Json::object()
                  .set("id", fault->text().id)
                  .set("variant", variant->name())
                  .set("title", variant->title())
                  .set("domain", fault->text().domain)
                  .set("seed", fault->text().seed)
                  .set("train", variant->has_training_form()));
  }
  return list;
}

}  // namespace faultline::lab
