// Whether the checks of attention pass right models and name the mistakes that are planted in
// seams.
#include "diagnose/attention_checks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/float16.h"
#include "diagnose/model_runs.h"
#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/lora.h"
#include "train/generation.h"
#include "train/trainer.h"

// Shapes: B batch, H heads, Q queries, K keys.
namespace faultline::diagnose {
namespace {

nn::Gpt2Config small_gpt2() {
  nn::Gpt2Config config;
  config.vocab_size = 29;
  config.seq_len = 32;
  config.num_layers = 2;
  config.num_heads = 3;
  config.hidden_size = 24;
  return config;
}

nn::LlamaConfig small_llama() {
  nn::LlamaConfig config;
  config.vocab_size = 29;
  config.seq_len = 40;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_key_value_heads = 2;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  return config;
}

// Scores of a fresh model are next to 0, and a wrong position shows in rounding only.
template <class Model, class Config>
std::unique_ptr<nn::LanguageModel> lively(Config config) {
  config.init_std = 0.3;
  return std::make_unique<Model>(config, 3);
}

class AttentionChecks : public testing::Test {
 protected:
  static void expect_all_pass(nn::LanguageModel& model) {
    for (const AttentionCheck& check : check_attention(model)) {
      EXPECT_FALSE(check.failed()) << check.id << ": " << check.difference << " above "
                                   << check.bound << "; " << check.cause << " " << check.what;
    }
  }
  // The check of that id fails, with that cause.
  static void expect_fault(nn::LanguageModel& model, const std::string& id,
                           const std::string& cause) {
    std::string failed;
    for (const AttentionCheck& check : check_attention(model)) {
      if (check.failed()) {
        failed +=
            fmt::format("{} ({}, {}: {}) ", check.id, check.difference, check.cause, check.what);
      }
      if (check.id != id) continue;
      EXPECT_TRUE(check.failed()) << id << " passed: " << check.difference << check.skipped;
      EXPECT_EQ(check.cause, cause) << check.what;
    }
    EXPECT_NE(failed.find(id), std::string::npos) << "failed: " << failed;
  }

  Context context_;
  ContextGuard guard_{context_};
  std::unique_ptr<nn::LanguageModel> gpt2_ = lively<nn::Gpt2>(small_gpt2());
  std::unique_ptr<nn::LanguageModel> llama_ = lively<nn::Llama>(small_llama());
};

TEST_F(AttentionChecks, PassARightGpt2) { expect_all_pass(*gpt2_); }
TEST_F(AttentionChecks, PassARightLlama) { expect_all_pass(*llama_); }
TEST_F(AttentionChecks, PassAFreshModel) {
  nn::Gpt2 gpt2(small_gpt2(), 1);
  expect_all_pass(gpt2);
  nn::LlamaConfig config = small_llama();
  config.rope.layout = RopeLayout::interleaved;
  nn::Llama llama(config, 1);
  expect_all_pass(llama);
}

TEST_F(AttentionChecks, SkipWhatAModelDoesNotHave) {
  for (const AttentionCheck& check : check_attention(*gpt2_)) {
    const bool absent = check.id.starts_with("rope.") || check.id == "merge";
    EXPECT_EQ(check.ran(), !absent) << check.id;
  }
}

TEST_F(AttentionChecks, RefuseAModelOfTooFewPositions) {
  nn::Gpt2Config config = small_gpt2();
  config.seq_len = 7;
  nn::Gpt2 model(config, 1);
  EXPECT_THROW(check_attention(model), InvalidArgument);
}

TEST_F(AttentionChecks, LeaveTheModelAsItWas) {
  gpt2_->set_training(true);
  const Tensor before = clone(gpt2_->parameters()[0]->value());
  check_attention(*gpt2_);
  EXPECT_TRUE(gpt2_->training());
  EXPECT_EQ(gpt2_->parameters()[0]->value().to_vector<float>(), before.to_vector<float>());
}

// ---- mistakes in the weights --------------------------------------------------------------------

Tensor keep_of(const nn::Mask& mask, const Tensor& scores_BHQK) {
  const int64_t B = scores_BHQK.size(0), Q = scores_BHQK.size(2), K = scores_BHQK.size(3);
  const auto visible = nn::visibility(mask, B, Q, K);
  return cast(tensor(std::vector<float>(visible.begin(), visible.end()), {B, 1, Q, K}),
              DType::boolean);
}

TEST_F(AttentionChecks, NameAMaskThatIsNotThere) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask&, double scale) { return softmax(scores * scale); });
  expect_fault(*gpt2_, "causality", "");
  expect_fault(*gpt2_, "visibility", "");
}

TEST_F(AttentionChecks, NameAnInvertedMask) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        const Tensor keep = logical_not(keep_of(mask, scores));
        return where(keep, softmax(where(keep, scores * scale, full({1}, -1e4))), zeros({1}));
      });
  for (const char* id : {"visibility", "parity.math", "causality"}) {
    expect_fault(*llama_, id, "attn.mask-broadcast:inverted");
  }
}

TEST_F(AttentionChecks, NameAWindowOfOneKeyTooMany) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        nn::Mask wider = mask;
        if (wider.window > 0) ++wider.window;
        return nn::AttentionWeightsSeam::standard(scores, wider, scale);
      });
  expect_fault(*gpt2_, "visibility", "attn.window-off-by-one");
}

TEST_F(AttentionChecks, NameScoresThatAreScaledTwice) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        return nn::AttentionWeightsSeam::standard(scores, mask, scale * scale);
      });
  // A softcap leaves a scale of 1 to the weights, so that the answer to the probe of it is right.
  expect_fault(*gpt2_, "parity.math", "attn.scale-twice");
}

TEST_F(AttentionChecks, NameProductsThatAreKeptInFloat16) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        const Tensor kept = cast(cast(scores, DType::f16), DType::f32);
        return nn::AttentionWeightsSeam::standard(kept, mask, scale);
      });
  expect_fault(*gpt2_, "large-products", "softmax.overflow:scale-after");
}

TEST_F(AttentionChecks, NameF16ProductsThatAreScaledTooLate) {
  const AttentionFunction scales_late = [](const Tensor& q, const Tensor& k, const Tensor& v,
                                           const nn::Mask& mask, double) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    return matmul(nn::AttentionWeightsSeam::standard(matmul(q, transpose(k, -2, -1)), mask, scale),
                  v);
  };
  EXPECT_TRUE(check_large_products(scales_late, DType::f32).ok());
  const AttentionCheck check = check_large_products(scales_late, DType::f16);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.cause, "softmax.overflow:scale-after");
  for (const auto which : {nn::AttentionImplementation::math, nn::AttentionImplementation::flash}) {
    const auto right = framework_attention(nn::AttentionPolicy::require(which));
    EXPECT_TRUE(check_large_products(right, DType::f16).ok()) << name(which);
  }
}

TEST_F(AttentionChecks, NameCausalityThatForgetsThePast) {
  const auto planted = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        nn::Mask local = mask;
        local.query_offset = 0;
        return nn::AttentionWeightsSeam::standard(scores, local, scale);
      });
  expect_fault(*gpt2_, "visibility", "attn.causal-align");
  expect_fault(*gpt2_, "cached.contiguous", "attn.causal-align");
}

TEST_F(AttentionChecks, NameDocumentsThatTheMaskForgets) {
  const auto planted = context_.seams.replace<train::MaskSeam>(
      [](const Batch& batch) { return nn::Mask{.key_valid = batch.key_valid, .documents = {}}; });
  expect_fault(*gpt2_, "documents", "attn.packing-leak");
}

// ---- positions ----------------------------------------------------------------------------------

TEST_F(AttentionChecks, NamePositionsInBfloat16) {
  const auto planted = context_.seams.replace<nn::RopeTablesSeam>(
      [](const nn::RopeConfig& config, int64_t head_size, const Tensor& positions, int64_t length) {
        std::vector<int32_t> rounded;
        for (const int32_t p : positions.to_vector<int32_t>()) {
          rounded.push_back(static_cast<int32_t>(static_cast<double>(bfloat16(double(p)))));
        }
        return nn::RopeTablesSeam::standard(config, head_size, tensor(rounded, positions.shape()),
                                            length);
      });
  expect_fault(*llama_, "rope.angles", "rope.bf16");
  expect_fault(*llama_, "rope.shift", "rope.bf16");
}

TEST_F(AttentionChecks, NameTheOtherLayoutOfPairs) {
  nn::LlamaConfig config = small_llama();
  const auto model = lively<nn::Llama>(config);
  // Cosines of interleaved pairs, in a program of half-split ones: the vector is permuted.
  const auto planted = context_.seams.replace<KernelSeam>([](const SelectionRequest& request) {
    Selection chosen = KernelSeam::standard(request);
    if (&request.op != &definition(Op::rope)) return chosen;
    static const Kernel right = chosen.kernel->run;
    static const KernelRecord wrong{"rope/other-layout", [](const KernelArgs& args) {
                                      KernelArgs turned = args;
                                      auto attributes = args.attributes.as<RopeAttributes>();
                                      attributes.layout = RopeLayout::interleaved;
                                      turned.attributes = attributes;
                                      right(turned);
                                    }};
    return Selection{&wrong, "planted"};
  });
  expect_fault(*model, "rope.angles", "rope.layout");
}

// ---- caches -------------------------------------------------------------------------------------

TEST_F(AttentionChecks, NameSlotsThatAreWrittenInTheWrongPlace) {
  const auto planted = context_.seams.replace<nn::KvSlotsSeam>([](int64_t, int64_t count) {
    return nn::SlotRange{0, count};
  });
  expect_fault(*gpt2_, "cache-contents.contiguous", "attn.past-ignored:write-index");
  expect_fault(*llama_, "cached.contiguous", "attn.past-ignored:write-index");
}

TEST_F(AttentionChecks, NameSlotsThatNobodyFilled) {
  const auto planted =
      context_.seams.replace<nn::KvReadSeam>([](const Tensor& slots, int64_t) { return slots; });
  expect_fault(*gpt2_, "cache-contents.contiguous", "attn.past-ignored:zero-slots");
  expect_fault(*gpt2_, "canaries.contiguous", "attn.past-ignored:zero-slots");
}

TEST_F(AttentionChecks, NameAMaskOfGenerationThatForgetsThePast) {
  const auto planted = context_.seams.replace<train::GenerationMaskSeam>(
      [](const nn::LeftPadding& padding, int64_t first, int64_t count) {
        nn::Mask mask = train::GenerationMaskSeam::standard(padding, first, count);
        mask.query_offset = 0;
        mask.top_left = true;
        return mask;
      });
  expect_fault(*llama_, "generation.contiguous", "attn.past-ignored:local-causal");
}

TEST_F(AttentionChecks, NamePositionsThatCountThePadding) {
  const auto planted = context_.seams.replace<train::GenerationPositionsSeam>(
      [](const nn::LeftPadding& padding, int64_t first, int64_t count) {
        if (count > 1) return padding.positions(first, count);
        const auto rows = std::ssize(padding.pads());
        return full({rows, count}, static_cast<double>(first), DType::i32);
      });
  expect_fault(*gpt2_, "generation.paged", "attn.past-ignored:left-pad");
}

TEST_F(AttentionChecks, NamePagesThatAreReadAsAnotherDType) {
  const auto planted = context_.seams.replace<nn::PageDTypeSeam>(
      [](int32_t, DType written, DType) { return written == DType::f32 ? written : DType::f16; });
  expect_fault(*gpt2_, "page-dtypes", "kv.dtype-reinterpret");
}

TEST_F(AttentionChecks, NamePrefixesThatAreFoundByHashAlone) {
  const auto planted = context_.seams.replace<nn::PrefixMatchSeam>(
      [](const nn::PrefixBlock&, const nn::PrefixBlock&) { return true; });
  expect_fault(*gpt2_, "prefixes", "kv.prefix-collision");
}

// ---- dispatch and adapters ----------------------------------------------------------------------

TEST_F(AttentionChecks, NameAPolicyThatNobodyAskedFor) {
  const auto planted = context_.seams.replace<nn::AttentionPolicySeam>(
      [] { return nn::AttentionPolicy::require(nn::AttentionImplementation::math); });
  expect_fault(*gpt2_, "dispatch", "kernel.silent-fallback:slow-path");
}

// The record says flash, and products run.
TEST_F(AttentionChecks, NameAKernelThatIsNotTheOneOnRecord) {
  const auto planted = context_.seams.replace<nn::SelfAttentionSeam>(
      [](const Tensor& q, const Tensor& k, const Tensor& v, const nn::Mask& mask,
         const nn::AttentionOptions&) {
        nn::choose({.q_BHQD = q.shape(), .k_BGKD = k.shape(), .v_BGKE = v.shape(), .mask = mask},
                   {});
        const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
        const Tensor scores = matmul(q, transpose(k, -2, -1));
        return matmul(nn::AttentionWeightsSeam::standard(scores, mask, scale), v);
      });
  const AttentionCheck check = check_dispatch(*gpt2_);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.what, "In a call math ran where the record says flash.");
  EXPECT_EQ(check.cause, "kernel.silent-fallback:slow-path");
}

void add_adapter(nn::LanguageModel& model) {
  nn::add_lora(model, "default", {.rank = 4, .alpha = 8}, model.dropout_key(), 5);
  const NoGrad off;
  for (const auto& [layer, adapter] : nn::adapters_of(model, "default")) {
    for (Parameter* parameter : adapter->parameters()) {
      copy_(parameter->value(), normal(parameter->value().shape(), 0, 0.1, 7, 1));
    }
  }
}

TEST_F(AttentionChecks, PassAnAdapterThatMerges) {
  add_adapter(*llama_);
  expect_all_pass(*llama_);
}

TEST_F(AttentionChecks, NameAMergeThatLosesTheAdapter) {
  add_adapter(*gpt2_);
  const auto planted =
      context_.seams.replace<nn::LoraMergeSeam>([](const Tensor& weight, const Tensor& product) {
        return cast(cast(weight, DType::bf16) + cast(product, DType::bf16), weight.dtype());
      });
  expect_fault(*gpt2_, "merge", "lora.merge-bf16");
}

// A check that rests on nothing keeps its cause where attention is wrong as well.
TEST_F(AttentionChecks, LeaveProofToTheChecksThatHaveIt) {
  add_adapter(*gpt2_);
  const auto scaled = context_.seams.replace<nn::AttentionWeightsSeam>(
      [](const Tensor& scores, const nn::Mask& mask, double scale) {
        return nn::AttentionWeightsSeam::standard(scores, mask, scale * scale);
      });
  const auto merged = context_.seams.replace<nn::LoraMergeSeam>(
      [](const Tensor& weight, const Tensor& product) { return weight + product + product; });
  const auto masked = context_.seams.replace<train::MaskSeam>(
      [](const Batch& batch) { return nn::Mask{.key_valid = batch.key_valid, .documents = {}}; });
  const auto matched = context_.seams.replace<nn::PrefixMatchSeam>(
      [](const nn::PrefixBlock&, const nn::PrefixBlock&) { return true; });
  std::map<std::string, std::string> causes;
  for (const AttentionCheck& check : check_attention(*gpt2_)) {
    if (check.failed()) causes[check.id] = check.cause;
  }
  EXPECT_EQ(causes["parity.math"], "attn.scale-twice");
  EXPECT_EQ(causes["merge"], "lora.merge-twice");
  EXPECT_EQ(causes["documents"], "attn.packing-leak");
  EXPECT_EQ(causes["prefixes"], "kv.prefix-collision");
}

TEST_F(AttentionChecks, TellAMaskTensorThatIsOnlyCausalFromAnotherSlowPath) {
  const auto masked = context_.seams.replace<train::MaskSeam>([](const Batch& batch) {
    const int64_t T = batch.inputs.size(1);
    const auto causal = nn::visibility(nn::Mask{}, 1, T, T);
    const Tensor keep = tensor(std::vector<float>(causal.begin(), causal.end()), {1, 1, T, T});
    return nn::Mask{.causal = false, .keep = cast(keep, DType::boolean)};
  });
  expect_fault(*gpt2_, "dispatch", "sdpa.fallback");
  expect_fault(*gpt2_, "documents", "sdpa.fallback");
}

TEST_F(AttentionChecks, TellWhetherAMaskTensorIsOnlyCausal) {
  const float kHidden = -INFINITY;
  const auto bias = [](float later, float earlier) {
    return nn::Mask{.causal = false, .bias = tensor<float>({0, later, earlier, 0}, {1, 1, 2, 2})};
  };
  EXPECT_TRUE(is_causal_tensor(bias(kHidden, 0), 2));
  EXPECT_TRUE(is_causal_tensor(bias(std::numeric_limits<float>::lowest(), 0), 2));
  EXPECT_FALSE(is_causal_tensor(bias(kHidden, 1), 2));
  EXPECT_FALSE(is_causal_tensor(bias(0, 0), 2));
  EXPECT_FALSE(is_causal_tensor(bias(NAN, 0), 2));
  EXPECT_FALSE(is_causal_tensor(nn::Mask{}, 2));
}

TEST_F(AttentionChecks, NameAnAdapterThatActsWithAnotherScale) {
  const auto planted = context_.seams.replace<nn::LoraScaleSeam>(
      [](const nn::LoraShape& shape) { return shape.alpha / static_cast<double>(shape.rank); });
  expect_fault(*gpt2_, "adapter.scale", "lora.scale");
}

TEST_F(AttentionChecks, NameFactorsThatAreBothZero) {
  add_adapter(*gpt2_);
  {
    const NoGrad off;
    nn::LoraAdapter& first = *nn::adapters_of(*gpt2_, "default").front().second;
    for (Parameter* factor : first.parameters()) fill_(factor->value(), 0);
  }
  expect_fault(*gpt2_, "adapter.zero", "lora.both-zero");
  const auto planted = context_.seams.replace<nn::LoraInitSeam>(
      [](const Tensor&, const Tensor&, uint64_t, uint64_t) {});
  expect_fault(*llama_, "adapter.zero", "lora.both-zero");  // it has none: one that is made anew
}

TEST_F(AttentionChecks, NameFactorsThatAWideLoadCannotRead) {
  const auto planted =
      context_.seams.replace<nn::LoraStorageSeam>([](const Shape& a, const Shape& b, DType dtype) {
        const Tensor block = zeros({numel(a) + numel(b) + 1}, dtype);
        return nn::LoraFactors{block.alias(a, contiguous_strides(a), 1),
                               block.alias(b, contiguous_strides(b), numel(a) + 1)};
      });
  add_adapter(*gpt2_);
  expect_fault(*gpt2_, "adapter.alignment", "lora.misaligned");
}

TEST_F(AttentionChecks, SkipAMergeOfLogitsThatAreNotFinite) {
  add_adapter(*gpt2_);
  fill_(gpt2_->parameters().back()->value(), NAN);
  const AttentionCheck check = check_merge(*gpt2_);
  EXPECT_FALSE(check.ran()) << check.cause;
}

// ---- what a user brings -------------------------------------------------------------------------

TEST_F(AttentionChecks, NameTheMistakeOfAUsersOwnFunction) {
  const AttentionFunction tiled = [](const Tensor& q, const Tensor& k, const Tensor& v,
                                     const nn::Mask& mask, double softcap) {
    const auto heads = [&](const Tensor& x) {
      const std::vector<Tensor> copies(static_cast<size_t>(q.size(1) / x.size(1)), x);
      return cat(copies, 1);
    };
    return nn::attention(q, heads(k), heads(v), mask, {.softcap = softcap});
  };
  EXPECT_TRUE(check_visibility(tiled).ok());  // it sees the right keys, of the wrong head
  const AttentionCheck check = check_answers("mine", tiled);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.cause, "attn.gqa-order");
}

TEST_F(AttentionChecks, SayThatAFunctionRefusesAProbe) {
  const AttentionFunction causal_only = [](const Tensor& q, const Tensor& k, const Tensor& v,
                                           const nn::Mask& mask, double softcap) {
    require(mask.causal, "mine: causal only");
    return nn::attention(q, k, v, mask, {.softcap = softcap});
  };
  const AttentionCheck check = check_answers("mine", causal_only);
  EXPECT_TRUE(check.failed());
  EXPECT_NE(check.what.find("mine: causal only"), std::string::npos) << check.what;
}

TEST_F(AttentionChecks, CountThePairsInWhichAMaskIsAnother) {
  const nn::MaskPlacement placement{.sizes = {2, 2, 3, 5}, .query_offset = 2};
  const nn::Mask mask{.query_offset = 2, .key_valid = {}, .documents = {}, .window = 3};
  const auto window = [](int64_t width) {
    return [width](const nn::MaskPoint& at) {
      return at.key <= at.query && at.key > at.query - width;
    };
  };
  EXPECT_TRUE(check_mask(mask, placement, window(3)).ok());
  // Two of the three queries could see one key more, in 2 x 2 batches and heads.
  EXPECT_EQ(check_mask(mask, placement, window(4)).difference, 8);
}

TEST_F(AttentionChecks, SayWhatAFunctionMakesOfABias) {
  const auto with = [](Tensor (*changed)(const Tensor& bias)) -> AttentionFunction {
    return [changed](const Tensor& q, const Tensor& k, const Tensor& v, const nn::Mask& mask,
                     double softcap) {
      nn::Mask other = mask;
      other.bias = changed(mask.bias);
      return nn::attention(q, k, v, other, {.softcap = softcap});
    };
  };
  EXPECT_TRUE(check_bias(framework_attention()).ok());
  EXPECT_EQ(check_bias(with([](const Tensor&) { return Tensor(); })).what, "The bias is left out.");
  EXPECT_EQ(check_bias(with([](const Tensor& bias) { return bias * -1; })).what,
            "The bias is subtracted.");
  // The first head's for all, as of a bias that lost its heads.
  const AttentionCheck other =
      check_bias(with([](const Tensor& bias) { return slice(bias, 1, 0, 1); }));
  EXPECT_TRUE(other.failed());
  EXPECT_EQ(other.what, "A bias does not count for what it is.");
}

TEST_F(AttentionChecks, FindAnOutputThatNobodyWrote) {
  Tensor kept;
  const AttentionFunction skips_large_heads = [&](const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const nn::Mask& mask, double softcap) {
    if (q.size(3) > 128) return reshape(kept, {1, 1, 1, 256});
    return kept = nn::attention(q, k, v, mask, {.softcap = softcap});
  };
  const AttentionCheck check = check_fresh_output(skips_large_heads);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.cause, "kernel.silent-fallback:unchecked-launch");
}

}  // namespace
}  // namespace faultline::diagnose
