#pragma once

#include <algorithm>

#include "core/error.h"
#include "core/launch.h"
#include "kernels/visibility.h"

namespace faultline::cpu {

// Which keys the queries of one launch may see: the rule of MaskAttributes, and key_valid [B, K]
// and documents [B, K] where they are given. The views must outlive it.
class Visibility {
 public:
  // Throws InvalidArgument naming `op` when a query has no document.
  Visibility(const MaskAttributes& mask, const TensorView& valid, const TensorView& documents,
             int64_t queries, int64_t keys, const char* op)
      : mask_(mask), valid_(valid), documents_(documents), keys_(keys) {
    const int64_t end = mask.query_offset + queries;
    require(!documents.defined() || (mask.query_offset >= 0 && end <= keys),
            "{}: documents need query positions inside the {} keys, got {} to {}. Give queries and "
            "keys of one sequence.",
            op, keys, mask.query_offset, end - 1);
  }

  // What the rule alone allows.
  VisibleKeys ranges(int64_t query) const {
    return visible_keys(mask_, mask_.query_offset + query, keys_);
  }
  // Keys from here on are seen by nobody.
  int64_t reach(int64_t query) const { return ranges(query).reach(); }

  const MaskAttributes& mask() const { return mask_; }
  bool has_documents() const { return documents_.defined(); }
  bool is_valid(int64_t batch, int64_t key) const {
    return !valid_.defined() ||
           valid_.as<bool>()[batch * valid_.strides[0] + key * valid_.strides[1]];
  }
  int32_t document(int64_t batch, int64_t position) const {
    return documents_
        .as<int32_t>()[batch * documents_.strides[0] + position * documents_.strides[1]];
  }

  // Whether a query may miss a key below its reach.
  bool has_gaps() const { return mask_.window > 0 || depends_on_key(); }
  bool depends_on_key() const { return valid_.defined() || documents_.defined(); }

  // allowed[k] = 1 or 0 for the keys below the query's reach; returns how many are 1.
  int64_t allow(int64_t batch, int64_t query, float* allowed) const {
    const VisibleKeys seen = ranges(query);
    const int64_t n = seen.reach();
    std::fill_n(allowed, n, 1.0F);
    if (seen.begin < seen.end) std::fill(allowed + seen.first, allowed + seen.begin, 0.0F);
    if (valid_.defined()) {
      const int64_t stride = valid_.strides[1];
      const bool* valid = valid_.as<bool>() + batch * valid_.strides[0];
      for (int64_t k = 0; k < n; ++k) {
        if (!valid[k * stride]) allowed[k] = 0;
      }
    }
    if (documents_.defined()) {
      const int64_t stride = documents_.strides[1];
      const int32_t* document = documents_.as<int32_t>() + batch * documents_.strides[0];
      const int32_t own = document[(mask_.query_offset + query) * stride];
      for (int64_t k = 0; k < n; ++k) {
        if (document[k * stride] != own) allowed[k] = 0;
      }
    }
    return std::count(allowed, allowed + n, 1.0F);
  }

 private:
  MaskAttributes mask_;
  const TensorView& valid_;
  const TensorView& documents_;
  int64_t keys_;
};

}  // namespace faultline::cpu
