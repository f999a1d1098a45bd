#include "lab/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/verdict.h"

namespace faultline::lab {

const char* name(Outcome outcome) {
  constexpr const char* kNames[] = {"works", "hides", "fails"};
  return kNames[static_cast<int>(outcome)];
}

std::string figure(double value, bool is_count) {
  if (std::isnan(value)) return "nan";
  const double size = std::abs(value);
  if (is_count && size < 0x1p64) return fmt::format("{:.0f}", value);
  if (size != 0 && (size < 1e-6 || size >= 1e7)) return fmt::format("{:.6g}", value);
  return fmt::format("{:.6f}", value);
}

CaseResult blank_result(const Fault& fault, const Variant& variant) {
  CaseResult result;
  result.id = variant.fault_id();
  result.variant = variant.name();
  result.title = variant.title();
  result.seed = fault.text().seed;
  result.domain = fault.text().domain;
  result.expected = variant.expectations();
  result.fixed_bound = variant.fixed_bound();
  return result;
}

namespace {

Json numbers(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push(value);
  return json;
}

std::vector<double> numbers_from_json(const Json& json) {
  std::vector<double> values;
  for (const Json& value : json.items()) values.push_back(value.real());
  return values;
}

Json axis_json(const GridAxis& axis) {
  return Json::object().set("name", axis.name).set("places", Json::array_of(axis.places));
}

GridAxis axis_from_json(const Json& json) {
  GridAxis axis{json.at("name").text()};
  for (const Json& place : json.at("places").items()) axis.places.push_back(place.text());
  return axis;
}

Json pictures_json(const Metrics& metrics) {
  Json curves = Json::array();
  for (const Curve& curve : metrics.curves()) {
    curves.push(Json::object()
                    .set("name", curve.name)
                    .set("x", numbers(curve.x))
                    .set("y", numbers(curve.y)));
  }
  Json grids = Json::array();
  for (const Grid& grid : metrics.grids()) {
    grids.push(Json::object()
                   .set("name", grid.name)
                   .set("rows", grid.rows)
                   .set("columns", grid.columns)
                   .set("row_axis", axis_json(grid.row_axis))
                   .set("column_axis", axis_json(grid.column_axis))
                   .set("values", numbers(grid.values)));
  }
  return Json::object().set("curves", curves).set("grids", grids);
}

void add_pictures(Metrics& metrics, const Json& json) {
  for (const Json& curve : json.at("curves").items()) {
    metrics.add(Curve{curve.at("name").text(), numbers_from_json(curve.at("x")),
                      numbers_from_json(curve.at("y"))});
  }
  for (const Json& grid : json.at("grids").items()) {
    metrics.add(Grid{grid.at("name").text(), grid.at("rows").integer(),
                     grid.at("columns").integer(), numbers_from_json(grid.at("values")),
                     axis_from_json(grid.at("row_axis")), axis_from_json(grid.at("column_axis"))});
  }
}

Json run_json(const RunRecord& run) {
  Json metrics = Json::object();
  Json counts = Json::array();
  for (const Metric& metric : run.metrics.all()) {
    metrics.set(metric.name, metric.value);
    if (metric.is_count) counts.push(metric.name);
  }
  Json detections = Json::array();
  for (const auto& detection : run.detections) detections.push(diagnose::to_json(detection));
  return Json::object()
      .set("metrics", metrics)
      .set("counts", counts)
      .set("detections", detections)
      .set("pictures", pictures_json(run.metrics));
}

RunRecord run_from_json(const Json& json) {
  RunRecord run;
  const std::vector<Json>& counts = json.at("counts").items();
  for (const JsonMember& member : json.at("metrics").members()) {
    const bool is_count = std::any_of(counts.begin(), counts.end(),
                                      [&](const Json& name) { return name.text() == member.key; });
    run.metrics.set({member.key, member.value.real(), is_count});
  }
  for (const Json& detection : json.at("detections").items()) {
    run.detections.push_back(diagnose::detection_from_json(detection));
  }
  add_pictures(run.metrics, json.at("pictures"));
  return run;
}

Outcome outcome_from_name(const std::string& text) {
  if (text == "works") return Outcome::works;
  return text == "hides" ? Outcome::hides : Outcome::fails;
}

}  // namespace

Json to_json(const CaseResult& result) {
  Json expected = Json::object();
  Json bounds = Json::object();
  for (const Expectation& figure : result.expected) {
    expected.set(figure.metric, figure.value);
    if (figure.bound == 0) continue;
    bounds.set(figure.metric,
               Json::object().set("bound", figure.bound).set("reason", figure.reason));
  }
  Json claimed;
  if (result.claimed) {
    claimed = run_json(*result.claimed);
    claimed.set("outcome", name(result.outcome));
  }
  return Json::object()
      .set("id", result.id)
      .set("variant", result.variant)
      .set("title", result.title)
      .set("seed", result.seed)
      .set("domain", result.domain)
      .set("healthy", run_json(result.healthy))
      .set("faulty", run_json(result.faulty))
      .set("fixed", run_json(result.fixed))
      .set("claimed", claimed)
      .set("expected", expected)
      .set("bounds", bounds)
      .set("fixed_bound", result.fixed_bound)
      .set("verdict", result.verified() ? "verified" : "failed")
      .set("why", result.why)
      .set("seconds", result.seconds);
}

CaseResult result_from_json(const Json& json) {
  CaseResult result;
  result.id = json.at("id").text();
  result.variant = json.at("variant").text();
  result.title = json.at("title").text();
  result.seed = json.at("seed").text();
  result.domain = json.at("domain").text();
  result.healthy = run_from_json(json.at("healthy"));
  result.faulty = run_from_json(json.at("faulty"));
  result.fixed = run_from_json(json.at("fixed"));
  const Json& claimed = json.at("claimed");
  if (claimed.is(Json::Kind::object)) {
    result.claimed = run_from_json(claimed);
    result.outcome = outcome_from_name(claimed.at("outcome").text());
  }
  for (const JsonMember& figure : json.at("expected").members()) {
    Expectation expectation{figure.key, figure.value.real(), 0, ""};
    if (const Json* bound = json.at("bounds").find(figure.key)) {
      expectation.bound = bound->at("bound").real();
      expectation.reason = bound->at("reason").text();
    }
    result.expected.push_back(expectation);
  }
  result.fixed_bound = json.at("fixed_bound").real();
  result.why = json.at("why").text();
  result.seconds = json.at("seconds").real();
  return result;
}

}  // namespace faultline::lab
