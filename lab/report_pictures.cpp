#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/html.h"
#include "lab/report_parts.h"

namespace faultline::lab {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format("{:.7g}", value);
}

// Names of the pictures that any run has, in the order in which they were added.
template <class Picture>
std::vector<std::string> names_of(const CaseResult& result,
                                  const std::vector<Picture>& (Metrics::*pictures)() const) {
  std::vector<std::string> names;
  for (const auto& [label, run] : runs_of(result)) {
    for (const Picture& picture : (run->metrics.*pictures)()) {
      if (std::find(names.begin(), names.end(), picture.name) == names.end()) {
        names.push_back(picture.name);
      }
    }
  }
  return names;
}

template <class Picture>
const Picture* find(const std::vector<Picture>& pictures, const std::string& name) {
  const auto found = std::find_if(pictures.begin(), pictures.end(),
                                  [&](const Picture& picture) { return picture.name == name; });
  return found == pictures.end() ? nullptr : &*found;
}

// The curves of one name: a column a run, a row an x. An x that comes twice has two rows.
struct CurveTable {
  std::vector<const char*> runs;
  std::map<std::pair<double, int>, std::vector<std::string>> rows;

  void add(const char* run, const Curve& curve) {
    runs.push_back(run);
    std::map<double, int> times;
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i) {
      if (std::isnan(curve.x[i])) continue;  // no place to draw it at
      std::vector<std::string>& row = rows[{curve.x[i], times[curve.x[i]]++}];
      row.resize(runs.size());
      row.back() = number(curve.y[i]);
    }
  }
};

bool has_a_number(const Curve& curve) {
  return std::any_of(curve.y.begin(), curve.y.end(), [](double y) { return std::isfinite(y); });
}

// "healthy from 1 to 0.5": what a curve does, for who does not see it.
std::string in_words(const char* run, const Curve& curve) {
  if (curve.y.empty()) return fmt::format("{} has no number", run);
  return fmt::format("{} from {} to {}", run, number(curve.y.front()), number(curve.y.back()));
}

// x and y of the axes: "loss by length" says both, any other name is of values by step.
std::pair<std::string, std::string> axes_of(const std::string& name) {
  constexpr std::string_view kBy = " by ";
  const size_t at = name.rfind(kBy);
  if (at == std::string::npos) return {"step", name};
  const std::string y = name.substr(0, at);
  return {name.substr(at + kBy.size()), y.ends_with(",") ? y.substr(0, y.size() - 1) : y};
}

std::string curve_html(const CaseResult& result, const std::string& name) {
  CurveTable table;
  std::string key;
  std::string head;
  std::string words;
  for (const auto& [label, run] : runs_of(result)) {
    const Curve* curve = find(run->metrics.curves(), name);
    if (curve == nullptr) continue;
    table.add(label, *curve);
    key += fmt::format("<li class=\"{0}\">{0}{1}</li>", label,
                       has_a_number(*curve) ? "" : ": no finite number");
    head += fmt::format("<th scope=\"col\">{}</th>", label);
    words += (words.empty() ? "" : "; ") + in_words(label, *curve);
  }
  if (table.rows.empty()) return "";
  std::string body;
  for (auto& [place, values] : table.rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", number(place.first));
    values.resize(table.runs.size());
    for (const std::string& value : values) body += "<td>" + value + "</td>";
    body += "</tr>\n";
  }
  const auto [x, y] = axes_of(name);
  return fmt::format(R"(<figure class="picture curve" data-x="{0}" data-y="{1}">
<figcaption>{1} by {0}</figcaption>
<ul class="lines" aria-hidden="true">{2}</ul>
<div class="drawing" role="img" aria-label="Lines: {1} by {0}. {3}."></div>
<details class="numbers"><summary>Numbers of this picture</summary>
<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">{0}</th>{4}</tr></thead>
<tbody>
{5}</tbody></table></div></details>
</figure>
)",
                     escaped(x), escaped(y), key, words, head, body);
}

// The row or column as its axis names it, else its number.
std::string place_on(const GridAxis& axis, int64_t i) {
  const auto at = static_cast<size_t>(i);
  return at < axis.places.size() ? escaped(axis.places[at]) : std::to_string(i);
}

std::string grid_table(const char* run, const Grid& grid) {
  std::string head;
  for (int64_t c = 0; c < grid.columns; ++c) {
    head += fmt::format("<th scope=\"col\">{}</th>", place_on(grid.column_axis, c));
  }
  std::string body;
  for (int64_t r = 0; r < grid.rows; ++r) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", place_on(grid.row_axis, r));
    for (int64_t c = 0; c < grid.columns; ++c) {
      const auto place = static_cast<size_t>(r * grid.columns + c);
      body += place < grid.values.size() ? fmt::format("<td>{}</td>", number(grid.values[place]))
                                         : "<td></td>";
    }
    body += "</tr>\n";
  }
  return fmt::format(R"(<table data-run="{0}"><caption>{0}</caption>
<thead><tr><th scope="col">{1}</th>{2}</tr></thead>
<tbody>
{3}</tbody></table>
)",
                     run, escaped(grid.row_axis.name), head, body);
}

std::string grid_html(const CaseResult& result, const std::string& name) {
  std::string row;
  std::string column;
  std::string drawings;
  std::string tables;
  for (const auto& [label, run] : runs_of(result)) {
    const Grid* grid = find(run->metrics.grids(), name);
    if (grid == nullptr || grid->rows < 1 || grid->columns < 1) continue;
    row = escaped(grid->row_axis.name);
    column = escaped(grid->column_axis.name);
    drawings += fmt::format(
        R"(<div class="drawing" role="img" aria-label="Grid: {}, {} run. Rows ({}): {}, columns ({}): {}. Its numbers are in the table below."></div>
)",
        escaped(name), label, row, grid->rows, column, grid->columns);
    tables += grid_table(label, *grid);
  }
  if (tables.empty()) return "";
  return fmt::format(R"(<figure class="picture grid" data-row="{0}" data-column="{1}">
<figcaption>{2}: a row for each {0}, a column for each {1}; the stronger the colour, the larger the size</figcaption>
<div class="panels">
{3}</div>
<details class="numbers"><summary>Numbers of this picture</summary>
<div class="scroll" tabindex="0">
{4}</div></details>
</figure>
)",
                     row, column, escaped(name), drawings, tables);
}

}  // namespace

std::string pictures_html(const CaseResult& result) {
  std::string html;
  for (const std::string& name : names_of(result, &Metrics::curves)) {
    html += curve_html(result, name);
  }
  for (const std::string& name : names_of(result, &Metrics::grids)) {
    html += grid_html(result, name);
  }
  return html;
}

}  // namespace faultline::lab
