#include "nn/kv_pages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "autograd/functional.h"
#include "core/context.h"

namespace faultline::nn {
namespace {

constexpr DType kStored[] = {DType::f32, DType::f16, DType::bf16};

size_t index_of(DType dtype) {
  for (size_t i = 0; i < 3; ++i) {
    if (kStored[i] == dtype) return i;
  }
  fail("kv pages: store f32, f16 or bf16, not {}", name(dtype));
}

// Mixes eight bytes at a time; a tail is filled up with zeros.
uint64_t mixed(uint64_t state, const std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    state = std::rotl((state ^ word) * 0x9e3779b97f4a7c15U, 29);
  }
  return state;
}

// Elements [first, first + n) of a dimension, without the cost of an op.
Tensor narrowed(const Tensor& x, int dim, int64_t first, int64_t n) {
  Shape shape = x.shape();
  shape[dim] = n;
  return x.alias(shape, x.strides(), first * x.strides()[dim]);
}

// One element of the first dimension, which goes away.
Tensor element(const Tensor& x, int64_t i) {
  Shape shape;
  Strides strides;
  for (int d = 1; d < x.rank(); ++d) {
    shape.push_back(x.shape()[d]);
    strides.push_back(x.strides()[d]);
  }
  return x.alias(shape, strides, i * x.strides()[0]);
}

}  // namespace

PagePool::PagePool(const PageShape& shape, int64_t pages, size_t element_bytes, Unwritten unwritten)
    : shape_(shape),
      element_bytes_(element_bytes),
      unwritten_(unwritten),
      layer_bytes_(2 * shape.num_heads * shape.slots * shape.head_size *
                   static_cast<int64_t>(element_bytes)) {
  KvShape{shape.num_layers, 1, shape.num_heads, shape.head_size, shape.slots}.check();
  require(pages >= 1, "kv pages: the pool needs at least one page, got {}", pages);
  require(element_bytes == 2 || element_bytes == 4, "kv pages: elements have 2 or 4 bytes, got {}",
          element_bytes);
  memory_ = std::make_shared<Tensor>(empty({pages * page_bytes()}, DType::u8, "kv pages"));
  const TensorView all = memory_->view();
  const Shape typed = {pages, shape.num_layers, 2, shape.num_heads, shape.slots, shape.head_size};
  for (size_t i = 0; i < 3; ++i) {
    if (size_of(kStored[i]) != element_bytes) continue;
    typed_[i] = Tensor::over(
        adopt(all.data, static_cast<size_t>(pages * page_bytes()), memory_->device(), memory_),
        kStored[i], typed);
  }
  pages_.resize(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) {
    free_.push_back(static_cast<Page>(page));
    spoil(static_cast<Page>(page), 0);
  }
}

PagePool::Record& PagePool::live(Page page) {
  return const_cast<Record&>(std::as_const(*this).live(page));
}

const PagePool::Record& PagePool::live(Page page) const {
  require(page >= 0 && page < pages(), "kv pages: there is no page {}; the pool has 0 to {}", page,
          pages() - 1);
  const Record& record = pages_[static_cast<size_t>(page)];
  require(record.references > 0, "kv pages: page {} is free; take or retain it before its use",
          page);
  return record;
}

PagePool::Page PagePool::take() {
  require(!free_.empty(),
          "kv pages: all {} pages of {} slots are in use; end a sequence, or make the pool larger",
          pages(), shape_.slots);
  const Page page = free_.back();
  free_.pop_back();
  const auto layers = static_cast<size_t>(shape_.num_layers);
  pages_[static_cast<size_t>(page)] = {
      1, {}, std::vector<int64_t>(layers, 0), std::vector<uint64_t>(layers, 0)};
  return page;
}

void PagePool::retain(Page page) { ++live(page).references; }

void PagePool::release(Page page) {
  if (--live(page).references > 0) return;
  spoil(page, 0);
  free_.push_back(page);
}

int64_t PagePool::references(Page page) const { return live(page).references; }

std::optional<DType> PagePool::dtype(Page page) const { return live(page).dtype; }

DType PageDTypeSeam::standard(int32_t page, DType written, DType asked) {
  require(written == asked,
          "kv pages: page {} holds {}, and is used as {}; the bits of one mean other numbers in "
          "the other",
          page, faultline::name(written), faultline::name(asked));
  return asked;
}

void PagePool::check_dtype(Page page, DType dtype) const {
  PageDTypeSeam::standard(page, live(page).dtype.value_or(dtype), dtype);
}

Tensor PagePool::part(Page page, int64_t layer, DType dtype, int64_t part, int64_t first,
                      int64_t n) const {
  const Tensor& all = typed_[index_of(dtype)];
  require(all.defined(), "kv pages: elements have {} bytes, {} needs {}", element_bytes_,
          name(dtype), size_of(dtype));
  return narrowed(element(element(element(all, page), layer), part), 1, first, n);
}

void PagePool::write(Page page, int64_t layer, int64_t first, DType dtype, const Tensor& k_GND,
                     const Tensor& v_GND) {
  Record& record = live(page);
  require(record.references == 1, "kv pages: page {} has {} owners; copy it before writing", page,
          record.references);
  check_dtype(page, dtype);
  const auto number = static_cast<size_t>(layer);
  const int64_t N = k_GND.size(1);
  require(first >= 0 && first <= record.filled[number] && first + N <= shape_.slots,
          "kv pages: slots [{}, {}) do not follow the {} of page {}", first, first + N,
          record.filled[number], page);
  store_slots(part(page, layer, dtype, 0, first, N), k_GND, layer);
  store_slots(part(page, layer, dtype, 1, first, N), v_GND, layer);
  record.dtype = dtype;
  if (first < record.filled[number]) record.checksum[number] = checksum(page, layer, 0, first);
  record.checksum[number] += checksum(page, layer, first, first + N);
  record.filled[number] = first + N;
}

void PagePool::read(Page page, int64_t layer, DType dtype, const Tensor& k_GND,
                    const Tensor& v_GND) const {
  const Context& context = Context::current();
  const DType written = live(page).dtype.value_or(dtype);
  const DType as = context.seams.call<PageDTypeSeam>(page, written, dtype);
  const int64_t filled = live(page).filled[static_cast<size_t>(layer)];
  const int64_t N = k_GND.size(1);
  require(N <= filled, "kv pages: page {} holds {} slots in layer {}, {} are read", page, filled,
          layer, N);
  copy_(k_GND, part(page, layer, as, 0, 0, N));
  copy_(v_GND, part(page, layer, as, 1, 0, N));
  context.events.emit(PageReadEvent{page, layer, written, as});
}

PagePool::Page PagePool::copy(Page page, int64_t n) {
  const DType dtype = live(page).dtype.value_or(element_bytes_ == 4 ? DType::f32 : DType::f16);
  const Page made = take();
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    write(made, layer, 0, dtype, part(page, layer, dtype, 0, 0, n),
          part(page, layer, dtype, 1, 0, n));
  }
  return made;
}

void PagePool::forget(Page page, int64_t n) {
  Record& record = live(page);
  for (size_t layer = 0; layer < record.filled.size(); ++layer) {
    if (record.filled[layer] <= n) continue;
    record.checksum[layer] = checksum(page, static_cast<int64_t>(layer), 0, n);
    record.filled[layer] = n;
  }
  spoil(page, n);
}

std::span<std::byte> PagePool::bytes(Page page, int64_t layer) const {
  std::byte* begin = memory_->view().data + page * page_bytes() + layer * layer_bytes_;
  return {begin, static_cast<size_t>(layer_bytes_)};
}

// The sum of a hash of each slot and its place, so that a new slot adds its own.
uint64_t PagePool::checksum(Page page, int64_t layer, int64_t first, int64_t end) const {
  const std::byte* data = bytes(page, layer).data();
  const int64_t row = shape_.head_size * static_cast<int64_t>(element_bytes_);
  uint64_t total = 0;
  for (int64_t slot = first; slot < end; ++slot) {
    uint64_t hash = static_cast<uint64_t>(slot) + 1;
    for (int64_t head = 0; head < 2 * shape_.num_heads; ++head) {
      hash = mixed(hash, data + (head * shape_.slots + slot) * row, row);
    }
    total += hash * 0xff51afd7ed558ccdU;
  }
  return total;
}

void PagePool::verify(Page page) const {
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer) verify(page, layer);
}

void PagePool::verify(Page page, int64_t layer) const {
  const Record& record = live(page);
  const auto number = static_cast<size_t>(layer);
  const uint64_t found = checksum(page, layer, 0, record.filled[number]);
  require(found == record.checksum[number],
          "kv pages: page {}, layer {}: checksum {:016x}, {:016x} was written; its {} slots were "
          "changed since. Compute the sequence anew",
          page, layer, found, record.checksum[number], record.filled[number]);
}

// Slots from `first` on become NaN in every floating type.
void PagePool::spoil(Page page, int64_t first) const {
  if (unwritten_ == Unwritten::anything) return;
  const int64_t slot = shape_.head_size * static_cast<int64_t>(element_bytes_);
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    std::byte* data = bytes(page, layer).data();
    for (int64_t head = 0; head < 2 * shape_.num_heads; ++head) {
      std::memset(data + (head * shape_.slots + first) * slot, 0xff,
                  static_cast<size_t>((shape_.slots - first) * slot));
    }
  }
}

PagedKvCache::PagedKvCache(std::shared_ptr<PagePool> pool, const KvShape& shape, DType dtype,
                           std::vector<int64_t> pads, PageChecks checks)
    : StoredKvCache(shape, dtype),
      pool_(std::move(pool)),
      pads_(std::move(pads)),
      checks_(checks),
      rows_(static_cast<size_t>(shape.batch)) {
  const PageShape& page = pool_->shape();
  require(page.num_layers == shape.num_layers && page.num_heads == shape.num_heads &&
              page.head_size == shape.head_size,
          "kv cache: pages hold {} layers of {} heads of {}, the model has {} of {} of {}",
          page.num_layers, page.num_heads, page.head_size, shape.num_layers, shape.num_heads,
          shape.head_size);
  require(pool_->element_bytes() == size_of(dtype),
          "kv cache: elements of the pages have {} bytes, {} needs {}", pool_->element_bytes(),
          name(dtype), size_of(dtype));
  require(pads_.empty() || static_cast<int64_t>(pads_.size()) == shape.batch,
          "kv cache: {} paddings for {} rows", pads_.size(), shape.batch);
  for (const int64_t pad : pads_) {
    require(pad >= 0, "kv cache: a padding of {} slots; it cannot be negative", pad);
  }
}

PagedKvCache::~PagedKvCache() {
  for (const auto& row : rows_) {
    for (const PagePool::Page page : row) pool_->release(page);
  }
}

void PagedKvCache::begin_with(const std::vector<std::vector<PagePool::Page>>& rows,
                              int64_t length) {
  require(this->length() == 0 && rows.size() == rows_.size() && length <= shape().capacity,
          "kv cache: {} rows of {} slots cannot begin a cache of {} rows with {} slots in use",
          rows.size(), length, rows_.size(), this->length());
  const int64_t P = pool_->shape().slots;
  std::vector<std::vector<PagePool::Page>> shared(rows.size());
  for (size_t b = 0; b < rows.size(); ++b) {
    const int64_t tokens = std::max<int64_t>(0, length - pad(static_cast<int64_t>(b)));
    const int64_t needed = (tokens + P - 1) / P;
    require(static_cast<int64_t>(rows[b].size()) >= needed,
            "kv cache: row {} begins with {} tokens and has {} pages of {}", b, tokens,
            rows[b].size(), P);
    shared[b].assign(rows[b].begin(), rows[b].begin() + needed);
    for (const PagePool::Page page : shared[b]) {
      require(pool_->dtype(page) == dtype(), "kv cache: page {} does not hold {}", page,
              name(dtype()));
      pool_->verify(page);
    }
  }
  for (const auto& row : shared) {
    for (const PagePool::Page page : row) pool_->retain(page);
  }
  rows_ = std::move(shared);
  start_at(length);
}

const std::vector<PagePool::Page>& PagedKvCache::pages(int64_t row) const {
  require(row >= 0 && row < shape().batch, "kv cache: there is no row {} of {}", row,
          shape().batch);
  return rows_[static_cast<size_t>(row)];
}

int64_t PagedKvCache::bytes() const {
  int64_t pages = 0;
  for (const auto& row : rows_) pages += std::ssize(row);
  return pages * pool_->page_bytes();
}

void PagedKvCache::forget(int64_t length) {
  const int64_t P = pool_->shape().slots;
  for (int64_t b = 0; b < shape().batch; ++b) {
    auto& row = rows_[static_cast<size_t>(b)];
    const int64_t tokens = std::max<int64_t>(0, length - pad(b));
    while (std::ssize(row) > (tokens + P - 1) / P) {
      pool_->release(row.back());
      row.pop_back();
    }
    // A shared page keeps its slots; the next write copies what this row has of it.
    if (tokens % P != 0 && pool_->references(row.back()) == 1)
      pool_->forget(row.back(), tokens % P);
  }
}

KvCache::All PagedKvCache::store(int64_t layer, int64_t begin, const Tensor& k_BGTD,
                                 const Tensor& v_BGTD) {
  Shape shape = k_BGTD.shape();
  shape[2] = std::max(length(), begin + shape[2]);
  const All all{empty(shape, k_BGTD.dtype(), "kv pages"), empty(shape, k_BGTD.dtype(), "kv pages")};
  for (int64_t b = 0; b < shape[0]; ++b) {
    write_row(b, layer, begin, element(k_BGTD, b), element(v_BGTD, b));
    read_row(b, layer, element(all.k_BGKD, b), element(all.v_BGKD, b));
  }
  return all;
}

void PagedKvCache::write_row(int64_t b, int64_t layer, int64_t begin, const Tensor& k_GTD,
                             const Tensor& v_GTD) {
  auto& row = rows_[static_cast<size_t>(b)];
  const int64_t P = pool_->shape().slots;
  const int64_t T = k_GTD.size(1);
  for (int64_t t = std::max<int64_t>(0, pad(b) - begin); t < T;) {
    const int64_t token = begin + t - pad(b);
    const auto place = static_cast<size_t>(token / P);
    const int64_t first = token % P;
    if (place == row.size()) row.push_back(pool_->take());
    if (pool_->references(row[place]) > 1) {
      const PagePool::Page own = pool_->copy(row[place], first);
      pool_->release(row[place]);
      row[place] = own;
    }
    const int64_t n = std::min(T - t, P - first);
    pool_->write(row[place], layer, first, dtype(), narrowed(k_GTD, 1, t, n),
                 narrowed(v_GTD, 1, t, n));
    t += n;
  }
}

void PagedKvCache::read_row(int64_t b, int64_t layer, const Tensor& k_GKD,
                            const Tensor& v_GKD) const {
  const int64_t K = k_GKD.size(1);
  const int64_t pads = std::min(pad(b), K);
  if (pads > 0) {
    fill_(narrowed(k_GKD, 1, 0, pads), 0);
    fill_(narrowed(v_GKD, 1, 0, pads), 0);
  }
  int64_t slot = pads;
  for (const PagePool::Page page : rows_[static_cast<size_t>(b)]) {
    if (slot >= K) break;
    if (checks_ == PageChecks::every_read) pool_->verify(page, layer);
    const int64_t n = std::min(K - slot, pool_->shape().slots);
    pool_->read(page, layer, dtype(), narrowed(k_GKD, 1, slot, n), narrowed(v_GKD, 1, slot, n));
    slot += n;
  }
}

}  // namespace faultline::nn
