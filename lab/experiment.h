#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/state.h"

namespace faultline::lab {

// A named figure of a run. A count is shown as "256 counted", a measure as "p 0.204108".
struct Metric {
  std::string name;
  double value = 0;
  bool is_count = false;
};

// A line to draw: a value by step, or by whatever x is.
struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

// What the rows or the columns of a grid are; where they have no names they are numbered from 0.
struct GridAxis {
  std::string name;
  std::vector<std::string> places = {};  // one for each row or column, or none
};

// A table to draw, row by row; without other axes, which query sees which key, with what weight.
struct Grid {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;
  GridAxis row_axis = {"query"};
  GridAxis column_axis = {"key"};
};

// The figures of a run, in the order in which they were first set; and its pictures, which prove
// nothing and show much.
class Metrics {
 public:
  void measure(const std::string& name, double value) { set({name, value, false}); }
  void count(const std::string& name, double value) { set({name, value, true}); }
  void set(Metric metric);
  const std::vector<Metric>& all() const { return metrics_; }
  std::optional<double> find(const std::string& name) const;

  void add(Curve curve) { curves_.push_back(std::move(curve)); }
  void add(Grid grid) { grids_.push_back(std::move(grid)); }
  const std::vector<Curve>& curves() const { return curves_; }
  const std::vector<Grid>& grids() const { return grids_; }

 private:
  std::vector<Metric> metrics_;
  std::vector<Curve> curves_;
  std::vector<Grid> grids_;
};

struct RunOptions {
  uint64_t seed = 1;  // of random data; the figures that a case expects hold for every seed
};

// What healthy, faulty and fixed run: it is built anew for each, on the current Context, and goes
// step by step. It can be saved and restored, so that a repaired run can go back to its last good
// state; what `report` tells must follow from that state.
class Experiment {
 public:
  virtual ~Experiment() = default;
  virtual void step(int64_t step) = 0;  // from 1
  virtual State state() { return {}; }
  virtual void load(const State&) {}
  virtual void report(Metrics& metrics) = 0;
};

using BuildExperiment = std::function<std::unique_ptr<Experiment>(const RunOptions&)>;
// An experiment of one step without state.
using Measurement = std::function<void(const RunOptions&, Metrics&)>;

}  // namespace faultline::lab
