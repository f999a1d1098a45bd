#pragma once

#include <vector>

#include "kernels/reference/loops.h"
#include "kernels/visibility.h"

namespace faultline::reference {

// Which keys the queries of one launch may see: the rule of MaskAttributes, and key_valid and
// documents where they are given.
class Visibility {
 public:
  // Throws InvalidArgument naming `op` when a query has no document.
  Visibility(const MaskAttributes& mask, const TensorView& valid, const TensorView& documents,
             int64_t queries, int64_t keys, const char* op)
      : mask_(mask), keys_(keys) {
    if (valid.defined()) valid_ = read_all<int64_t>(valid);
    if (documents.defined()) {
      documents_ = read_all<int64_t>(documents);
      const int64_t last = mask.query_offset + queries - 1;
      require(queries == 0 || keys == 0 || (mask.query_offset >= 0 && last < keys),
              "{}: with documents every query needs its own position among the keys; "
              "queries stand at {} to {}, there are {} keys",
              op, mask.query_offset, last, keys);
    }
  }

  bool operator()(int64_t b, int64_t q, int64_t k) const {
    const int64_t position = mask_.query_offset + q;
    if (!sees(mask_, position, k)) return false;
    if (!valid_.empty() && valid_[static_cast<size_t>(b * keys_ + k)] == 0) return false;
    if (documents_.empty()) return true;
    return documents_[static_cast<size_t>(b * keys_ + k)] ==
           documents_[static_cast<size_t>(b * keys_ + position)];
  }

 private:
  MaskAttributes mask_;
  int64_t keys_;
  std::vector<int64_t> valid_;
  std::vector<int64_t> documents_;
};

}  // namespace faultline::reference
