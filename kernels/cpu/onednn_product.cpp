// Products through oneDNN, API 2.x or 3.x. The only file that includes it.

#include <dnnl.hpp>

#include <fmt/core.h>

#include <compare>
#include <map>
#include <unordered_map>

#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_library.h"

#ifndef _OPENMP
#error \
    "oneDNN would choose its own number of threads: use FAULTLINE_OPENMP=ON or FAULTLINE_ONEDNN=OFF"
#endif
#include <omp.h>

namespace faultline::cpu {

namespace {
// oneDNN asks OpenMP how many threads it may use; its bits depend on the answer.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

dnnl::cpu_isa library_level() {
  switch (active_isa()) {
    case Isa::v2:
      return dnnl::cpu_isa::sse41;
    case Isa::v3:
      return dnnl::cpu_isa::avx2;
    case Isa::v4:
      break;
  }
  return dnnl::cpu_isa::avx512_core_bf16;
}

bool limit_to_level() {
  const dnnl::cpu_isa level = library_level();
  if (dnnl::set_max_cpu_isa(level) != dnnl::status::success &&
      dnnl::get_effective_cpu_isa() != level) {
    throw Error(
        "oneDNN: its instruction set is fixed already, at another level than FAULTLINE_ISA; "
        "something in this process used oneDNN before Faultline did");
  }
  return true;
}

void check(dnnl_status_t status, const ProductSize& size) {
  invariant(status == dnnl_success, "oneDNN: product [{}, {}] x [{}, {}] failed with status {}",
            size.m, size.k, size.k, size.n, static_cast<int>(status));
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// What a bf16 primitive is made for.
struct Bf16Key {
  int64_t m, n, k, a_leading, b_leading, c_leading;
  bool a_transposed, b_transposed, bias;
  DType c;
  auto operator<=>(const Bf16Key&) const = default;
};

dnnl::memory::desc descriptor(int64_t rows, int64_t columns, dnnl::memory::data_type type,
                              int64_t leading, bool transposed) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
  return {{rows, columns}, type, strides};
}

// A primitive with its arguments, ready to be given addresses.
class Bf16Product {
 public:
  explicit Bf16Product(const Bf16Key& key) {
    using Type = dnnl::memory::data_type;
    const auto a = descriptor(key.m, key.k, Type::bf16, key.a_leading, key.a_transposed);
    const auto b = descriptor(key.k, key.n, Type::bf16, key.b_leading, key.b_transposed);
    const auto c = descriptor(key.m, key.n, key.c == DType::f32 ? Type::f32 : Type::bf16,
                              key.c_leading, false);
    const auto bias =
        key.bias ? descriptor(1, key.n, Type::f32, key.n, false) : dnnl::memory::desc();
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc made(engine(), a, b, bias, c, attributes);
#else
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(a, b, bias, c), attributes,
                                            engine());
#endif
    primitive_ = dnnl::matmul(made);
    scratch_bytes_ = made.scratchpad_desc().get_size();
    add(DNNL_ARG_SRC, a);
    add(DNNL_ARG_WEIGHTS, b);
    add(DNNL_ARG_DST, c);
    if (key.bias) add(DNNL_ARG_BIAS, bias);
    add(DNNL_ARG_SCRATCHPAD, made.scratchpad_desc());
  }

  size_t scratch_bytes() const { return scratch_bytes_; }

  void set(int argument, const void* address) {
    arguments_.at(argument).set_data_handle(const_cast<void*>(address));
  }
  void run(const dnnl::stream& stream) const { primitive_.execute(stream, arguments_); }

 private:
  void add(int argument, const dnnl::memory::desc& layout) {
    arguments_.emplace(argument, dnnl::memory(layout, engine(), nullptr));
  }

  dnnl::matmul primitive_;
  size_t scratch_bytes_ = 0;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// Each thread has its own primitives, so that none waits for another.
class Bf16Products {
 public:
  Bf16Product& get(const Bf16Key& key) {
    constexpr size_t kMost = 1024;
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
    if (products_.size() == kMost) products_.clear();
    Bf16Product& made = products_.try_emplace(key, key).first->second;
    if (made.scratch_bytes() > scratch_bytes_) {
      scratch_bytes_ = made.scratch_bytes();
      scratch_ = dnnl::memory({{static_cast<int64_t>(scratch_bytes_)},
                               dnnl::memory::data_type::u8,
                               dnnl::memory::format_tag::a},
                              engine());
    }
    return made;
  }

  void* scratch() const { return scratch_bytes_ == 0 ? nullptr : scratch_.get_data_handle(); }
  const dnnl::stream& stream() const { return stream_; }

 private:
  std::map<Bf16Key, Bf16Product> products_;
  dnnl::stream stream_{engine()};
  dnnl::memory scratch_;
  size_t scratch_bytes_ = 0;
};
}  // namespace

void prepare_product_library() {
  static const bool limited = limit_to_level();
  static_cast<void>(limited);
}

// dnnl_sgemm finds its kernel in 0.3 to 0.5 us. A plain loop was not faster from 8 x 8 x 8 on, and
// a matmul primitive neither in general, so there is no case for small or for any other shapes.
void library_product(const ProductSize& size, const DenseMatrix<float>& a,
                     const DenseMatrix<float>& b, Into into, float* c, int64_t c_leading) {
  const OneThread one_thread;
  check(dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size.m, size.n, size.k, 1.0F,
                   a.data, a.leading, b.data, b.leading, into == Into::sum ? 1.0F : 0.0F, c,
                   c_leading),
        size);
}

// On AVX2 oneDNN multiplies without a copy of its own where 1/m + 1/n >= 0.0038; steps of a
// multiple of 4 KiB then fall on the same few cache sets. Measured there in GFLOP/s as it lies and
// packed: NN 256 x 1024 x 1024 50 and 102, TN 1024 x 256 x 1024 44 and 92, NN 256 x 3072 x 768 52
// and 97.
bool reads_slowly(const ProductSize& size, int64_t leading) {
  const bool without_copy = size.m * size.n * 19 < (size.m + size.n) * 5000;
  return active_isa() == Isa::v3 && without_copy && leading % 1024 == 0;
}

// Measured on AVX-512 in GFLOP/s, NT and NN: 2048 x 128 x 512 in four panels 100 and 115, 2048 x
// 384 x 128 109 and 115. The copy is read m times.
bool wants_rows(const ProductSize& size) { return active_isa() == Isa::v4 && size.m >= 1024; }

bool multiplies_bf16() {
  static const bool can = active_isa() == Isa::v4 && __builtin_cpu_supports("avx512bf16") != 0;
  return can;
}

void library_product(const ProductSize& size, const DenseMatrix<bfloat16>& a,
                     const DenseMatrix<bfloat16>& b, const float* bias, const TensorView& c) {
  thread_local Bf16Products products;
  const OneThread one_thread;
  try {
    Bf16Product& product = products.get({.m = size.m,
                                         .n = size.n,
                                         .k = size.k,
                                         .a_leading = a.leading,
                                         .b_leading = b.leading,
                                         .c_leading = c.strides[0],
                                         .a_transposed = a.transposed,
                                         .b_transposed = b.transposed,
                                         .bias = bias != nullptr,
                                         .c = c.dtype});
    product.set(DNNL_ARG_SRC, a.data);
    product.set(DNNL_ARG_WEIGHTS, b.data);
    product.set(DNNL_ARG_DST, c.data);
    if (bias != nullptr) product.set(DNNL_ARG_BIAS, bias);
    product.set(DNNL_ARG_SCRATCHPAD, products.scratch());
    product.run(products.stream());
  } catch (const dnnl::error& error) {
    check(error.status, size);
  }
}

std::string product_library() {
  const dnnl_version_t& version = *dnnl::version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

}  // namespace faultline::cpu
