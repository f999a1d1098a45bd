#include "lab/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "train/config.h"

namespace faultline::lab {

#define FAULTLINE_CASE(stem) void define_##stem(Catalogue& lab);
#include "lab/case_list.inc"
#undef FAULTLINE_CASE

std::vector<DefineFault> our_faults() {
  return {
#define FAULTLINE_CASE(stem) &define_##stem,
#include "lab/case_list.inc"
#undef FAULTLINE_CASE
  };
}

namespace {

constexpr const char* kListing = "faultline lab --list shows them all";

// Whether `text` matches a glob in which * is any text and ? any character.
bool matches(std::string_view glob, std::string_view text) {
  if (glob.empty()) return text.empty();
  if (glob[0] == '*') {
    return matches(glob.substr(1), text) || (!text.empty() && matches(glob, text.substr(1)));
  }
  return !text.empty() && (glob[0] == '?' || glob[0] == text[0]) &&
         matches(glob.substr(1), text.substr(1));
}

bool matches(const std::string& pattern, const Variant& variant) {
  return pattern == variant.fault_id() || matches(pattern, std::string_view(variant.full_name()));
}

}  // namespace

Catalogue::Catalogue(std::span<const DefineFault> own, const Detectors& detectors) {
  add(our_faults());
  add(own);
  check(detectors);
}

Catalogue Catalogue::of(std::span<const DefineFault> faults, const Detectors& detectors) {
  Catalogue catalogue{Empty{}};
  catalogue.add(faults);
  catalogue.check(detectors);
  return catalogue;
}

void Catalogue::add(std::span<const DefineFault> faults) {
  for (const DefineFault define : faults) define(*this);
}

void Catalogue::check(const Detectors& detectors) const {
  std::vector<std::string> known;
  for (const auto& detector : detectors) known.emplace_back(detector.name);
  for (const Fault& fault : faults_) {
    require(!fault.variants().empty(), "case {}: has no variant", fault.text().id);
    for (const Variant& variant : fault.variants()) {
      variant.check();
      require(std::find(known.begin(), known.end(), variant.detector()) != known.end(),
              "case {}: no detector is named '{}'; {}", variant.full_name(), variant.detector(),
              train::suggestion(variant.detector(), known));
    }
  }
}

Fault& Catalogue::fault(FaultText text) {
  for (const Fault& known : faults_) {
    require(known.text().id != text.id, "case {}: another case has this id", text.id);
  }
  return faults_.emplace_back(std::move(text));
}

std::vector<Catalogue::Entry> Catalogue::entries() const {
  std::vector<Entry> result;
  for (const Fault& fault : faults_) {
    for (const Variant& variant : fault.variants()) result.push_back({&fault, &variant});
  }
  return result;
}

std::vector<std::string> Catalogue::names() const {
  std::vector<std::string> result;
  for (const Fault& fault : faults_) {
    result.push_back(fault.text().id);
    for (const Variant& variant : fault.variants()) {
      if (!variant.name().empty()) result.push_back(variant.full_name());
    }
  }
  return result;
}

const Fault& Catalogue::fault_of(const std::string& id) const {
  for (const Fault& fault : faults_) {
    if (fault.text().id == id) return fault;
    for (const Variant& variant : fault.variants()) {
      if (variant.full_name() == id) return fault;
    }
  }
  fail("no fault is named '{}'; {}", id, train::suggestion(id, names(), kListing));
}

const Variant& Catalogue::find(const std::string& name) const {
  const Fault& fault = fault_of(name);
  for (const Variant& variant : fault.variants()) {
    if (variant.full_name() == name) return variant;
  }
  if (fault.variants().size() == 1) return fault.variants().front();
  std::string list;
  for (const Variant& variant : fault.variants()) {
    list += (list.empty() ? "" : ", ") + variant.name();
  }
  fail("{} has several variants; choose one as {}:VARIANT from {}", name, name, list);
}

std::vector<Catalogue::Entry> Catalogue::select(const std::vector<std::string>& patterns,
                                                const std::string& domain) const {
  std::vector<std::string> domains;
  for (const Fault& fault : faults_) {
    if (std::find(domains.begin(), domains.end(), fault.text().domain) == domains.end()) {
      domains.push_back(fault.text().domain);
    }
  }
  require(domain.empty() || std::find(domains.begin(), domains.end(), domain) != domains.end(),
          "no fault is of the domain '{}'; {}", domain, train::suggestion(domain, domains));

  const std::vector<Entry> all = entries();
  for (const std::string& pattern : patterns) {
    const bool any = std::any_of(all.begin(), all.end(), [&](const Entry& entry) {
      return matches(pattern, *entry.variant);
    });
    require(any, "no fault is named '{}'; {}", pattern,
            train::suggestion(pattern, names(), kListing));
  }
  std::vector<Entry> result;
  for (const Entry& entry : all) {
    const bool named = patterns.empty() ||
                       std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
                         return matches(p, *entry.variant);
                       });
    if (named && (domain.empty() || entry.fault->text().domain == domain)) result.push_back(entry);
  }
  return result;
}

}  // namespace faultline::lab
