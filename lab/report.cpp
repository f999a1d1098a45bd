#include "lab/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "lab/html.h"
#include "lab/report_parts.h"
#include "version.h"

namespace faultline::lab {
namespace {

struct Case {
  const Variant* variant;
  const CaseResult* result;
};

// A fault and those of its cases that ran.
struct FaultCases {
  const Fault* fault;
  std::vector<Case> cases;

  bool failed() const {
    return std::any_of(cases.begin(), cases.end(),
                       [](const Case& one) { return !one.result->verified(); });
  }
};

// In the catalogue's order, but what failed first.
std::vector<FaultCases> by_fault(const std::vector<Catalogue::Entry>& entries,
                                 const std::vector<CaseResult>& results) {
  std::vector<FaultCases> faults;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (faults.empty() || faults.back().fault != entries[i].fault) {
      faults.push_back({entries[i].fault, {}});
    }
    faults.back().cases.push_back({entries[i].variant, &results[i]});
  }
  const auto failed_first = [](const Case& a, const Case& b) {
    return !a.result->verified() && b.result->verified();
  };
  for (FaultCases& fault : faults) {
    std::stable_sort(fault.cases.begin(), fault.cases.end(), failed_first);
  }
  std::stable_sort(faults.begin(), faults.end(), [](const FaultCases& a, const FaultCases& b) {
    return a.failed() && !b.failed();
  });
  return faults;
}

size_t count_verified(const std::vector<CaseResult>& results) {
  return static_cast<size_t>(std::count_if(
      results.begin(), results.end(), [](const CaseResult& result) { return result.verified(); }));
}

std::string link_to(const CaseResult& result) {
  return fmt::format("<a href=\"#{0}\">{0}</a>", escaped(result.full_name()));
}

// ---- the summary

std::string verdict_text(const std::vector<CaseResult>& results) {
  const size_t verified = count_verified(results);
  return fmt::format("{} of {} {} verified", verified, results.size(),
                     results.size() == 1 ? "case" : "cases");
}

std::string facts_list(const ReportFacts& facts) {
  const std::pair<const char*, std::string> rows[] = {
      {"Date", facts.date},
      {"Seconds", fmt::format("{:.1f}", facts.seconds)},
      {"Seed", std::to_string(facts.seed)},
      {"Version", version},
      {"Instruction set", cpu::isa_name()}};
  std::string html;
  for (const auto& [name, value] : rows) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, escaped(value));
  }
  return "<dl class=\"facts\">\n" + html + "</dl>\n";
}

std::string failures(const std::vector<CaseResult>& results) {
  std::string items;
  for (const CaseResult& result : results) {
    if (result.verified()) continue;
    items += fmt::format("<li>{}: {}</li>\n", link_to(result), escaped(result.why));
  }
  if (items.empty()) return "";
  return "<section class=\"alarm\" id=\"failed\">\n<h2>Not verified</h2>\n<ul>\n" + items +
         "</ul>\n</section>\n";
}

std::string page_head(const std::vector<CaseResult>& results, const ReportFacts& facts) {
  const bool all = count_verified(results) == results.size();
  return fmt::format(
      R"(<a class="skip" href="#cases">Skip to the cases</a>
<header>
<h1>Faultline lab</h1>
<p class="verdict {}">{}</p>
{}</header>
<main>
<p>Each case runs the same experiment three times: healthy; faulty, with the wrong code planted; and
fixed, which repairs the faulty run. A case is verified when the faulty run shows the expected figures, the
right detector names the fault first, and the healthy and the fixed run agree and leave every detector silent.</p>
{}{})",
      all ? "good" : "bad", verdict_text(results), facts_list(facts),
      kVega.empty() ? "<p class=\"note\">This report has no pictures, only their numbers: the "
                      "program was built without libjs-vega (Debian and Ubuntu: apt install "
                      "libjs-vega, then configure again).</p>\n"
                    : "<noscript><p class=\"note\">The pictures need scripts; their numbers stand "
                      "beside them.</p></noscript>\n",
      failures(results));
}

// ---- who fired where

std::vector<std::string> detector_names(const std::vector<CaseResult>& results) {
  std::vector<std::string> names;
  for (const auto& detector : diagnose::all_detectors()) names.emplace_back(detector.name);
  for (const CaseResult& result : results) {  // those of a program of its own
    for (const auto& [label, run] : runs_of(result)) {
      for (const diagnose::Detection& detection : run->detections) {
        if (std::find(names.begin(), names.end(), detection.detector) == names.end()) {
          names.push_back(detection.detector);
        }
      }
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string fired_cell(const CaseResult& result, const std::string& detector) {
  const auto& detections = result.faulty.detections;
  for (size_t i = 0; i < detections.size(); ++i) {
    if (detections[i].detector != detector) continue;
    return fmt::format("<td><span class=\"mark{}\"></span><span class=\"spoken\">{}</span></td>",
                       i == 0 ? " first" : "", i == 0 ? "first" : "too");
  }
  return "<td></td>";
}

// Of a run that must be silent.
std::string silence_cell(const RunRecord& run) {
  if (run.metrics.all().empty()) return "<td class=\"bad\">no run</td>";
  if (run.detections.empty()) return "<td class=\"silent\">silent</td>";
  return fmt::format("<td class=\"bad\">{}</td>", escaped(run.detections.front().detector));
}

std::string matrix(const std::vector<FaultCases>& faults, const std::vector<CaseResult>& results) {
  const std::vector<std::string> detectors = detector_names(results);
  std::string head;
  for (const std::string& detector : detectors) {
    head += fmt::format("<th scope=\"col\"><div class=\"turned\">{}</div></th>", escaped(detector));
  }
  for (const char* run : {"healthy", "fixed"}) {
    head += fmt::format("<th scope=\"col\">{}</th>", run);
  }
  std::string body;
  for (const FaultCases& fault : faults) {
    for (const auto& [variant, result] : fault.cases) {
      body += fmt::format("<tr><th scope=\"row\">{}{}</th>", link_to(*result),
                          result->verified() ? "" : " <span class=\"bad\">failed</span>");
      for (const std::string& detector : detectors) body += fired_cell(*result, detector);
      body += silence_cell(result->healthy) + silence_cell(result->fixed);
      body += "</tr>\n";
    }
  }
  return fmt::format(R"(<section>
<h2>Who fires in which case</h2>
<p>Every detector watches every run of every case. Marks tell of the faulty run; the last two columns of the others.</p>
<div class="key" aria-hidden="true"><span><span class="mark first"></span>fired, ranked first</span>
<span><span class="mark"></span>fired too</span></div>
<div class="scroll" tabindex="0" role="region" aria-label="Cases and detectors">
<table class="matrix"><thead><tr><th scope="col">case</th>{}</tr></thead>
<tbody>
{}</tbody></table></div>
</section>
)",
                     head, body);
}

// ---- the faults

std::string entry(const char* heading, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", heading, html);
}

std::string paragraph(const std::string& text) {
  return text.empty() ? "" : "<p>" + linked(text) + "</p>";
}

std::string list_of(const std::vector<std::string>& texts) {
  std::string items;
  for (const std::string& text : texts) items += "<li>" + linked(text) + "</li>\n";
  return items.empty() ? "" : "<ul>\n" + items + "</ul>";
}

std::string exercise(const FaultText& text) {
  if (text.exercise.empty()) return "";
  return paragraph(text.exercise) + "<details><summary>Answer</summary>" + paragraph(text.answer) +
         "</details>";
}

std::string fault_html(const FaultCases& fault) {
  const FaultText& text = fault.fault->text();
  std::string cases;
  for (const auto& [variant, result] : fault.cases) cases += case_html(*variant, *result);
  const std::string article = text.seed == "-" ? "" : ", article section " + escaped(text.seed);
  return fmt::format(R"(<article class="fault" id="{0}">
<h3>{1}</h3>
<p class="id"><code>{0}</code>, {2}{3}</p>
{4}<dl class="text">
{5}{6}{7}{8}{9}{10}{11}{12}</dl>
</article>
)",
                     escaped(text.id), escaped(text.title), escaped(text.domain), article, cases,
                     entry("What you see", paragraph(text.symptom)),
                     entry("What happens", paragraph(text.mechanism)),
                     entry("What the article says", paragraph(text.article_says)),
                     entry("What is true", paragraph(text.truth)),
                     entry("Fix", paragraph(text.fix)),
                     entry("What looks like it", paragraph(text.look_alikes)),
                     entry("Exercise", exercise(text)), entry("Sources", list_of(text.sources)));
}

std::string script(std::string_view text) { return fmt::format("<script>\n{}\n</script>\n", text); }

}  // namespace

std::string report_html(const std::vector<Catalogue::Entry>& entries,
                        const std::vector<CaseResult>& results, const ReportFacts& facts) {
  invariant(entries.size() == results.size(), "report: {} results of {} cases", results.size(),
            entries.size());
  const std::vector<FaultCases> faults = by_fault(entries, results);
  std::string cases;
  for (const FaultCases& fault : faults) cases += fault_html(fault);
  // The policy lets the page load nothing, whatever stands in it.
  std::string html = fmt::format(R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Faultline lab: {}</title>
<style>
{}</style>
</head>
<body>
)",
                                 verdict_text(results), kReportStyle);
  html += page_head(results, facts) + matrix(faults, results);
  html += "<section id=\"cases\">\n<h2>The cases</h2>\n" + cases + "</section>\n</main>\n";
  if (!kVega.empty()) {
    html += "<footer><p>Pictures by Vega, whose licence is in this file's source.</p></footer>\n";
    html += script(kVega) + script(kReportScript);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace faultline::lab
