#pragma once

#include <span>

#include "diagnose/detector.h"
#include "lab/fault.h"

namespace faultline::lab {

class Catalogue;
// Adds one fault; a case file defines one with FAULT(stem).
using DefineFault = void (*)(Catalogue&);

// All faults of the tree, one a file in lab/cases/, in the order of their files.
std::vector<DefineFault> our_faults();

// The faults that a program knows.
class Catalogue {
 public:
  // A variant and the fault that it belongs to; both live as long as the catalogue.
  struct Entry {
    const Fault* fault;
    const Variant* variant;
  };

  using Detectors = std::vector<diagnose::DetectorDefinition>;

  // Ours and, for faults outside of the tree, `own`. Throws InvalidArgument naming the case on a
  // duplicate id or variant, an incomplete case, or one to be caught by none of the detectors.
  explicit Catalogue(std::span<const DefineFault> own = {},
                     const Detectors& detectors = diagnose::all_detectors());
  // Only these.
  static Catalogue of(std::span<const DefineFault> faults,
                      const Detectors& detectors = diagnose::all_detectors());
  Catalogue(Catalogue&&) noexcept = default;

  // For case files.
  Fault& fault(FaultText text);

  const std::deque<Fault>& faults() const { return faults_; }
  std::vector<Entry> entries() const;

  // The fault of that id (a ":VARIANT" behind it is ignored if it exists). Throws InvalidArgument
  // with the nearest name.
  const Fault& fault_of(const std::string& id) const;
  // "ID:VARIANT", or "ID" where the fault has one variant. Throws InvalidArgument with the nearest
  // name, or listing the variants of an ID that has several.
  const Variant& find(const std::string& name) const;
  // What matches any of the patterns (an id, id:variant, or a glob over id:variant with * and ?);
  // all when there are none. Of one domain only, unless that is "". In the catalogue's order, each
  // once. Throws InvalidArgument with the nearest name when a pattern or the domain matches
  // nothing.
  std::vector<Entry> select(const std::vector<std::string>& patterns,
                            const std::string& domain = "") const;

 private:
  struct Empty {};
  explicit Catalogue(Empty) {}
  void add(std::span<const DefineFault> faults);
  void check(const Detectors& detectors) const;
  std::vector<std::string> names() const;

  std::deque<Fault> faults_;
};

}  // namespace faultline::lab
