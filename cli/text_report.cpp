#include "cli/text_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "io/peft.h"

namespace faultline::cli {
namespace {

struct AdapterName {
  std::string layer;
  std::string adapter;
};

// From an adapter's path in the model.
AdapterName name_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return {peft_layer_name(path.substr(0, dot)), path.substr(dot + 1)};
}

const char* origin_of(const nn::RepetitionReport& report) {
  return report.origin == nn::RepetitionOrigin::data ? "data" : "cache";
}

}  // namespace

TextReport::TextReport(nn::LanguageModel& model, std::span<const int32_t> text, int64_t prompt) {
  const nn::ModelShape shape = model.model_shape();
  const auto size = static_cast<int64_t>(text.size());
  count_ = std::min(size, shape.seq_len);
  first_ = size - count_;
  const std::span<const int32_t> end = text.subspan(static_cast<size_t>(first_));
  const std::vector<int32_t> ids(end.begin(), end.end());
  adapters_ = nn::trace_adapters(model, {.tokens_BT = tensor(ids, {1, count_}), .mask = {}});
  nn::ContiguousKvCache cache(
      {shape.num_layers, 1, shape.num_key_value_heads, shape.head_size, count_});
  const int64_t given = std::clamp<int64_t>(prompt - first_, 1, count_);
  repetition_ = nn::locate_repetition(model, end, given, cache);
  place_ = nn::place_of(repetition_.difference, shape);
}

std::string TextReport::text() const {
  std::string lines;
  const auto out = std::back_inserter(lines);
  if (!adapters_.empty()) {
    fmt::format_to(out, "{:40} {:12} {:>10} {:>10} {:>8}\n", "layer", "adapter", "|W x|",
                   "|s B A x|", "ratio");
  }
  for (const nn::AdapterDelta& delta : adapters_) {
    const AdapterName name = name_of(delta.adapter);
    fmt::format_to(out, "{:40} {:12} {:10.4g} {:10.4g} {:8.2g}\n", name.layer, name.adapter,
                   delta.base_norm, delta.delta_norm, delta.ratio());
  }
  const nn::Repetition& found = repetition_.repetition;
  fmt::format_to(out,
                 "repetition: in the last {} tokens {:.0f} % of the runs of 4 stood there before; "
                 "the longest end that stands twice has {}\n",
                 count_, 100 * found.share, found.repeated_tail);
  const double apart = repetition_.difference.largest_logit;
  if (repetition_.origin == nn::RepetitionOrigin::data) {
    fmt::format_to(out,
                   "the model computes the same with a cache as without (logits within {:.1e}): "
                   "what repeats was learned\n",
                   apart);
  } else {
    fmt::format_to(out,
                   "with a cache the model leaves the text at {} (logits {:.1e} apart): look at "
                   "the cache and its positions\n",
                   place_, apart);
  }
  return lines;
}

void TextReport::add_to(Json& answer) const {
  Json adapters = Json::array();
  for (const nn::AdapterDelta& delta : adapters_) {
    const AdapterName name = name_of(delta.adapter);
    adapters.push(Json::object()
                      .set("layer", name.layer)
                      .set("adapter", name.adapter)
                      .set("base_norm", delta.base_norm)
                      .set("delta_norm", delta.delta_norm)
                      .set("ratio", delta.ratio()));
  }
  answer.set("adapters", adapters);
  answer.set("repetition",
             Json::object()
                 .set("share", repetition_.repetition.share)
                 .set("repeated_tail", repetition_.repetition.repeated_tail)
                 .set("origin", origin_of(repetition_))
                 .set("place", place_)
                 .set("largest_logit_difference", repetition_.difference.largest_logit)
                 .set("tokens", Json::array_of(std::vector<int64_t>{first_, first_ + count_})));
}

}  // namespace faultline::cli
