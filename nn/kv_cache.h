#pragma once

#include <vector>

#include "core/tensor.h"

// Shapes: B batch, T new positions, K slots so far, G key-value heads, D head size.
namespace faultline::nn {

// Slots [begin, end) of a row.
struct SlotRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// In which slots a pass stores the keys and values of its new positions.
struct KvSlotsSeam {
  static constexpr const char* name = "cache slots";
  // `length` slots are filled, `count` come. Those behind the filled ones.
  using Signature = SlotRange(int64_t length, int64_t count);
  static SlotRange standard(int64_t length, int64_t count) { return {length, length + count}; }
};

// The slots of a cache in one block that attention is given.
struct KvReadSeam {
  static constexpr const char* name = "cache read";
  // Of the slots of a layer, [B, G, capacity, D]: the first `filled`.
  using Signature = Tensor(const Tensor& slots_BGCD, int64_t filled);
  static Tensor standard(const Tensor& slots_BGCD, int64_t filled);
};

class KvCache;

// A layer has stored the keys and values of a pass.
struct KvAppendEvent {
  const KvCache& cache;
  int64_t layer;
  int64_t length;   // slots that were filled before the pass
  SlotRange slots;  // that it stored
  int64_t given;    // slots of keys that attention got, from the first on
};

// What attention needs of a cache of keys and values. A forward pass of T new positions calls
// `append` once for each layer, in order; all layers of a pass append the same T.
class KvCache {
 public:
  struct All {
    Tensor k_BGKD;
    Tensor v_BGKD;
  };

  virtual ~KvCache() = default;

  // Slots that are filled before the running pass; the mask's query_offset.
  virtual int64_t length() const = 0;
  // Stores the keys and values of the new positions and returns those of all slots so far, the new
  // ones last. Throws InvalidArgument when another batch, head count, head size or dtype is stored
  // than before, when the slots are used up, and while gradients are on: a backward pass that
  // computes the layer anew would store them twice.
  virtual All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) = 0;
};

struct KvShape {
  int64_t num_layers = 0;
  int64_t batch = 0;
  int64_t num_heads = 0;  // of keys and values
  int64_t head_size = 0;
  int64_t capacity = 0;  // slots of a row

  // Throws InvalidArgument naming the first size that is not positive.
  void check() const;
};

// What a slot holds before anything is stored in it. NaN shows a read of such a slot in whatever it
// touches; it costs a write of the whole memory.
enum class Unwritten : uint8_t { anything, nan };

// The checks and the counting that every cache of stored slots shares.
class StoredKvCache : public KvCache {
 public:
  int64_t length() const override { return length_; }
  // The length grows with the last layer. A pass that an error cut short is forgotten: the next one
  // begins with layer 0 at the same slots.
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) final;
  // Forgets the slots from `length` on. Throws InvalidArgument when there are not so many.
  void truncate(int64_t length);

  const KvShape& shape() const { return shape_; }
  // In which keys and values are stored, rounded to nearest even. What append() returns has the
  // dtype of what it was given. Storing in f16 throws InvalidArgument where a finite value would
  // become infinite.
  DType dtype() const { return dtype_; }
  virtual int64_t bytes() const = 0;  // memory held for keys and values

 protected:
  // `dtype` is f32, f16 or bf16, else InvalidArgument.
  StoredKvCache(const KvShape& shape, DType dtype);
  // Stores slots [begin, begin + T) of a layer, and returns those that attention is given, from
  // the first on.
  virtual All store(int64_t layer, int64_t begin, const Tensor& k_BGTD, const Tensor& v_BGTD) = 0;
  // Slots from `length` on are forgotten.
  virtual void forget(int64_t length) = 0;
  void start_at(int64_t length);

 private:
  void check(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) const;

  KvShape shape_;
  DType dtype_;
  int64_t length_ = 0;
  int64_t next_layer_ = 0;
  int64_t new_slots_ = 0;     // T of the running pass
  DType given_ = DType::f32;  // dtype of the running pass
};

// Keys and values in one block of memory a layer, [B, G, capacity, D]. Returns views of it where
// the stored dtype is that of the computation, else copies.
class ContiguousKvCache : public StoredKvCache {
 public:
  explicit ContiguousKvCache(const KvShape& shape, DType dtype = DType::f32,
                             Unwritten unwritten = Unwritten::anything);
  int64_t bytes() const override;

 protected:
  All store(int64_t layer, int64_t begin, const Tensor& k_BGTD, const Tensor& v_BGTD) override;
  void forget(int64_t length) override;

 private:
  Unwritten unwritten_;
  std::vector<Tensor> keys_;  // a layer each
  std::vector<Tensor> values_;
};

// Copies into slots of a cache. Throws InvalidArgument when f16 slots cannot hold a finite value.
void store_slots(const Tensor& slots, const Tensor& values, int64_t layer);

}  // namespace faultline::nn
