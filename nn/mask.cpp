#include "nn/mask.h"

namespace faultline::nn {
namespace {

// The part of the predicate that positions decide.
bool within_reach(const Mask& mask, int64_t position, int64_t k) {
  const bool in_prefix = k < mask.prefix;
  const bool in_past = !mask.causal || k <= position;
  const bool in_window =
      mask.window == 0 || (k > position - mask.window && k < position + mask.window);
  const bool is_sink = k < mask.sinks;
  return in_prefix || (in_past && (in_window || is_sink));
}

}  // namespace

std::vector<uint8_t> visibility(const Mask& mask, int64_t batch, int64_t queries, int64_t keys) {
  std::vector<uint8_t> valid;
  std::vector<int32_t> documents;
  if (mask.key_valid.defined()) valid = mask.key_valid.to_vector<uint8_t>();
  if (mask.documents.defined()) documents = mask.documents.to_vector<int32_t>();
  std::vector<uint8_t> result;
  result.reserve(static_cast<size_t>(batch * queries * keys));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t q = 0; q < queries; ++q) {
      const int64_t position = mask.query_offset + q;
      for (int64_t k = 0; k < keys; ++k) {
        bool visible = within_reach(mask, position, k);
        if (!valid.empty()) visible = visible && valid[static_cast<size_t>(b * keys + k)] != 0;
        if (!documents.empty()) {
          visible = visible && documents[static_cast<size_t>(b * keys + k)] ==
                                   documents[static_cast<size_t>(b * keys + position)];
        }
        result.push_back(visible ? 1 : 0);
      }
    }
  }
  return result;
}

}  // namespace faultline::nn
