#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nn/layers.h"

// Low-rank adapters (LoRA, Hu et al. 2021): y = W x + b + s B A dropout(x), where only A [r, in]
// and B [out, r] are trained. Names, patterns and scales mean what they mean in the PEFT library.
namespace faultline::nn {

// s = alpha / r, or alpha / sqrt(r) ("A rank stabilization scaling factor", Kalajdzievski 2023).
enum class LoraScaling : uint8_t { by_rank, by_root_of_rank };

// Which Linear layers get an adapter, by their names.
struct LoraTargets {
  enum class Kind : uint8_t {
    all_linear,  // all but an output head, "lm_head"
    suffixes,    // whose name is one of the texts, or ends in a dot and one
    expression,  // whose whole name matches the one text, a regular expression
  };
  Kind kind = Kind::all_linear;
  std::vector<std::string> texts = {};
};

struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8;
  LoraScaling scaling = LoraScaling::by_rank;
  double dropout = 0;  // of the adapter's input
  LoraTargets targets;
  // Other ranks and alphas for the layers whose name, or an end of it that follows a dot, matches a
  // regular expression; the first that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};

  // Throws InvalidArgument naming the first impossible value: a rank below 1, an alpha that is 0 or
  // not finite, a dropout outside [0, 1), a text that is no regular expression.
  void check() const;
};

// What one layer's adapter is made with.
struct LoraShape {
  int64_t rank = 8;
  double alpha = 8;
  LoraScaling scaling = LoraScaling::by_rank;
};

// The factor of an adapter.
struct LoraScaleSeam {
  static constexpr const char* name = "lora scale";
  using Signature = double(const LoraShape& shape);
  static double standard(const LoraShape& shape);
};

// The first values of an adapter.
struct LoraInitSeam {
  static constexpr const char* name = "lora initialisation";
  using Signature = void(const Tensor& a, const Tensor& b, uint64_t seed, uint64_t stream);
  // A uniform within +-1 / sqrt(in), which is Kaiming's rule with a = sqrt(5); B zeros, so that the
  // model begins as its base.
  static void standard(const Tensor& a, const Tensor& b, uint64_t seed, uint64_t stream);
};

// The two factors of an adapter.
struct LoraFactors {
  Tensor a;  // [r, in]
  Tensor b;  // [out, r]
};

// Where the factors of an adapter lie.
struct LoraStorageSeam {
  static constexpr const char* name = "lora storage";
  using Signature = LoraFactors(const Shape& a, const Shape& b, DType dtype);
  // Zeros, each factor in a block of its own, which begins at a multiple of 64 bytes.
  static LoraFactors standard(const Shape& a, const Shape& b, DType dtype);
};

enum class AdapterRole : uint8_t {
  off,     // the layer does not ask it
  active,  // the layer adds what it gives
  merged,  // it is in the layer's weight already
};

// Parameters lora_A.weight [r, in] and lora_B.weight [out, r], in f32 whatever the layer's dtype.
class LoraAdapter : public Module {
 public:
  LoraAdapter(int64_t in, int64_t out, const LoraShape& shape, double dropout,
              const DropoutKey& key);
  // s B A dropout(x), in the dtype of A: x [.., in] to [.., out].
  Tensor operator()(const Tensor& x);
  // s B A [out, in], outside the tape.
  Tensor product() const;
  void initialize(uint64_t seed);

  const LoraShape& shape() const { return shape_; }
  double scale() const { return scale_; }
  AdapterRole role() const { return role_; }
  void set_role(AdapterRole role) { role_ = role; }

 private:
  LoraShape shape_;
  double scale_;
  AdapterRole role_ = AdapterRole::active;
  Parameter& a_;
  Parameter& b_;
  Dropout dropout_;
};

// An adapter has joined a layer's output. Building it takes a product; nobody subscribed, none.
struct LoraEvent {
  const Linear& layer;
  const LoraAdapter& adapter;
  const Tensor& base;   // W x, without the bias
  const Tensor& delta;  // s B A x
};

// The name by which targets and patterns know a layer, from its path in the model. A file format
// has names of its own; by default it is the path.
using LayerName = std::function<std::string(const std::string& path)>;
LayerName layer_paths();

struct LoraLayer {
  Linear* layer;
  std::string name;
  LoraShape shape;
};

// The layers that `config` chooses, in the order of the model. Throws InvalidArgument when there is
// none, with the names that there are, and when a listed suffix chooses none.
std::vector<LoraLayer> lora_layers(Module& model, const LoraConfig& config,
                                   const LayerName& name_of = layer_paths());

// Adds an active adapter `adapter` (letters, digits, _ and -) to each layer that `config` chooses,
// and freezes everything else in the model. The values of an A come from a random stream that is
// named after it. Throws InvalidArgument, and leaves the model as it was, when a layer has an
// adapter of that name or a merged one.
void add_lora(Module& model, const std::string& adapter, const LoraConfig& config,
              const DropoutKey& key, uint64_t seed, const LayerName& name_of = layer_paths());

// The adapters called `adapter`, with their layers. Throws InvalidArgument when there is none, with
// the names that there are.
std::vector<std::pair<Linear*, LoraAdapter*>> adapters_of(Module& model,
                                                          const std::string& adapter);
// Makes exactly these adapters active, none for an empty list. Throws InvalidArgument for an
// unknown name and while adapters are merged.
void activate(Module& model, const std::vector<std::string>& adapters);

// ---- what is trained ----------------------------------------------------------------------------

// No parameter of the model is trained: none gets a gradient, and what only its gradient would need
// is not computed.
void freeze(Module& model);
// What an optimizer, a clip and a checkpoint of adapters handle.
std::vector<Parameter*> trainable_parameters(Module& model);

struct TrainableSet {
  int64_t trained = 0;  // elements
  int64_t frozen = 0;
  std::vector<std::string> names;  // of the trained parameters
};
TrainableSet trainable_set(Module& model);
// Throws InvalidArgument naming the first parameter that is trained by accident: nothing is trained
// at all, a base is trained beside adapters, or an adapter that does not act is trained.
void check_trainable(Module& model);

// The state of the model without its adapters, or of its adapters alone.
State base_state(Module& model);
State adapter_state(Module& model);
// The same as Module::load() for that part.
void load_base(Module& model, const State& state);
void load_adapters(Module& model, const State& state);

// ---- merging ------------------------------------------------------------------------------------

// The weight with an adapter's product in it, in the dtype of the weight.
struct LoraMergeSeam {
  static constexpr const char* name = "lora merge";
  using Signature = Tensor(const Tensor& weight, const Tensor& product);
  // Added in the dtype of the product and rounded once.
  static Tensor standard(const Tensor& weight, const Tensor& product);
};

// A layer is about to take in its active adapters; nothing was written yet.
struct MergeEvent {
  const Linear& layer;
  const Tensor& before;   // its weight [out, in]
  const Tensor& product;  // s B A of the active adapters, summed
  const Tensor& after;    // what becomes of the weight
};

// What rounding left of a merge.
struct LayerMerge {
  std::string layer;
  int64_t elements = 0;   // that the products would change
  int64_t unchanged = 0;  // of these, the ones that kept every bit
  double survived = 0;    // <new - old, products> / <products, products>; 1 without rounding
};

// Whether a merge keeps the old weights, so that it can be undone: as many bytes again as the
// merged layers' weights take.
enum class Originals : uint8_t { keep, drop };

struct Merge {
  std::vector<LayerMerge> layers;
  std::vector<std::pair<Linear*, Tensor>> originals = {};
};

// Writes each layer's active adapters into its weight; they turn merged. In exact arithmetic an
// output is the same before and after. An element of the weight is within
//   half an ulp of it + (r + 2) 2^-24 s |B| |A|
// of W + s B A. Throws InvalidArgument, and changes nothing, when a layer has a merged adapter
// already, when none is active, or when a product is not finite.
Merge merge_adapters(Module& model, Originals originals);
// Puts the old weights back, bit for bit, and makes the adapters active again. Throws
// InvalidArgument when they were not kept.
void unmerge_adapters(const Merge& merge);

}  // namespace faultline::nn
