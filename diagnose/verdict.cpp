#include "diagnose/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/atomic_file.h"

namespace faultline::diagnose {
namespace {

// A cause with all that speaks for it; several detectors may name one.
struct NamedCause {
  Detection best;
  const Cause* text = nullptr;
  std::vector<Detection> all;
};

const Cause* text_of(const Watch& watch, const Detection& detection) {
  for (const Watch::Check& check : watch.checks()) {
    if (check.detector.name != detection.detector) continue;
    for (const Cause& cause : check.detector.causes) {
      if (cause.id == detection.cause) return &cause;
    }
  }
  return nullptr;
}

std::vector<NamedCause> causes_of(const Watch& watch) {
  std::vector<NamedCause> causes;
  for (const Detection& detection : watch.findings().ranked()) {
    if (detection.cause.empty()) continue;
    const auto known = std::find_if(causes.begin(), causes.end(), [&](const NamedCause& cause) {
      return cause.best.cause == detection.cause;
    });
    if (known == causes.end()) {
      causes.push_back({detection, text_of(watch, detection), {detection}});
    } else {
      known->all.push_back(detection);
    }
  }
  return causes;
}

std::vector<Detection> unexplained_of(const Watch& watch) {
  std::vector<Detection> result = watch.findings().ranked();
  std::erase_if(result, [](const Detection& detection) { return !detection.cause.empty(); });
  return result;
}

bool has_judged(const Watch::Check& check) {
  return check.watcher != nullptr && check.watcher->looks() > 0;
}

const char* verdict_of(const Watch& watch, const std::vector<NamedCause>& causes) {
  if (!causes.empty() && causes[0].best.confidence >= kHint) return "fault";
  const bool judged = std::any_of(watch.checks().begin(), watch.checks().end(), has_judged);
  return watch.findings().empty() && judged ? "healthy" : "undecided";
}

std::string evidence_line(const Detection& detection) {
  return fmt::format("{}: {}", detection.detector, detection.evidence);
}

// The first step at which any detector saw the cause.
const Detection& earliest(const NamedCause& cause) {
  return *std::min_element(cause.all.begin(), cause.all.end(),
                           [](const Detection& a, const Detection& b) { return a.step < b.step; });
}

Json place_json(const Detection& detection) {
  return Json::object()
      .set("step", detection.step)
      .set("rank", detection.rank)
      .set("op", detection.op);
}

Json cause_json(const NamedCause& cause) {
  std::vector<std::string> evidence;
  for (const Detection& detection : cause.all) evidence.push_back(evidence_line(detection));
  const Detection& first = earliest(cause);
  Json json = Json::object();
  json.set("id", cause.best.cause).set("confidence", cause.best.confidence);
  json.set("mechanism", cause.text != nullptr ? cause.text->mechanism : "");
  json.set("fix", cause.text != nullptr ? cause.text->fix : "");
  json.set("first", place_json(first));
  json.set("evidence", Json::array_of(evidence));
  json.set("refuted_by", cause.text != nullptr ? cause.text->refuted_by : "");
  return json;
}

}  // namespace

Json verdict_json(const Watch& watch) {
  const std::vector<NamedCause> causes = causes_of(watch);
  Json ranked = Json::array();
  for (const NamedCause& cause : causes) ranked.push(cause_json(cause));
  Json unexplained = Json::array();
  for (const Detection& detection : unexplained_of(watch)) {
    unexplained.push(Json::object()
                         .set("detector", detection.detector)
                         .set("confidence", detection.confidence)
                         .set("first", place_json(detection))
                         .set("evidence", detection.evidence));
  }
  Json run = Json::array();
  Json skipped = Json::array();
  for (const Watch::Check& check : watch.checks()) {
    const auto& [detector, watcher] = check;
    if (has_judged(check)) {
      run.push(detector.name);
      continue;
    }
    const std::string reason = watcher == nullptr
                                   ? fmt::format("needs --watch {}", name(detector.level))
                                   : std::string("nothing that it judges happened in this run");
    skipped.push(Json::object().set("id", detector.name).set("reason", reason));
  }
  return Json::object()
      .set("verdict", verdict_of(watch, causes))
      .set("causes", ranked)
      .set("unexplained", unexplained)
      .set("checks_run", run)
      .set("checks_skipped", skipped);
}

void write_verdict(const std::string& directory, const Watch& watch) {
  write_file_atomically(directory + "/verdict.json", verdict_json(watch).to_indented_text());
}

std::string verdict_text(const Watch& watch) {
  const std::vector<NamedCause> causes = causes_of(watch);
  const auto run = std::count_if(watch.checks().begin(), watch.checks().end(), has_judged);
  std::string text = fmt::format("verdict: {} ({} of {} checks ran)\n", verdict_of(watch, causes),
                                 run, watch.checks().size());
  for (const NamedCause& cause : causes) {
    const Detection& first = earliest(cause);
    text += fmt::format("  {}  confidence {:.2f}, first at step {}, op {}\n", cause.best.cause,
                        cause.best.confidence, first.step, first.op);
    for (const Detection& detection : cause.all) text += "    " + evidence_line(detection) + "\n";
    if (cause.text == nullptr) continue;
    text += fmt::format("    what happens: {}\n    fix: {}\n    refuted if: {}\n",
                        cause.text->mechanism, cause.text->fix, cause.text->refuted_by);
  }
  for (const Detection& detection : unexplained_of(watch)) {
    text += fmt::format("  without a known cause: first at step {}, op {}; look there\n    {}\n",
                        detection.step, detection.op, evidence_line(detection));
  }
  return text;
}

Json to_json(const Detection& detection) {
  return Json::object()
      .set("detector", detection.detector)
      .set("cause", detection.cause)
      .set("confidence", detection.confidence)
      .set("step", detection.step)
      .set("rank", detection.rank)
      .set("op", detection.op)
      .set("evidence", detection.evidence);
}

Detection detection_from_json(const Json& json) {
  return {json.at("detector").text(),
          json.at("cause").text(),
          json.at("confidence").real(),
          json.at("step").integer(),
          static_cast<int>(json.at("rank").integer()),
          json.at("op").text(),
          json.at("evidence").text()};
}

}  // namespace faultline::diagnose
