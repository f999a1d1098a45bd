#include "diagnose/loss_labels.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "diagnose/values.h"
#include "kernels/attributes.h"

namespace faultline::diagnose {

LabelRows::LabelRows(const Batch& batch)
    : length(batch.inputs.size(1)),
      inputs(batch.inputs.to_vector<int32_t>()),
      labels(batch.labels.to_vector<int32_t>()) {
  if (batch.documents.defined()) documents = batch.documents.to_vector<int32_t>();
  if (batch.key_valid.defined()) {
    for (const double valid : batch.key_valid.to_vector<double>()) is_text.push_back(valid != 0);
  }
}

bool LabelRows::ends(size_t i) const {
  if (!has_neighbour(i, 1)) return false;
  const bool new_document = !documents.empty() && documents[i + 1] != documents[i];
  const bool padding = !is_text.empty() && is_text[i] && !is_text[i + 1];
  return new_document || padding;
}

namespace {

// From the logits of all places to the loss there are few launches: a copy of a part, a cast.
constexpr size_t kFollowed = 16;

int64_t rows_of(const TensorView& view) {
  return view.shape.empty() || view.shape[-1] == 0 ? 0 : view.numel() / view.shape[-1];
}

bool begins_in(const TensorView& part, const TensorView& whole) {
  const ByteRange range = byte_range(whole);
  return range.begin <= part.data && part.data < range.end;
}

}  // namespace

void LossLabels::batch_comes(const train::BatchEvent& event) {
  rows_.emplace(event.batch);
  read_.clear();
  first_place_.reset();
  made_.clear();
}

void LossLabels::launched(const LaunchEvent& event) {
  if (!rows_) return;
  const KernelArgs& args = event.launch.args;
  if (std::string_view(event.launch.label.op) != "cross_entropy") {
    if (!read_.empty() || args.output_count == 0) return;
    made_.push_back({args.outputs[0], args.inputs[0]});
    if (made_.size() > kFollowed) made_.pop_front();
    return;
  }
  if (read_.empty()) first_place_ = first_place(args.inputs[0]);
  const auto ignored =
      static_cast<double>(args.attributes.as<CrossEntropyAttributes>().ignore_index);
  for (const double label : sample(args.inputs[1])) {
    read_.push_back(label == ignored ? kIgnoredLabel : static_cast<int32_t>(label));
  }
}

// Goes back from launch to launch, row for row, to memory that has a row for each place.
std::optional<int64_t> LossLabels::first_place(TensorView logits) const {
  const auto places = static_cast<int64_t>(rows_->inputs.size());
  for (auto made = made_.rbegin(); made != made_.rend(); ++made) {
    const TensorView& output = made->output;
    if (!begins_in(logits, output) || rows_of(output) == 0) continue;
    const auto bytes = static_cast<int64_t>(size_of(output.dtype)) * output.shape[-1];
    const int64_t row = (logits.data - output.data) / bytes;
    if (rows_of(output) == places) return row % rows_->length;
    if (row != 0 || rows_of(made->from) != rows_of(output)) return std::nullopt;
    logits = made->from;
  }
  return std::nullopt;
}

std::optional<LabelRows> LossLabels::take() {
  std::optional<LabelRows> rows = std::exchange(rows_, std::nullopt);
  if (!rows || read_.empty()) return rows;
  const size_t count = rows->inputs.size() / static_cast<size_t>(rows->length);
  const size_t taken = read_.size() / count;  // of a row
  const auto all = static_cast<size_t>(rows->length);
  const auto first = taken == all ? 0 : static_cast<size_t>(first_place_.value_or(rows->length));
  if (taken * count != read_.size() || first + taken > all) return std::nullopt;
  std::fill(rows->labels.begin(), rows->labels.end(), kIgnoredLabel);
  for (size_t row = 0; row < count; ++row) {
    std::copy_n(read_.begin() + static_cast<int64_t>(row * taken), taken,
                rows->labels.begin() + static_cast<int64_t>(row * all + first));
  }
  return rows;
}

}  // namespace faultline::diagnose
