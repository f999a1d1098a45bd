#include "tests/lab/broken_cases.h"

#include <unistd.h>

#include <csignal>

#include "lab/case.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

// A behaviour to get wrong: the amount by which a count grows.
struct AmountSeam {
  static constexpr const char* name = "amount";
  using Signature = double();
  static double standard() { return 1; }
};

Plant amount(double value) {
  return [value](Context& context) {
    return context.seams.replace<AmountSeam>([value] { return value; });
  };
}

// Counts, and tells observers as an optimizer would, so that counter.advances sees a wrong amount.
class Counting : public Experiment {
 public:
  explicit Counting(const RunOptions&) {}
  void step(int64_t step) override {
    Context& context = Context::current();
    const double before = count_;
    count_ += context.seams.call<AmountSeam>();
    context.events.emit(optim::OptimizerEvent{"counting", step, before, count_, 0});
  }
  State state() override {
    State state;
    state.set_real("count", count_);
    return state;
  }
  void load(const State& state) override { count_ = state.real("count"); }
  void report(Metrics& metrics) override { metrics.count("counted", count_); }

 private:
  double count_ = 0;
};

// Five steps, of which the last three count by two: 8 in place of 5.
Variant& counting(Fault& fault, const std::string& name) {
  return fault.variant(name, name)
      .wrong(amount(2))
      .begins(3)
      .run<Counting>(5)
      .caught_by("counter.advances");
}

// The same from the first step on: 10.
Variant& always_wrong(Fault& fault, const std::string& name) {
  return counting(fault, name).begins(1).expect("counted", 10);
}

Measurement only_when_wrong(void (*action)()) {
  return [action](const RunOptions&, Metrics& metrics) {
    if (Context::current().seams.call<AmountSeam>() != 1) action();
    metrics.measure("m", 0);
  };
}

Variant& measuring(Fault& fault, const std::string& name, Measurement measure) {
  return fault.variant(name, name)
      .wrong(amount(2))
      .run(std::move(measure))
      .starts_again("a run of one step")
      .expect("m", 1)
      .caught_by("counter.advances");
}

void wait_for_ever() {
  for (;;) pause();
}

void crash() {
  std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make an exit of it
  std::raise(SIGSEGV);
}

void add_processes(Fault& fault) {
  measuring(fault, "crash", only_when_wrong(&crash));
  measuring(fault, "exit", only_when_wrong([] { _exit(7); }));
  measuring(fault, "hang", only_when_wrong(&wait_for_ever));
  measuring(fault, "throws", only_when_wrong([] { fail("a case went wrong"); }));
}

void add_figures(Fault& fault) {
  counting(fault, "good").expect("counted", 8);
  counting(fault, "wrong-figure").expect("counted", 9);
  counting(fault, "unknown-figure").expect("mistyped", 8);
  counting(fault, "healthy-shows-figure")
      .expect_within("counted", 7, 3, "so wide that healthy fits too");
  counting(fault, "bound-without-reason").expect_within("counted", 8, 1, "");
  measuring(fault, "other-metrics", [](const RunOptions&, Metrics& metrics) {
    metrics.measure(Context::current().seams.call<AmountSeam>() == 1 ? "m" : "n", 1);
  });
}

// Alarms only for the amount 2; the remedy makes another amount of it, which nobody sees.
Variant& nearly_fixed(Fault& fault, const std::string& name, double remedied) {
  return fault.variant(name, name)
      .wrong(amount(2))
      .run([](const RunOptions&, Metrics& metrics) {
        Context& context = Context::current();
        const double size = context.seams.call<AmountSeam>();
        context.events.emit(optim::OptimizerEvent{"counting", 1, 0, size == 2 ? 2.0 : 1.0, 0});
        metrics.measure("m", size);
      })
      .expect("m", 2)
      .caught_by("counter.advances")
      .remedy(amount(remedied));
}

// Its state is lost, so that what a run adds up shows where it began.
class Forgetful : public Counting {
 public:
  using Counting::Counting;
  void load(const State&) override {}
};

void add_beginnings(Fault& fault) {
  always_wrong(fault, "fixed-is-healthy");
  always_wrong(fault, "starts-again").starts_again("it is wrong from its first step on");
  always_wrong(fault, "always-remedied").remedy(amount(1));
  counting(fault, "begins-and-forgets").run<Forgetful>(5).expect("counted", 8);
}

void add_runs(Fault& fault) {
  // A remedy that falls short: it replaces the wrong code by other wrong code.
  counting(fault, "fixed-alarms").expect("counted", 8).remedy(amount(3));
  nearly_fixed(fault, "fixed-leaves-bound", 1.5);
  nearly_fixed(fault, "fixed-leaves-own-bound", 1.5).fixed_within(1e-3, "a reason");
  nearly_fixed(fault, "fixed-within-bound", 1.0005).fixed_within(1e-3, "a reason");
  nearly_fixed(fault, "fixed-bound-without-reason", 1.0005).fixed_within(1e-3, "");
  counting(fault, "wrong-detector").expect("counted", 8).caught_by("mask.visibility");
  measuring(fault, "unseen", [](const RunOptions&, Metrics& metrics) {
    metrics.measure("m", Context::current().seams.call<AmountSeam>() - 1);
  });
  fault.variant("healthy-alarms", "healthy-alarms")
      .wrong(amount(3))
      .run([](const RunOptions&, Metrics& metrics) {
        Context& context = Context::current();
        const double size = context.seams.call<AmountSeam>();
        context.events.emit(optim::OptimizerEvent{"counting", 1, 0, size + 1, 0});
        metrics.count("m", size);
      })
      .starts_again("a run of one step")
      .expect("m", 3)
      .caught_by("counter.advances");
}

// The fault has the id that counter.advances names, so that only the intended thing is wrong.
FaultText broken_text() {
  return {.id = "adamw.step-counter",
          .title = "t",
          .domain = "d",
          .mechanism = "m",
          .symptom = "s",
          .truth = "t",
          .fix = "f"};
}

}  // namespace

Fault fault_without_figure() {
  Fault fault(broken_text());
  counting(fault, "no-figure");
  return fault;
}

void define_broken_cases(Catalogue& lab) {
  Fault& fault = lab.fault(broken_text());
  add_figures(fault);
  add_beginnings(fault);
  add_runs(fault);
  add_processes(fault);
}

}  // namespace faultline::lab
