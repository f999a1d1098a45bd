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

void LossLabels::batch_comes(const train::BatchEvent& event) {
  rows_.emplace(event.batch);
  read_.clear();
}

void LossLabels::launched(const LaunchEvent& event) {
  const Launch& launch = event.launch;
  if (!rows_ || std::string_view(launch.label.op) != "cross_entropy") return;
  const auto ignored =
      static_cast<double>(launch.args.attributes.as<CrossEntropyAttributes>().ignore_index);
  for (const double label : sample(launch.args.inputs[1])) {
    read_.push_back(label == ignored ? kIgnoredLabel : static_cast<int32_t>(label));
  }
}

std::optional<LabelRows> LossLabels::take() {
  std::optional<LabelRows> rows = std::exchange(rows_, std::nullopt);
  if (!rows || read_.empty()) return rows;
  const size_t count = rows->inputs.size() / static_cast<size_t>(rows->length);
  const size_t taken = read_.size() / count;  // of a row
  if (taken * count != read_.size() || taken > static_cast<size_t>(rows->length)) {
    return std::nullopt;
  }
  std::fill(rows->labels.begin(), rows->labels.end(), kIgnoredLabel);
  for (size_t row = 0; row < count; ++row) {
    std::copy_n(read_.begin() + static_cast<int64_t>(row * taken), taken,
                rows->labels.begin() + static_cast<int64_t>(row) * rows->length);
  }
  return rows;
}

}  // namespace faultline::diagnose
