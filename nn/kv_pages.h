#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nn/kv_cache.h"

// Shapes: G key-value heads, P slots of a page, N some of them, D head size.
namespace faultline::nn {

struct PageShape {
  int64_t num_layers = 0;
  int64_t num_heads = 0;  // of keys and values
  int64_t head_size = 0;
  int64_t slots = 16;  // of a page

  bool operator==(const PageShape&) const = default;
};

// As which dtype the bits of a page are read.
struct PageDTypeSeam {
  static constexpr const char* name = "page dtype";
  // `asked` by whoever reads; a page that holds `written` is not read as anything else: throws
  // InvalidArgument.
  using Signature = DType(int32_t page, DType written, DType asked);
  static DType standard(int32_t page, DType written, DType asked);
};

// Slots of a page were read.
struct PageReadEvent {
  int32_t page;
  int64_t layer;
  DType written;
  DType read;
};

// Memory for keys and values in pages of a few slots ("Efficient memory management for large
// language model serving with PagedAttention", Kwon et al. 2023). A page holds its slots for all
// layers. It belongs to whoever took it, and may be shared; then nobody writes to it.
//
// A page carries the dtype of what was written and, for each layer, a checksum of its slots. The
// dtype is compared at every read, the checksum by verify(), which reads the whole page. On the CPU
// only.
class PagePool {
 public:
  using Page = int32_t;

  // `element_bytes` is 2 or 4: pages of f16 and bf16 may lie in one pool.
  PagePool(const PageShape& shape, int64_t pages, size_t element_bytes,
           Unwritten unwritten = Unwritten::anything);

  const PageShape& shape() const { return shape_; }
  size_t element_bytes() const { return element_bytes_; }
  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t page_bytes() const { return shape_.num_layers * layer_bytes_; }

  // A page that nobody has, with one reference. Throws InvalidArgument when there is none.
  Page take();
  // One reference more, or less; the page is free when none is left. These and all below throw
  // InvalidArgument for a number that is no page, or a page that is free.
  void retain(Page page);
  void release(Page page);
  int64_t references(Page page) const;
  // The dtype that was written; none before.
  std::optional<DType> dtype(Page page) const;

  // Writes N slots of a layer from `first` on; k and v [G, N, D] are rounded to `dtype`. Throws
  // InvalidArgument when the page is shared, or holds another dtype.
  void write(Page page, int64_t layer, int64_t first, DType dtype, const Tensor& k_GND,
             const Tensor& v_GND);
  // Copies the first N slots of a layer to k and v [G, N, D]. Throws InvalidArgument when the page
  // holds another dtype than `dtype`, or fewer slots.
  void read(Page page, int64_t layer, DType dtype, const Tensor& k_GND, const Tensor& v_GND) const;
  // A new page with the first n slots of all layers.
  Page copy(Page page, int64_t n);
  // Forgets the slots from n on.
  void forget(Page page, int64_t n);
  // Throws InvalidArgument naming the first layer whose slots are not those that were written.
  void verify(Page page) const;
  void verify(Page page, int64_t layer) const;

  // The bytes of one layer of a page, K [G, P, D] before V, for tools and tests. Writing to them is
  // what verify() finds.
  std::span<std::byte> bytes(Page page, int64_t layer) const;

 private:
  struct Record {
    int64_t references = 0;
    std::optional<DType> dtype;
    std::vector<int64_t> filled;     // slots, for each layer
    std::vector<uint64_t> checksum;  // sum of those of the slots, for each layer
  };

  Record& live(Page page);
  const Record& live(Page page) const;
  void check_dtype(Page page, DType dtype) const;
  // Slots [first, first + n) of the keys (part 0) or values (part 1) of one layer.
  Tensor part(Page page, int64_t layer, DType dtype, int64_t part, int64_t first, int64_t n) const;
  uint64_t checksum(Page page, int64_t layer, int64_t first, int64_t end) const;
  void spoil(Page page, int64_t first) const;

  PageShape shape_;
  size_t element_bytes_;
  Unwritten unwritten_;
  int64_t layer_bytes_;             // of one layer of one page
  std::shared_ptr<Tensor> memory_;  // u8 [pages, layers, 2, G, P, D, element]
  std::array<Tensor, 3> typed_;     // the same memory as f32, f16, bf16, where the size allows it
  std::vector<Record> pages_;
  std::vector<Page> free_;  // the last one is taken first
};

enum class PageChecks : uint8_t {
  when_shared,  // checksums of pages that begin a row, once
  every_read,   // those of every page a pass reads too: a pass then reads all pages twice
};

// A cache whose rows are lists of pages. Padding is not stored and reads as zeros. Attention gets
// copies, gathered from the pages.
class PagedKvCache : public StoredKvCache {
 public:
  // `shape.batch` rows, whose first `pads[b]` slots are padding (empty: none).
  PagedKvCache(std::shared_ptr<PagePool> pool, const KvShape& shape, DType dtype,
               std::vector<int64_t> pads = {}, PageChecks checks = PageChecks::when_shared);
  ~PagedKvCache() override;
  PagedKvCache(const PagedKvCache&) = delete;
  PagedKvCache& operator=(const PagedKvCache&) = delete;

  // Begins with `length` slots that are stored already: those of row b after its padding are the
  // first of the pages rows[b], which it shares from now on. Throws InvalidArgument when the cache
  // is in use, when pages are too few, hold another dtype or fail verify(), before it changes
  // anything.
  void begin_with(const std::vector<std::vector<PagePool::Page>>& rows, int64_t length);

  // Pages of a row: page i holds its tokens from i * P on.
  const std::vector<PagePool::Page>& pages(int64_t row) const;
  int64_t bytes() const override;

 protected:
  All store(int64_t layer, int64_t begin, const Tensor& k_BGTD, const Tensor& v_BGTD) override;
  void forget(int64_t length) override;

 private:
  int64_t pad(int64_t row) const { return pads_.empty() ? 0 : pads_[static_cast<size_t>(row)]; }
  void write_row(int64_t row, int64_t layer, int64_t begin, const Tensor& k_GTD,
                 const Tensor& v_GTD);
  void read_row(int64_t row, int64_t layer, const Tensor& k_GKD, const Tensor& v_GKD) const;

  std::shared_ptr<PagePool> pool_;
  std::vector<int64_t> pads_;
  PageChecks checks_;
  std::vector<std::vector<PagePool::Page>> rows_;
};

}  // namespace faultline::nn
