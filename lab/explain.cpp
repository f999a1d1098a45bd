#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "lab/console.h"

namespace faultline::lab {
namespace {

using Variants = std::vector<const Variant*>;

// `text` in lines of at most `width` columns, all but the first after `indent` blanks; the first
// begins with `label`, in the column in which the others begin.
std::string labelled(const std::string& label, const std::string& text, int width, int indent) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  std::istringstream words(text);
  std::string line = fmt::format("{:<{}}", label, indent);
  std::string result;
  bool begun = false;
  for (std::string word; words >> word; begun = true) {
    if (begun && static_cast<int>(line.size() + 1 + word.size()) > width) {
      result += line + "\n";
      line = blanks;
      begun = false;
    }
    line += (begun ? " " : "") + word;
  }
  return result + line + "\n";
}

std::string wrapped(const std::string& text, int width, int indent) {
  return labelled("", text, width, indent);
}

std::string figures_text(const Variant& variant) {
  std::string text;
  for (const Expectation& expected : variant.expectations()) {
    text += (text.empty() ? "" : ", ") + expected.metric + " = " +
            figure(expected.value, /*is_count=*/expected.value == std::floor(expected.value));
  }
  return text;
}

std::string needs_text(const Variant& variant) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : variant.training().needs) settings.push_back(key + "=" + value);
  return fmt::format("{}", fmt::join(settings, " "));
}

// The figures, the detector and the training run of a variant.
std::string form_text(const Variant& variant, int width) {
  constexpr int kBeside = 14;
  std::string out = labelled("    shows", figures_text(variant), width, kBeside);
  out += labelled("    caught by", variant.detector(), width, kBeside);
  if (variant.claim()) out += labelled("    claimed", variant.claim()->what, width, kBeside);
  if (variant.has_generation_form()) {
    out += labelled("    generation", variant.generation_command(), width, kBeside);
  }
  if (!variant.has_training_form()) {
    return out + labelled("    training", "no: " + variant.no_training_reason(), width, kBeside);
  }
  if (!variant.training().needs.empty()) {
    out += labelled("    sets", needs_text(variant), width, kBeside);
  }
  return out + "    " + variant.training_command() + "\n";
}

std::string variants_text(const Variants& variants, int width) {
  if (variants.size() == 1 && variants[0]->name().empty()) return form_text(*variants[0], width);
  std::string out;
  for (const Variant* variant : variants) {
    const std::string& name = variant->name();
    out += (out.empty() ? "  " : "\n  ") + (name.empty() ? variant->fault_id() : name) + "\n";
    out += wrapped(variant->title(), width, 4) + form_text(*variant, width);
  }
  return out;
}

Variants all_variants(const Fault& fault) {
  Variants result;
  for (const Variant& variant : fault.variants()) result.push_back(&variant);
  return result;
}

// The detectors that must catch the variants, in their order.
std::vector<diagnose::DetectorDefinition> detectors_of(const Variants& variants) {
  const auto known = diagnose::all_detectors();
  std::vector<std::string> seen;
  std::vector<diagnose::DetectorDefinition> result;
  for (const Variant* variant : variants) {
    const std::string& name = variant->detector();
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
    seen.push_back(name);
    for (const auto& detector : known) {
      if (detector.name == name) result.push_back(detector);
    }
  }
  return result;
}

std::string detector_names(const Variants& variants) {
  std::vector<std::string> names;
  for (const Variant* variant : variants) {
    const bool seen = std::find(names.begin(), names.end(), variant->detector()) != names.end();
    if (!seen) names.push_back(variant->detector());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string detectors_text(const Fault& fault, const Variants& variants, int width) {
  std::string out;
  for (const auto& detector : detectors_of(variants)) {
    out += fmt::format("  {} (watch level {} and above)\n", detector.name, name(detector.level));
    for (const diagnose::Cause& cause : detector.causes) {
      if (cause.id != fault.text().id) continue;
      out += wrapped(fmt::format("refuted by: {}", cause.refuted_by), width, 4);
    }
  }
  return out;
}

std::string domain_text(const FaultText& text) {
  return text.seed == "-" ? text.domain : text.domain + ", article " + text.seed;
}

std::string explain_variants(const Fault& fault, const Variants& variants, int width) {
  const FaultText& text = fault.text();
  std::string out = text.id + "\n" + wrapped(text.title, width, 2);
  out += wrapped("(" + domain_text(text) + ")", width, 2);
  const auto part = [&](const char* heading, const std::string& body) {
    if (!body.empty()) out += fmt::format("\n{}\n{}", heading, body);
  };
  const auto prose = [&](const char* heading, const std::string& body) {
    if (!body.empty()) part(heading, wrapped(body, width, 2));
  };
  prose("What you see", text.symptom);
  prose("What happens", text.mechanism);
  part("Caught by", detectors_text(fault, variants, width));
  prose("Look-alikes", text.look_alikes);
  prose("Fix", text.fix);
  prose("What the article says", text.article_says);
  prose("What is true", text.truth);
  part(variants.size() == 1 ? "In the lab" : "Variants", variants_text(variants, width));
  prose("Exercise", text.exercise);
  prose("Answer", text.answer);
  std::string sources;
  for (const std::string& source : text.sources) sources += labelled("  -", source, width, 4);
  part("Sources", sources);
  return out;
}

Json figures_json(const Variant& variant) {
  Json figures = Json::array();
  for (const Expectation& expected : variant.expectations()) {
    figures.push(Json::object()
                     .set("name", expected.metric)
                     .set("value", expected.value)
                     .set("bound", expected.bound)
                     .set("reason", expected.reason));
  }
  return figures;
}

Json training_json(const Variant& variant) {
  if (!variant.has_training_form()) return {};
  Json needs = Json::object();
  for (const auto& [key, value] : variant.training().needs) needs.set(key, value);
  return Json::object().set("steps", variant.training().steps).set("needs", needs);
}

Json generation_json(const Variant& variant) {
  if (!variant.has_generation_form()) return {};
  Json needs = Json::object();
  for (const auto& [flag, value] : variant.generation().needs) needs.set(flag, value);
  return Json::object().set("needs", needs);
}

Json variant_json(const Variant& variant) {
  return Json::object()
      .set("name", variant.name())
      .set("title", variant.title())
      .set("detector", variant.detector())
      .set("expected", figures_json(variant))
      .set("claimed", variant.claim() ? Json(variant.claim()->what) : Json())
      .set("training", training_json(variant))
      .set("generation", generation_json(variant))
      .set("no_training", variant.has_training_form() ? Json() : variant.no_training_reason());
}

Json detector_json(const diagnose::DetectorDefinition& detector) {
  Json causes = Json::array();
  for (const diagnose::Cause& cause : detector.causes) {
    causes.push(Json::object()
                    .set("id", cause.id)
                    .set("mechanism", cause.mechanism)
                    .set("fix", cause.fix)
                    .set("refuted_by", cause.refuted_by));
  }
  return Json::object()
      .set("name", detector.name)
      .set("level", name(detector.level))
      .set("causes", causes);
}

Json variants_json(const Fault& fault, const Variants& variants) {
  const FaultText& text = fault.text();
  Json names = Json::array();
  Json forms = Json::array();
  for (const Variant* variant : variants) {
    names.push(variant->name());
    forms.push(variant_json(*variant));
  }
  Json detectors = Json::array();
  for (const auto& detector : detectors_of(variants)) detectors.push(detector_json(detector));
  return Json::object()
      .set("id", text.id)
      .set("title", text.title)
      .set("domain", text.domain)
      .set("seed", text.seed)
      .set("mechanism", text.mechanism)
      .set("symptom", text.symptom)
      .set("article_says", text.article_says)
      .set("truth", text.truth)
      .set("fix", text.fix)
      .set("look_alikes", text.look_alikes)
      .set("exercise", text.exercise)
      .set("answer", text.answer)
      .set("detector", detector_names(variants))
      .set("detectors", detectors)
      .set("sources", Json::array_of(text.sources))
      .set("variants", names)
      .set("forms", forms);
}

}  // namespace

std::string explain_text(const Fault& fault, int width) {
  return explain_variants(fault, all_variants(fault), width);
}

std::string explain_text(const Catalogue::Entry& entry, int width) {
  return explain_variants(*entry.fault, {entry.variant}, width);
}

Json explain_json(const Fault& fault) { return variants_json(fault, all_variants(fault)); }

Json explain_json(const Catalogue::Entry& entry) {
  return variants_json(*entry.fault, {entry.variant});
}

std::string faults_text(const Catalogue& catalogue, int width) {
  std::vector<std::string> domains;
  size_t widest = 0;
  for (const Fault& fault : catalogue.faults()) {
    widest = std::max(widest, fault.text().id.size());
    const std::string& domain = fault.text().domain;
    const bool seen = std::find(domains.begin(), domains.end(), domain) != domains.end();
    if (!seen) domains.push_back(domain);
  }
  std::string out;
  for (const std::string& domain : domains) {
    out += domain + "\n";
    for (const Fault& fault : catalogue.faults()) {
      if (fault.text().domain != domain) continue;
      out +=
          labelled("  " + fault.text().id, fault.text().title, width, static_cast<int>(widest) + 4);
    }
    out += "\n";
  }
  return out + "faultline explain ID[:VARIANT] tells all of one.\n";
}

}  // namespace faultline::lab
