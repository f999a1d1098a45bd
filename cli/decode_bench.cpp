#include "cli/decode_bench.h"

#include <chrono>
#include <vector>

#include "cli/ideal_step.h"
#include "cli/json_output.h"
#include "core/context.h"
#include "kernels/cpu/isa.h"
#include "train/generation.h"

namespace faultline::cli {
namespace {

constexpr int64_t kPrompt = 16;
constexpr int64_t kWarmUp = 2;
constexpr double kReadBuffer = 512e6;  // bytes, more than any cache holds

train::Request request(int64_t prompt, int64_t tokens) {
  return {.prompt = std::vector<int32_t>(static_cast<size_t>(prompt), 1),
          .tokens = tokens,
          .sampling = {.temperature = 0}};
}

// Bytes of the weights that the products of one token read.
class WeightBytes : public LaunchRecorder {
 public:
  void record(const Stream&, const Launch& launch) override {
    if (std::string(launch.label.op) != "linear") return;
    const TensorView& weight = launch.args.inputs[1];
    bytes_ += static_cast<double>(weight.numel()) * static_cast<double>(size_of(weight.dtype));
  }
  double bytes() const { return bytes_; }

 private:
  double bytes_ = 0;
};

double weight_bytes(nn::LanguageModel& model) {
  WeightBytes weights;
  const Scoped<LaunchRecorder*> recording(Context::current().recorder, &weights);
  const train::Request one = request(1, 1);
  train::generate(model, {&one, 1});
  return weights.bytes();
}

// The median time between two tokens, in milliseconds.
double token_milliseconds(nn::LanguageModel& model, int64_t tokens) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> at;
  train::GenerationOptions options;
  options.on_token = [&](size_t, int32_t) { at.push_back(Clock::now()); };
  const train::Request all = request(kPrompt, 1 + kWarmUp + tokens);
  train::generate(model, {&all, 1}, options);
  std::vector<double> times;
  for (size_t i = 1 + kWarmUp; i < at.size(); ++i) {
    times.push_back(std::chrono::duration<double, std::milli>(at[i] - at[i - 1]).count());
  }
  return median(std::move(times));
}

}  // namespace

void run_decode_bench(const DecodeBench& bench) {
  const train::Config& config = bench.config;
  require(kPrompt + 1 + kWarmUp + bench.tokens <= config.seq_len,
          "bench: {} tokens behind a prompt of {} are more than the {} positions of {}; time at "
          "most {} with --steps",
          bench.tokens, kPrompt, config.seq_len, bench.model,
          config.seq_len - kPrompt - 1 - kWarmUp);
  train::check_memory_to_generate(config);
  Context context({.threads = static_cast<int>(bench.threads), .seed = config.seed});
  const ContextGuard guard(context);
  const std::unique_ptr<nn::LanguageModel> owned = nn::make_model(config.model(), config.seed);
  nn::LanguageModel& model = *owned;

  // Before and after, because a machine's speed drifts.
  const double before = read_milliseconds(kReadBuffer);
  const double ms = token_milliseconds(model, bench.tokens);
  const double after = read_milliseconds(kReadBuffer);
  const double bytes = weight_bytes(model);
  const double bytes_per_ms = kReadBuffer / ((before + after) / 2);
  const double bound_ms = bytes / bytes_per_ms;

  if (bench.json != "-") {
    fmt::print("{}: {} parameters, one token at a time, f32, {} threads, {}\n", bench.model,
               model.parameter_count(), context.threads, cpu::isa_name());
    fmt::print("  a token      {:10.3f} ms   {:.1f} tokens/s\n", ms, 1000 / ms);
    fmt::print("  weights      {:10.3f} MB a token, memory read at {:.2f} GB/s\n", bytes / 1e6,
               bytes_per_ms / 1e6);
    fmt::print("  bound        {:10.3f} ms   {:.3f} of it reached\n", bound_ms, bound_ms / ms);
  }
  write_json(bench.json, Json::object()
                             .set("model", bench.model)
                             .set("parameters", model.parameter_count())
                             .set("threads", context.threads)
                             .set("isa", cpu::isa_name())
                             .set("prompt", kPrompt)
                             .set("tokens", bench.tokens)
                             .set("ms_per_token", ms)
                             .set("tokens_per_s", 1000 / ms)
                             .set("weight_bytes", bytes)
                             .set("read_bytes_per_s", 1000 * bytes_per_ms)
                             .set("bound_ms", bound_ms)
                             .set("efficiency", bound_ms / ms));
}

}  // namespace faultline::cli
