#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/html.h"
#include "lab/report_parts.h"

namespace faultline::lab {
namespace {

// The figures of any run, in the order in which they were set: a run that broke has none.
std::vector<Metric> metrics_of(const CaseResult& result) {
  std::vector<Metric> metrics;
  for (const auto& [label, run] : runs_of(result)) {
    for (const Metric& metric : run->metrics.all()) {
      const auto known = std::find_if(metrics.begin(), metrics.end(),
                                      [&](const Metric& m) { return m.name == metric.name; });
      if (known == metrics.end()) metrics.push_back(metric);
    }
  }
  return metrics;
}

const Expectation* expected_of(const CaseResult& result, const std::string& metric) {
  for (const Expectation& expected : result.expected) {
    if (expected.metric == metric) return &expected;
  }
  return nullptr;
}

std::string expected_cell(const Expectation* expected, bool is_count) {
  if (expected == nullptr) return "<td></td>";
  const std::string value = figure(expected->value, is_count);
  return expected->bound == 0 ? fmt::format("<td>{}</td>", value)
                              : fmt::format("<td>{} &plusmn; {:g}</td>", value, expected->bound);
}

std::string metric_row(const CaseResult& result, const Metric& metric) {
  const Expectation* expected = expected_of(result, metric.name);
  std::string row =
      fmt::format("<tr{}><th scope=\"row\">{}</th>", expected != nullptr ? " class=\"asked\"" : "",
                  escaped(metric.name));
  for (const auto& [label, run] : runs_of(result)) {
    const auto value = run->metrics.find(metric.name);
    row += fmt::format("<td>{}</td>", value ? figure(*value, metric.is_count) : "none");
    if (run == &result.faulty) row += expected_cell(expected, metric.is_count);
  }
  return row + "</tr>\n";
}

std::string detector_row(const CaseResult& result) {
  std::string row = "<tr><th scope=\"row\">detectors</th>";
  for (const auto& [label, run] : runs_of(result)) {
    std::string names;
    for (const diagnose::Detection& detection : run->detections) {
      names += (names.empty() ? "" : "<br>") + escaped(detection.detector);
    }
    row += fmt::format("<td>{}</td>", names.empty() ? "silent" : names);
    if (run == &result.faulty) row += "<td></td>";
  }
  return row + "</tr>\n";
}

std::string runs_table(const CaseResult& result) {
  std::string head;
  for (const auto& [label, run] : runs_of(result)) {
    const bool is_claim = result.claimed && run == &*result.claimed;
    head += is_claim ? fmt::format("<th scope=\"col\">claimed: {}</th>", name(result.outcome))
                     : fmt::format("<th scope=\"col\">{}</th>", label);
    if (run == &result.faulty) head += "<th scope=\"col\">expected</th>";
  }
  std::string body;
  for (const Metric& metric : metrics_of(result)) body += metric_row(result, metric);
  return fmt::format(R"(<div class="scroll" tabindex="0" role="region" aria-label="Figures of {0}">
<table class="runs"><thead><tr><th scope="col">figure</th>{1}</tr></thead>
<tbody>
{2}{3}</tbody></table></div>
)",
                     escaped(result.full_name()), head, body, detector_row(result));
}

// Why figures have bounds, of expected ones and of the fixed run.
std::string bounds_list(const Variant& variant, const CaseResult& result) {
  std::string items;
  for (const Expectation& expected : result.expected) {
    if (expected.bound == 0) continue;
    items += fmt::format("<li>{} is expected within {:g}: {}.</li>\n", escaped(expected.metric),
                         expected.bound, escaped(expected.reason));
  }
  if (result.fixed_bound != 0) {
    items += fmt::format("<li>fixed equals healthy within a relative {:g}: {}.</li>\n",
                         result.fixed_bound, escaped(variant.fixed_reason()));
  }
  if (items.empty()) return "";
  return "<ul class=\"reasons muted\">\n" + items + "</ul>\n";
}

std::string fired_item(const char* run, const diagnose::Detection& detection) {
  const std::string cause = detection.cause.empty()
                                ? "names no fault"
                                : fmt::format("names {}", escaped(detection.cause));
  const std::string op = detection.op.empty() ? "" : ", op " + escaped(detection.op);
  return fmt::format(
      "<li>In the {} run <strong>{}</strong> {}, step {}{}, confidence {:g}: {}</li>\n", run,
      escaped(detection.detector), cause, detection.step, op, detection.confidence,
      escaped(detection.evidence));
}

std::string fired_list(const CaseResult& result) {
  std::string items;
  for (const auto& [label, run] : runs_of(result)) {
    for (const diagnose::Detection& detection : run->detections) {
      items += fired_item(label, detection);
    }
  }
  return items.empty() ? "" : "<ul class=\"fired\">\n" + items + "</ul>\n";
}

std::string verdict(const CaseResult& result) {
  if (!result.verified()) {
    return fmt::format(
        "<div class=\"alarm\"><h4>Failed</h4><p>{}</p><p class=\"muted\">{:.1f} s</p></div>\n",
        escaped(result.why), result.seconds);
  }
  return fmt::format(
      "<p><span class=\"badge good\">verified</span> <span class=\"muted\">{:.1f} s"
      "</span></p>\n",
      result.seconds);
}

std::string claim_text(const Variant& variant, const CaseResult& result) {
  if (!result.claimed || !variant.claim()) return "";
  constexpr const char* kOutcomes[] = {
      "it works", "it hides the fault: the alarm stops and the figures stay wrong", "it fails"};
  return fmt::format("<p>The article's own remedy: {}. Tried here, {}.</p>\n",
                     escaped(variant.claim()->what), kOutcomes[static_cast<int>(result.outcome)]);
}

std::string training_text(const Variant& variant) {
  if (!variant.has_training_form()) return "";
  return fmt::format("<p class=\"muted\">In a real run: <code>{}</code></p>\n",
                     escaped(variant.training_command()));
}

}  // namespace

std::vector<NamedRun> runs_of(const CaseResult& result) {
  std::vector<NamedRun> runs = {
      {"healthy", &result.healthy}, {"faulty", &result.faulty}, {"fixed", &result.fixed}};
  if (result.claimed) runs.push_back({"claimed", &*result.claimed});
  return runs;
}

std::string case_html(const Variant& variant, const CaseResult& result) {
  // The only variant of a fault has the fault's own title and place.
  const std::string head = result.variant.empty()
                               ? "<section class=\"variant\" aria-label=\"The case\">\n"
                               : fmt::format(
                                     "<section class=\"variant\" id=\"{0}\">\n<h4>{1}</h4>\n"
                                     "<p class=\"muted\"><code>{0}</code></p>\n",
                                     escaped(result.full_name()), escaped(result.title));
  return head + verdict(result) + runs_table(result) + bounds_list(variant, result) +
         fired_list(result) + claim_text(variant, result) + pictures_html(result) +
         training_text(variant) + "</section>\n";
}

}  // namespace faultline::lab
