// Teaches: a fault of your own, outside of Faultline's tree: the seam at which it enters, the case
// that proves it, and the detector that names it. Four loader workers draw noisy batches; the fault
// gives them all one seed.
#include <map>

#include "autograd/functional.h"
#include "example.h"
#include "lab/case.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

using namespace faultline;

FAULT(same_seed);
diagnose::DetectorDefinition batches_differ();
void train_on_noise(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.about = "Fits y = 2x to batches of four loader workers.",
                      .steps = 40,
                      .faults = {&define_same_seed},
                      .detectors = {batches_differ()}},
                     &train_on_noise);
}

// ---- the program, with a seam and an event ------------------------------------------------------

struct WorkerSeedSeam {
  static constexpr const char* name = "worker seed";
  using Signature = uint64_t(uint64_t seed, int64_t worker);
  static uint64_t standard(uint64_t seed, int64_t worker) {
    return seed + static_cast<uint64_t>(worker);
  }
};

struct DrawnEvent {
  int64_t worker;
  const Tensor& batch;
};

constexpr int64_t kWorkers = 4;

// The workers take turns. Draw n of a worker is made by its seed and n.
Tensor draw(uint64_t seed, int64_t step) {
  const Context& context = Context::current();
  const int64_t worker = (step - 1) % kWorkers;
  const auto number = static_cast<uint64_t>((step - 1) / kWorkers);
  const uint64_t own_seed = context.seams.call<WorkerSeedSeam>(seed, worker);
  const Tensor batch = uniform({16, 1}, -1, 1, own_seed, number);
  context.events.emit(DrawnEvent{worker, batch});
  return batch;
}

void train_on_noise(Example& example) {
  example.prove("loader.same-seed");
  nn::Linear line(1, 1);
  const std::vector<Parameter*> parameters = line.parameters();
  optim::Sgd optimizer({{parameters, /*weight_decay=*/0}});
  constexpr double kRate = 0.3;
  while (example.next_step()) {
    example.context().seams.call<train::ZeroGradSeam>(line);
    example.context().events.emit(train::StepBeginEvent{example.step(), parameters});
    const Tensor x = draw(example.seed(), example.step());
    const Tensor loss = mean(square(line(x) - x * 2));
    backward(loss);
    optimizer.step(kRate);
    example.end_step(loss.item<double>(), kRate);
  }
}

// ---- the detector -------------------------------------------------------------------------------

// Fires when a batch was drawn before: numbers with 24 random bits, 16 of them, do not come twice.
class BatchesDiffer : public diagnose::Watcher {
 public:
  BatchesDiffer(Context& context, diagnose::Findings& findings)
      : Watcher(context, findings, "batches.differ") {
    on(&BatchesDiffer::drawn);
  }

 private:
  void drawn(const DrawnEvent& event) {
    looked();
    const auto [first, fresh] = drawn_by_.emplace(event.batch.to_vector<double>(), event.worker);
    if (fresh) return;
    report("loader.same-seed", 0.95, "loader",
           fmt::format("worker {} drew the very batch that worker {} drew", event.worker,
                       first->second));
  }

  std::map<std::vector<double>, int64_t> drawn_by_;
};

diagnose::DetectorDefinition batches_differ() {
  return {"batches.differ",
          diagnose::WatchLevel::full,
          {{"loader.same-seed", "All loader workers draw from one random stream.",
            "Make the seed of a worker from the run's seed and the worker's number.",
            "The workers' seeds differ: then the data itself repeats."}},
          [](Context& context, diagnose::Findings& findings) {
            return std::make_unique<BatchesDiffer>(context, findings);
          }};
}

// ---- the case -----------------------------------------------------------------------------------

constexpr int64_t kDraws = 40;  // of which 10 differ when four workers share a seed

// Counts how many of the batches differ, by their first elements.
class Draws : public lab::Experiment {
 public:
  explicit Draws(const lab::RunOptions& options) : seed_(options.seed) {}

  void step(int64_t step) override { firsts_[step] = draw(seed_, step).to_vector<double>()[0]; }
  State state() override {
    State state;
    for (const auto& [step, first] : firsts_) {
      state.tensors[std::to_string(step)] = full({1}, first, DType::f64);
    }
    return state;
  }
  void load(const State& state) override {
    firsts_.clear();
    for (const auto& [step, first] : state.tensors) {
      firsts_[std::stoll(step)] = first.item<double>();
    }
  }
  void report(lab::Metrics& metrics) override {
    std::map<double, int64_t> different;
    for (const auto& [step, first] : firsts_) ++different[first];
    metrics.count("different batches", static_cast<double>(different.size()));
  }

 private:
  uint64_t seed_;
  std::map<int64_t, double> firsts_;
};

FAULT(same_seed) {
  lab::Fault& fault = lab.fault(
      {.id = "loader.same-seed",
       .title = "Loader workers share a seed and draw the same batches",
       .domain = "data",
       .mechanism = "A forked worker inherits the random state of its parent. Four workers then "
                    "draw the same numbers, and of 40 batches 10 differ.",
       .symptom = "Nothing fails. Augmentation is four times weaker than it seems.",
       .truth = "The loader of PyTorch seeded its own generator for each worker, and before "
                "release 1.9 not NumPy's.",
       .fix = "Make the seed of a worker from the run's seed and the worker's number.",
       .sources = {"pytorch issue 3880 (2017): workers do the same random crops. "
                   "https://github.com/pytorch/pytorch/issues/3880",
                   "pytorch pull request 56488 (2021): the loader seeds NumPy in each worker. "
                   "https://github.com/pytorch/pytorch/pull/56488"}});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<WorkerSeedSeam>([](uint64_t seed, int64_t) { return seed; });
      })
      .run<Draws>(kDraws)
      .expect("different batches", 10)
      .caught_by("batches.differ")
      .in_training({.steps = kDraws});
}
