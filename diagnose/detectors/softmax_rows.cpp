// softmax.rows: a softmax needs a score above -infinity in every row.
//
// Sees: every forward launch of softmax and log_softmax with its input.
// Fires: at the first row of nothing but -infinity: the mask has hidden every key before softmax,
// and exp(-inf - max) is exp(-inf + inf) = NaN. That is certain, whatever made the row; the number
// of such rows is counted.
// Silent: masked_softmax, which is told the mask and gives zeros; rows that hold a NaN or +infinity
// (finite.first); rows hidden with a finite number such as -1e9, whose weights are finite, all
// equal and wrong: mask.visibility sees those.
// It serves one case in the lab: every softmax after a mask can meet such a row.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

bool is_plain_softmax(const Launch& launch) {
  const std::string_view op = launch.label.op;
  return launch.label.phase == Phase::forward && (op == "softmax" || op == "log_softmax");
}

struct HiddenRows {
  int64_t first = -1;
  int64_t count = 0;
};

HiddenRows hidden_rows(const TensorView& scores) {
  const int64_t length = scores.shape[-1];
  HiddenRows hidden;
  for (int64_t row = 0; row * length < scores.numel(); ++row) {
    const std::vector<double> values = read_values(scores, row * length, length);
    const bool nothing =
        std::all_of(values.begin(), values.end(), [](double score) { return score == -INFINITY; });
    if (!nothing) continue;
    if (hidden.count++ == 0) hidden.first = row;
  }
  return hidden;
}

// "batch 0, head 1, query 3" for scores [B, H, Q, K], else "row 7".
std::string place_of(int64_t row, const Shape& shape) {
  if (shape.rank() != 4) return fmt::format("row {}", row);
  return fmt::format("batch {}, head {}, query {}", row / (shape[1] * shape[2]),
                     row / shape[2] % shape[1], row % shape[2]);
}

class SoftmaxRows : public Watcher {
 public:
  SoftmaxRows(Context& context, Findings& findings) : Watcher(context, findings, "softmax.rows") {
    on(&SoftmaxRows::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (found_ || !is_plain_softmax(event.launch)) return;
    looked();
    const TensorView& scores = event.launch.args.inputs[0];
    if (scores.shape.empty() || first_non_finite(scores) < 0) return;
    const HiddenRows hidden = hidden_rows(scores);
    if (hidden.count == 0) return;
    found_ = true;
    const char* module = event.launch.label.module;
    const int64_t rows = scores.numel() / scores.shape[-1];
    report("softmax.masked-row", 0.97, event.launch.label.op,
           fmt::format("{}{}{} of {} rows have no score above -inf before {}, the first at {}",
                       module, *module != 0 ? ": " : "", hidden.count, rows, event.launch.label.op,
                       place_of(hidden.first, scores.shape)));
  }

  bool found_ = false;
};

}  // namespace

DETECTOR(softmax_rows) {
  return {"softmax.rows",
          WatchLevel::full,
          {{"softmax.masked-row",
            "A mask hides every key of a query. Its row of scores is -infinity throughout, the "
            "softmax of that is 0 / 0 = NaN, and the NaN reaches every gradient, through 0 * NaN "
            "also where nobody uses the row.",
            "Leave each query something to see, or use a softmax that is told the mask and gives "
            "zeros for such a row. To overwrite the NaN afterwards does not save the gradients.",
            "Every row of scores holds one above -infinity."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<SoftmaxRows>(context, findings);
          }};
}

}  // namespace faultline::diagnose
