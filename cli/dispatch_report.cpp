#include "cli/dispatch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/context.h"

namespace faultline::cli {
namespace {

constexpr const char* kLine = "{:<10} {:<7} {:<18} {:<18} {:<5} {}";

std::string text_of(const nn::DispatchRecord& record) {
  std::string text =
      fmt::format(kLine, "attention", nn::name(record.chosen), to_string(record.q_BHQD),
                  to_string(record.k_BGKD), name(record.dtype), record.mask);
  text +=
      fmt::format("\n{:>10}   policy {}: {}", "", nn::to_string(record.requested), record.reason);
  for (const nn::RejectedImplementation& rejected : record.rejected) {
    text += fmt::format("\n{:>10}   not {}: {}", "", nn::name(rejected.which), rejected.reason);
  }
  return text;
}

}  // namespace

DispatchReport::DispatchReport()
    : subscription_(Context::current().events.subscribe<nn::DispatchEvent>(
          [this](const nn::DispatchEvent& event) { add(event.record); })) {}

void DispatchReport::add(const nn::DispatchRecord& record) {
  Row& row = rows_[text_of(record)];
  ++row.calls;
  row.rows_without_keys += record.rows_without_keys;
}

std::string DispatchReport::table() const {
  if (rows_.empty()) return "dispatch: no attention ran";
  std::vector<std::pair<std::string, Row>> rows(rows_.begin(), rows_.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.calls > b.second.calls; });
  std::string text = fmt::format("{:>10} ", "calls");
  text += fmt::format(kLine, "op", "chosen", "queries", "keys", "dtype", "mask");
  for (const auto& [line, row] : rows) {
    text += fmt::format("\n{:>10} {}", row.calls, line);
    if (row.rows_without_keys == 0) continue;
    text += fmt::format("\n{:>10}   {} rows saw no key and gave zeros", "", row.rows_without_keys);
  }
  return text;
}

}  // namespace faultline::cli
