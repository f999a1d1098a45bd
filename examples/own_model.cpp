// Teaches: watching a model that is not ours. An LSTM (Hochreiter and Schmidhuber 1997) learns the
// King James Bible byte by byte; its loop emits the events by which the detectors see a run.
#include "autograd/functional.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "example.h"
#include "nn/gpt2.h"
#include "nn/layers.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

using namespace faultline;

void train_lstm(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv, {.about = "An LSTM learns bytes of text.", .steps = 200},
                     &train_lstm);
}

constexpr int64_t B = 8, T = 24, C = 48, V = 256;

class Lstm : public nn::Module {
 public:
  explicit Lstm(uint64_t seed) {
    add_child("bytes", bytes_);
    add_child("gates", gates_);
    add_child("head", head_);
    draw_weights(*this, 0.1, seed);
  }

  // Logits [B, T, V]. c is what a cell remembers, h what it shows.
  Tensor operator()(const Tensor& tokens_BT) {
    return unit([&] {
      const Tensor x_BTC = bytes_(tokens_BT);
      Tensor h_BC = zeros({B, C});
      Tensor c_BC = zeros({B, C});
      std::vector<Tensor> shown;
      for (int64_t t = 0; t < T; ++t) {
        const Tensor x_BC = reshape(slice(x_BTC, 1, t, t + 1), {B, C});
        const Tensor both[] = {x_BC, h_BC};
        const std::vector<Tensor> gates = split(gates_(cat(both, 1)), C, 1);
        const Tensor forget = sigmoid(gates[0] + 1.0);  // a new cell remembers
        c_BC = forget * c_BC + sigmoid(gates[1]) * tanh(gates[2]);
        h_BC = sigmoid(gates[3]) * tanh(c_BC);
        shown.push_back(reshape(h_BC, {B, 1, C}));
      }
      return head_(cat(shown, 1));
    });
  }

 private:
  nn::Embedding bytes_{V, C};
  nn::Linear gates_{2 * C, 4 * C};
  nn::Linear head_{C, V};
};

void train_lstm(Example& example) {
  const EventBus& events = example.context().events;
  const SeamTable& seams = example.context().seams;
  const TokenStore tokens = ByteTokenizer().tokenize(default_corpus());
  Sampler sampler(tokens, hold_out_last_tenth(tokens, T).training, {T, B, example.seed()});
  Lstm model(example.seed());
  const std::vector<Parameter*> parameters = model.parameters();
  optim::AdamW optimizer(optim::decay_groups(parameters, /*weight_decay=*/0.01));
  optim::GradientClip clip(parameters, /*max_norm=*/1);
  constexpr double kRate = 1e-2;

  while (example.next_step()) {
    const int64_t step = example.step();
    seams.call<train::ZeroGradSeam>(model);
    events.emit(train::StepBeginEvent{step, parameters});  // are the gradients clear?
    const Batch batch = sampler.batch();
    events.emit(train::BatchEvent{step, batch});  // are the labels the next tokens?
    const Tensor loss_sum = nn::language_model_loss(model(batch.inputs), batch.labels);
    const Tensor objective = loss_sum * (1.0 / static_cast<double>(batch.valid_tokens));
    const double sum = loss_sum.item<double>();
    // Does every token weigh the same?
    events.emit(train::ObjectiveEvent{step, batch.valid_tokens, sum, objective});
    backward(objective);
    const optim::Clip clipped = clip.measure();
    optimizer.step(kRate, clipped.factor);  // emits an event of its own
    sampler.advance();
    example.end_step(sum / static_cast<double>(batch.valid_tokens), kRate, batch.valid_tokens,
                     clipped.norm.item<double>());
  }
}
