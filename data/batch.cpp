#include "data/batch.h"

#include <algorithm>

#include "core/context.h"

namespace faultline {

std::vector<int32_t> LabelSeam::standard(const TokenRow& row) {
  std::vector<int32_t> labels(row.tokens.size() - 1, kIgnoredLabel);
  for (int64_t t = 0; t + 1 < row.length; ++t) {
    if (row.tokens[t] != row.end_token) labels[t] = row.tokens[t + 1];
  }
  return labels;
}

Batch make_batch(std::span<const TokenRow> rows, int64_t first_sequence) {
  require(!rows.empty() && rows[0].tokens.size() >= 2, "batch: there are no rows to make it of");
  const size_t length = rows[0].tokens.size() - 1;
  const size_t count = rows.size() * length;
  std::vector<int32_t> inputs, labels, documents;
  std::vector<uint8_t> valid;
  for (auto* part : {&inputs, &labels, &documents}) part->reserve(count);
  valid.reserve(count);

  const Context& context = Context::current();
  for (const TokenRow& row : rows) {
    const std::vector<int32_t> made = context.seams.call<LabelSeam>(row);
    require(made.size() == length, "labels: {} labels were made for {} positions", made.size(),
            length);
    labels.insert(labels.end(), made.begin(), made.end());
    int32_t document = 0;
    for (size_t t = 0; t < length; ++t) {
      const bool is_text = static_cast<int64_t>(t) < row.length;
      inputs.push_back(row.tokens[t]);
      documents.push_back(document);
      valid.push_back(is_text ? 1 : 0);
      const bool more_text = static_cast<int64_t>(t) + 1 < row.length;
      if (more_text && row.tokens[t] == row.end_token) ++document;
    }
  }

  const Shape shape{static_cast<int64_t>(rows.size()), static_cast<int64_t>(length)};
  Batch batch;
  batch.inputs = tensor(inputs, shape);
  batch.labels = tensor(labels, shape);
  batch.documents = tensor(documents, shape);
  if (std::find(valid.begin(), valid.end(), 0) != valid.end()) {
    batch.key_valid = empty(shape, DType::boolean, "batch");
    std::copy(valid.begin(), valid.end(), batch.key_valid.mutable_data<bool>("batch").begin());
  }
  batch.valid_tokens =
      static_cast<int64_t>(count) - std::count(labels.begin(), labels.end(), kIgnoredLabel);
  batch.first_sequence = first_sequence;
  return batch;
}

}  // namespace faultline
