#pragma once

#include <map>
#include <string>

#include "core/event.h"
#include "nn/dispatch.h"

namespace faultline::cli {

// What ran the attention calls of a program, and why: calls that differ in nothing are one row.
class DispatchReport {
 public:
  // Listens on the current Context.
  DispatchReport();
  DispatchReport(const DispatchReport&) = delete;
  DispatchReport& operator=(const DispatchReport&) = delete;

  // A line for each kind of call, those that ran most often first, and its reasons under it.
  std::string table() const;

 private:
  struct Row {
    int64_t calls = 0;
    int64_t rows_without_keys = 0;
  };
  void add(const nn::DispatchRecord& record);

  EventBus::Subscription subscription_;
  std::map<std::string, Row> rows_;  // by their text
};

}  // namespace faultline::cli
