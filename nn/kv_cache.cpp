#include "nn/kv_cache.h"

#include <algorithm>
#include <limits>

#include "autograd/functional.h"
#include "core/context.h"

namespace faultline::nn {

void KvShape::check() const {
  const auto positive = [](int64_t value, const char* what) {
    require(value > 0, "kv cache: {} must be positive, got {}", what, value);
  };
  positive(num_layers, "the number of layers");
  positive(batch, "the batch");
  positive(num_heads, "the number of key-value heads");
  positive(head_size, "the head size");
  positive(capacity, "the capacity");
}

void store_slots(const Tensor& slots, const Tensor& values, int64_t layer) {
  copy_(slots, values);
  // The range of bf16 is that of f32; f16 ends at 65504.
  if (slots.dtype() != DType::f16 || all_finite(slots)) return;
  require(!all_finite(values),
          "kv cache: layer {} has a key or value beyond 65504, the largest f16; store bf16 or f32",
          layer);
}

Tensor KvReadSeam::standard(const Tensor& slots_BGCD, int64_t filled) {
  return slice(slots_BGCD, 2, 0, filled);
}

StoredKvCache::StoredKvCache(const KvShape& shape, DType dtype) : shape_(shape), dtype_(dtype) {
  shape.check();
  require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
          "kv cache: stores f32, f16 or bf16, not {}", name(dtype));
}

void StoredKvCache::check(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) const {
  require(!Context::current().gradients,
          "kv cache: gradients are on; a backward pass that computes a layer anew would store its "
          "keys twice. Hold a NoGrad while generating, or train without a cache");
  require(layer == next_layer_ || layer == 0,
          "kv cache: layer {} appends where layer {} of {} is due; every layer appends once a pass",
          layer, next_layer_, shape_.num_layers);
  for (const Tensor* given : {&k_BGTD, &v_BGTD}) {
    const bool fits = given->rank() == 4 && given->size(0) == shape_.batch &&
                      given->size(1) == shape_.num_heads && given->size(3) == shape_.head_size;
    require(fits && given->size(2) == k_BGTD.size(2),
            "kv cache: holds [{}, {}, slots, {}], got {}; a cache serves one model and one batch",
            shape_.batch, shape_.num_heads, shape_.head_size, *given);
    require(given->dtype() == k_BGTD.dtype() && is_floating(given->dtype()),
            "kv cache: keys are {}, values {}; expected one floating dtype", name(k_BGTD.dtype()),
            name(v_BGTD.dtype()));
  }
  const int64_t T = k_BGTD.size(2);
  require(layer == 0 || (T == new_slots_ && k_BGTD.dtype() == given_),
          "kv cache: layer {} appends {} positions of {}, layer 0 appended {} of {}", layer, T,
          name(k_BGTD.dtype()), new_slots_, name(given_));
  require(length_ + T <= shape_.capacity,
          "kv cache: {} slots are used and {} more are needed, of {}; generate less, or make the "
          "cache larger",
          length_, T, shape_.capacity);
}

KvCache::All StoredKvCache::append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) {
  check(layer, k_BGTD, v_BGTD);
  new_slots_ = k_BGTD.size(2);
  given_ = k_BGTD.dtype();
  next_layer_ = layer;  // until it is stored, only this layer or a new pass may come
  const Context& context = Context::current();
  const SlotRange slots = context.seams.call<KvSlotsSeam>(length_, new_slots_);
  const All all = store(layer, slots.begin, k_BGTD, v_BGTD);
  context.events.emit(KvAppendEvent{*this, layer, length_, slots, all.k_BGKD.size(2)});
  next_layer_ = layer + 1;
  if (next_layer_ == shape_.num_layers) start_at(std::max(length_, slots.end));
  return all;
}

void StoredKvCache::start_at(int64_t length) {
  length_ = length;
  next_layer_ = 0;
}

void StoredKvCache::truncate(int64_t length) {
  require(length >= 0 && length <= length_, "kv cache: cannot keep {} of {} slots", length,
          length_);
  forget(length);
  start_at(length);
}

ContiguousKvCache::ContiguousKvCache(const KvShape& shape, DType dtype, Unwritten unwritten)
    : StoredKvCache(shape, dtype), unwritten_(unwritten) {
  const Shape slots = {shape.batch, shape.num_heads, shape.capacity, shape.head_size};
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    keys_.push_back(empty(slots, dtype, "kv cache"));
    values_.push_back(empty(slots, dtype, "kv cache"));
  }
  forget(0);
}

int64_t ContiguousKvCache::bytes() const {
  return 2 * shape().num_layers * keys_[0].numel() * static_cast<int64_t>(size_of(dtype()));
}

void ContiguousKvCache::forget(int64_t length) {
  if (unwritten_ == Unwritten::anything) return;
  const NoGrad off;
  for (const auto* layers : {&keys_, &values_}) {
    for (const Tensor& slots : *layers) {
      fill_(slice(slots, 2, length, shape().capacity), std::numeric_limits<double>::quiet_NaN());
    }
  }
}

KvCache::All ContiguousKvCache::store(int64_t layer, int64_t begin, const Tensor& k_BGTD,
                                      const Tensor& v_BGTD) {
  const int64_t end = begin + k_BGTD.size(2);
  const int64_t filled = std::max(length(), end);
  const auto stored = [&](const Tensor& slots, const Tensor& given) {
    store_slots(slice(slots, 2, begin, end), given, layer);
    return cast(Context::current().seams.call<KvReadSeam>(slots, filled), given.dtype());
  };
  const auto number = static_cast<size_t>(layer);
  return {stored(keys_[number], k_BGTD), stored(values_[number], v_BGTD)};
}

}  // namespace faultline::nn
