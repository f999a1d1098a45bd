// decay.policy: the optimizer must decay no parameter that declares itself exempt.
//
// Sees: OptimizerEvent, whose groups say which parameters are decayed and by how much; and of each
// parameter what its module declared (Parameter::decay).
// Fires: at the first step of an optimizer with a parameter that declares Decay::no in a group with
// a weight decay above 0. It compares two declarations, so there is no threshold.
// Silent: groups without weight decay, whatever is in them; and parameters that declare Decay::yes
// and are not decayed, which is a choice that costs nothing unseen (a run without weight decay).
#include <fmt/format.h>

#include "diagnose/detector.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

class DecayPolicy : public Watcher {
 public:
  DecayPolicy(Context& context, Findings& findings) : Watcher(context, findings, "decay.policy") {
    on(&DecayPolicy::optimizer_stepped);
  }

 private:
  void optimizer_stepped(const optim::OptimizerEvent& event) {
    if (fired_ || event.groups.empty()) return;
    looked();
    int64_t decayed = 0;
    int64_t against = 0;
    const Parameter* first = nullptr;
    double weight_decay = 0;
    for (const optim::ParameterGroup& group : event.groups) {
      if (group.weight_decay <= 0) continue;
      for (const Parameter* parameter : group.parameters) {
        ++decayed;
        if (parameter->decay() == Decay::yes) continue;
        ++against;
        if (first != nullptr) continue;
        first = parameter;
        weight_decay = group.weight_decay;
      }
    }
    if (first == nullptr) return;
    fired_ = true;
    report("wd.on-norm", 0.97, event.optimizer,
           fmt::format("{} of {} decayed parameters declare that they are not to be decayed, first "
                       "{}: weight decay {} times lr {:.3g} a step",
                       against, decayed, first->name(), weight_decay, event.lr));
  }

  bool fired_ = false;
};

}  // namespace

DETECTOR(decay_policy) {
  return {"decay.policy",
          WatchLevel::light,
          {{"wd.on-norm",
            "Weight decay pulls parameters towards zero that were declared exempt, such as the "
            "gains of norms, whose neutral value is 1.",
            "Declare with each parameter whether it is decayed and build the optimizer's groups "
            "from that, not from names.",
            "No parameter of a decayed group declares Decay::no."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<DecayPolicy>(context, findings);
          }};
}

}  // namespace faultline::diagnose
