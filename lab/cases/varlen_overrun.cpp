#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "core/context.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/varlen.h"
#include "train/events.h"

// Shapes: B batch, T positions, H query heads, G key heads, D head size, N = B T tokens of all
// texts behind each other, S texts.
namespace faultline::lab {
namespace {

using nn::AttentionOptions;
using nn::CausalAlign;
using nn::Mask;

// ---- texts behind each other --------------------------------------------------------------------

Tensor packed(const Tensor& x_BHTD) {
  const Shape& x = x_BHTD.shape();
  return reshape(permute(x_BHTD, {0, 2, 1, 3}), {x[0] * x[2], x[1], x[3]});
}

Tensor unpacked(const Tensor& y_NHD, const Shape& q) {
  return permute(reshape(y_NHD, {q[0], q[2], q[1], y_NHD.size(2)}), {0, 2, 1, 3});
}

// 0 and the end of each text in x [B, H, T, D]: where a row ends, or another document begins.
std::vector<int32_t> ends_of(const Mask& mask, const Shape& x) {
  const std::vector<int32_t> documents =
      mask.documents.defined() ? mask.documents.to_vector<int32_t>() : std::vector<int32_t>();
  std::vector<int32_t> ends;
  for (int64_t n = 0; n < x[0] * x[2]; ++n) {
    const auto at = static_cast<size_t>(n);
    const bool begins = n % x[2] == 0 || (!documents.empty() && documents[at] != documents[at - 1]);
    if (begins) ends.push_back(static_cast<int32_t>(n));
  }
  ends.push_back(static_cast<int32_t>(x[0] * x[2]));
  return ends;
}

Tensor as_tensor(const std::vector<int32_t>& ends) {
  return tensor(ends, {static_cast<int64_t>(ends.size())});
}

constexpr nn::SequenceMask kCausal{.align = CausalAlign::bottom_right};

// The remedy: the lengths of the tokens that are there, for queries and keys alike, and a kernel
// that looks at them.
Tensor by_checked_lengths(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask,
                          const AttentionOptions& options) {
  const Tensor ends_q = as_tensor(ends_of(mask, q.shape()));
  const Tensor ends_k = as_tensor(ends_of(mask, k.shape()));
  return unpacked(
      nn::attention_varlen(packed(q), packed(k), packed(v), {ends_q, ends_k}, kCausal, options),
      q.shape());
}

// page: begin
// The wrong code: each text's keys were counted with a start token that is not among them. Only the
// last end was set to the number of tokens, so that the sums agree.
Tensor count_start_tokens(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask,
                          const AttentionOptions& options) {
  const Tensor ends_q = as_tensor(ends_of(mask, q.shape()));
  std::vector<int32_t> ends = ends_of(mask, k.shape());
  for (size_t i = 1; i + 1 < ends.size(); ++i) ends[i] += 1;
  const Tensor y_NHD = nn::attention_varlen(packed(q), packed(k), packed(v),
                                            {ends_q, as_tensor(ends)}, kCausal, options);
  return unpacked(y_NHD, q.shape());
}
// page: end

// What lies behind a tensor: nobody wrote it, and the canary there is NaN.
Tensor with_canary(const Tensor& x_NGD) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return cat(
      std::vector<Tensor>{x_NGD, full({1, x_NGD.size(1), x_NGD.size(2)}, nan, x_NGD.dtype())}, 0);
}

// A kernel that believes its lengths.
Tensor unchecked_varlen(const Tensor& q_NHD, const Tensor& k_NGD, const Tensor& v_NGD,
                        const std::vector<int32_t>& ends_q, const std::vector<int32_t>& ends_k,
                        const AttentionOptions& options) {
  observe("attention_varlen", {q_NHD, k_NGD, v_NGD, as_tensor(ends_q), as_tensor(ends_k)},
          MaskAttributes{});
  const Tensor k_memory = with_canary(k_NGD), v_memory = with_canary(v_NGD);
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < ends_q.size(); ++i) {
    const auto text = [&](const Tensor& x, const std::vector<int32_t>& ends) {
      const Tensor own = slice(x, 0, ends[i], ends[i + 1]);
      return permute(reshape(own, {1, own.size(0), own.size(1), own.size(2)}), {0, 2, 1, 3});
    };
    const Tensor q = text(q_NHD, ends_q), k = text(k_memory, ends_k), v = text(v_memory, ends_k);
    const Mask mask = nn::causal_mask(q.size(2), k.size(2), CausalAlign::bottom_right);
    parts.push_back(packed(nn::attention(q, k, v, mask, options)));
  }
  return cat(parts, 0);
}

// The last end is one too far, as when the sum of the lengths was taken before a text was cut.
Tensor end_behind_the_tensor(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask,
                             const AttentionOptions& options) {
  const std::vector<int32_t> ends = ends_of(mask, q.shape());
  std::vector<int32_t> ends_k = ends_of(mask, k.shape());
  ends_k.back() += 1;
  return unpacked(unchecked_varlen(packed(q), packed(k), packed(v), ends, ends_k, options),
                  q.shape());
}

// ---- pages --------------------------------------------------------------------------------------

// Pages as they come from a list of free ones that has been in use: 5, 1, 2, 3, 4, 6, 7, ...
// Page 0 belongs to nobody.
int32_t nth_page(int64_t n) {
  if (n == 0) return 5;
  return static_cast<int32_t>(n < 5 ? n : n + 1);
}

enum class TooLong : uint8_t { believed, clamped };

// Keys and values of B rows of T tokens, written to pages and read again through a table that has
// `columns` pages for each row. Nobody compares T with what they hold: it is believed, or clamped.
class Pages {
 public:
  Pages(int64_t rows, int64_t tokens, int64_t slots, int64_t columns, TooLong rule)
      : rows_(rows), tokens_(tokens), slots_(slots), columns_(columns) {
    for (int64_t n = 0; n < rows * columns; ++n) table_.push_back(nth_page(n));
    kept_ = rule == TooLong::clamped ? std::min(tokens, columns * slots) : tokens;
    owners_.assign(static_cast<size_t>(pool_size() * slots_), static_cast<int32_t>(rows * tokens));
    for (int64_t b = 0; b < rows; ++b) {
      for (int64_t t = 0; t < kept_; ++t) {
        owners_[static_cast<size_t>(slot(b, t))] = static_cast<int32_t>(b * tokens + t);
      }
    }
  }

  // [pages, slots, G, D] of x [B, G, T, D].
  Tensor pool(const Tensor& x_BGTD) const {
    const Tensor x_NGD = packed(x_BGTD);
    const Tensor nothing = zeros({1, x_NGD.size(1), x_NGD.size(2)}, x_NGD.dtype());
    const Tensor slots =
        index_select(cat(std::vector<Tensor>{x_NGD, nothing}, 0), 0, as_tensor(owners_));
    return reshape(slots, {pool_size(), slots_, x_NGD.size(1), x_NGD.size(2)});
  }
  Tensor table() const { return tensor(table_, {rows_, columns_}); }
  Tensor lengths() const {
    return tensor(std::vector<int32_t>(static_cast<size_t>(rows_), static_cast<int32_t>(tokens_)),
                  {rows_});
  }

  // The keys or values that the kernel reads for a row, [1, G, K, D].
  Tensor read(const Tensor& pool_PSGD, int64_t row) const {
    const Shape& p = pool_PSGD.shape();
    std::vector<int32_t> places;
    for (int64_t t = 0; t < kept_; ++t) places.push_back(static_cast<int32_t>(slot(row, t)));
    const Tensor own =
        index_select(reshape(pool_PSGD, {p[0] * p[1], p[2], p[3]}), 0, as_tensor(places));
    return permute(reshape(own, {1, kept_, p[2], p[3]}), {0, 2, 1, 3});
  }

 private:
  int64_t pool_size() const { return std::max<int64_t>(6, rows_ * columns_ + 1); }
  // Where token t of a row lies. Behind its row of the table stands the next row; behind the last
  // one a 0, which is page 0.
  int64_t slot(int64_t row, int64_t t) const {
    const auto entry = static_cast<size_t>(row * columns_ + t / slots_);
    return (entry < table_.size() ? table_[entry] : 0) * slots_ + t % slots_;
  }

  int64_t rows_, tokens_, slots_, columns_;
  int64_t kept_ = 0;
  std::vector<int32_t> table_;
  std::vector<int32_t> owners_;  // of each slot, the token that was written there last
};

// The wrong code: whole pages only, and a kernel that compares nothing.
Tensor by_whole_pages(const Tensor& q, const Tensor& k, const Tensor& v, int64_t slots,
                      TooLong rule, const AttentionOptions& options) {
  const int64_t B = q.size(0), T = q.size(2);
  const Pages pages(B, T, slots, T / slots, rule);
  const Tensor k_pool = pages.pool(k), v_pool = pages.pool(v);
  observe("attention_paged", {q, k_pool, v_pool, pages.table(), pages.lengths()});
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < B; ++b) {
    const Mask causal{.top_left = true};
    rows.push_back(nn::attention(slice(q, 0, b, b + 1), pages.read(k_pool, b),
                                 pages.read(v_pool, b), causal, options));
  }
  return cat(rows, 0);
}

// The remedy: a page for what is left over, and a kernel that compares.
Tensor by_checked_pages(const Tensor& q, const Tensor& k, const Tensor& v, int64_t slots,
                        const AttentionOptions& options) {
  const int64_t B = q.size(0), T = q.size(2);
  const Pages pages(B, T, slots, (T + slots - 1) / slots, TooLong::believed);
  return nn::attention_paged(q, {pages.pool(k), pages.pool(v), pages.table(), pages.lengths()},
                             options);
}

// ---- the runs -----------------------------------------------------------------------------------

using Attention = Tensor(const Tensor&, const Tensor&, const Tensor&, const Mask&,
                         const AttentionOptions&);

Plant attend_by(std::function<Attention> by) {
  return [by = std::move(by)](Context& context) {
    return context.seams.replace<nn::SelfAttentionSeam>(by);
  };
}

Plant pages_of(int64_t slots, TooLong rule) {
  return attend_by([=](const Tensor& q, const Tensor& k, const Tensor& v, const Mask&,
                       const AttentionOptions& options) {
    return by_whole_pages(q, k, v, slots, rule, options);
  });
}

Plant checked_pages_of(int64_t slots) {
  return attend_by(
      [=](const Tensor& q, const Tensor& k, const Tensor& v, const Mask&,
          const AttentionOptions& options) { return by_checked_pages(q, k, v, slots, options); });
}

// Rows of documents whose scores are all 0: what a position gives is the mean of the values that it
// sees.
std::vector<double> mean_values(const RunOptions& options, const std::vector<float>& values,
                                const std::vector<int32_t>& documents, int64_t rows) {
  Context& context = Context::current();
  const int64_t T = static_cast<int64_t>(values.size()) / rows;
  Batch batch;
  batch.inputs = tensor(std::vector<int32_t>(values.begin(), values.end()), {rows, T});
  batch.labels = full({rows, T}, kIgnoredLabel, DType::i32);
  batch.documents = tensor(documents, {rows, T});
  context.events.emit(train::BatchEvent{1, batch});
  const Tensor q = normal({rows, 1, T, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor v = tensor(values, {rows, 1, T, 1});
  const Tensor y = context.seams.call<nn::SelfAttentionSeam>(q, zeros({rows, 1, T, 1}), v,
                                                             Mask{.documents = batch.documents},
                                                             AttentionOptions{.scale = 1.0});
  return y.to_vector<double>();
}

void add_curve(Metrics& metrics, const std::vector<double>& outputs) {
  Curve curve{"output by token", {}, outputs};
  for (size_t i = 0; i < outputs.size(); ++i) curve.x.push_back(static_cast<double>(i));
  metrics.add(curve);
}

void two_texts(const RunOptions& options, Metrics& metrics) {
  const auto out = mean_values(options, {1, 2, 4, 100, 200, 400}, {0, 0, 0, 1, 1, 1}, 1);
  metrics.measure("last of text 0", out[2]);
  metrics.measure("last of text 1", out[5]);
  add_curve(metrics, out);
}

// The values of two requests as they lie in pages of two slots: page p holds 10 p and 10 p + 1. The
// fifth of each does not fit into its two pages.
void two_requests(const RunOptions& options, Metrics& metrics) {
  const auto out = mean_values(options, {50, 51, 10, 11, 40, 20, 21, 30, 31, 60},
                               std::vector<int32_t>(10, 0), 2);
  metrics.measure("last of A", out[4]);
  add_curve(metrics, out);
}

void four_keys(const RunOptions& options, Metrics& metrics) {
  const auto out = mean_values(options, {1, 2, 4, 8}, {0, 0, 0, 0}, 1);
  metrics.measure("last", out[3]);
  add_curve(metrics, out);
}

}  // namespace

FAULT(varlen_overrun) {
  Fault& fault = lab.fault(
      {.id = "varlen.overrun",
       .title = "Sequence lengths that nobody compares with the memory",
       .domain = "attention",
       .seed = "004 2.4",
       .mechanism =
           "Kernels for texts of different lengths get cumulative lengths, or a table of pages, as "
           "numbers in device memory, and use them as addresses. Texts 1, 2, 4 and 100, 200, 400 "
           "have the ends 0, 3, 6. With 0, 4, 6 the first reads the other's first value: (1 + 2 + "
           "4 + 100) / 4 = 26.75 in place of 2.333333. With 0, 3, 7 the second reads behind the "
           "tensor. A request of 5 keys with two pages of two slots takes its third page from the "
           "next request's row of the table: 142 / 5 = 28.4. Clamped to what fits, a request of "
           "4 keys and room for 3 loses its newest: 2.333333 in place of 3.75.",
       .symptom =
           "Answers hold fragments of another request, depending on what shared the batch; or "
           "NaN, or an illegal access, depending on what lies behind. Alone, each request is "
           "right. Clamped, a model forgets its last tokens at certain lengths.",
       .article_says = "FlashAttention-2 lacks a check of k_len_allocated in flash_fwd_hdim128.cu; "
                       "a length of 2049 reuses the blocks before it.",
       .truth =
           "There is no such name in that file. What is true: the host checks dtype, device and "
           "count of the lengths, never the values, for that would wait for the device. Clamping "
           "hides the overrun and drops keys, as the claimed run shows.",
       .fix = "Compare before the launch: ends begin with 0, never go down and end with the number "
              "of tokens, the same for queries and keys of one text; a row's length is at most its "
              "pages times their slots; every page is in the pool. Round page counts up.",
       .sources =
           {"sgl-flash-attn pull request 47 (July 2026): wrong cumulative lengths corrupt the "
            "outputs at a boundary; a check on the device. "
            "https://github.com/sgl-project/sgl-flash-attn/pull/47",
            "flash-attention issue 1773 (July 2025): what happens beyond max_seqlen_k? "
            "https://github.com/Dao-AILab/flash-attention/issues/1773",
            "onnxruntime pull request 31651 (September 2026): paged attention whose lengths are "
            "checked on one path only. https://github.com/microsoft/onnxruntime/pull/31651"},
       .look_alikes =
           "attn.packing-leak mixes whole documents of a row, and its mask says so; here the "
           "mask of each text is right. kv.micro-batch has keys of another batch in a cache. NaN "
           "from overflow appears with finite inputs; here the NaN was read.",
       .exercise =
           "Cumulative key lengths 0, 4, 6 begin with 0, never go down and end with the number of "
           "tokens. Which comparison still finds them wrong?",
       .answer =
           "With the ends of the queries, 0, 3, 6: in self-attention a text has as many keys as "
           "queries, plus what its cache held before, and here no cache was. Where max_seqlen_k is "
           "stated as 3, that finds it too."});
  fault.variant("cu-seqlens", "Ends of the keys that reach into the next text")
      .wrong(attend_by(&count_start_tokens))
      .remedy(attend_by(&by_checked_lengths))
      .run(&two_texts)
      .expect("last of text 0", 26.75)
      .expect("last of text 1", 300)
      .caught_by("attention.lengths")
      .in_training({.steps = 200, .needs = {{"documents", "verse"}}});
  fault.variant("past-end", "An end behind the tensor")
      .wrong(attend_by(&end_behind_the_tensor))
      .remedy(attend_by(&by_checked_lengths))
      .run(&two_texts)
      .expect("last of text 1", std::numeric_limits<double>::quiet_NaN())
      .caught_by("attention.lengths")
      .in_training({.steps = 200, .needs = {{"documents", "verse"}}});
  // Rows of 31 tokens do not fill whole pages of two slots, and rows of 32 none of three.
  fault.variant("paged", "A table with too few pages for a length that is believed")
      .wrong(pages_of(2, TooLong::believed))
      .remedy(checked_pages_of(2))
      .claimed("clamp the length to what is allocated", pages_of(2, TooLong::clamped))
      .run(&two_requests)
      .expect_within("last of A", 28.4, 1e-5, "28.4 is no f32 number; five roundings of it")
      .caught_by("attention.lengths")
      .in_training({.steps = 200, .needs = {{"documents", "none"}, {"seq_len", "31"}}});
  fault.variant("clamp", "A table with too few pages for a length that is clamped")
      .wrong(pages_of(3, TooLong::clamped))
      .remedy(checked_pages_of(3))
      .run(&four_keys)
      .expect_within("last", 7.0 / 3, 1e-6, "thirds are no f32 numbers")
      .caught_by("attention.lengths")
      .in_training({.steps = 200, .needs = {{"documents", "none"}}});
}

}  // namespace faultline::lab
