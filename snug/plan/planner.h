// One number in, a plan out: the fastest way to run a step within a budget, over all its settings and every
// choice of each region.
//
//   Planner planner({{whole, sketched(whole)}, {half, sketched(half)}});
//   Decision decision = planner.decide(12_GiB);
//
// All budgets are answered from one search: more memory never makes a slower plan, and a budget that is too
// small by n bytes is met with n bytes more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"
#include "snug/plan/plan.h"
#include "snug/plan/search.h"
#include "snug/plan/setting.h"
#include "snug/plan/step_model.h"

namespace snug::plan {

// A setting, and what is known of the step under it.
struct Candidate {
  Setting setting;
  std::shared_ptr<const StepModel> model;
};

// A plan worth having, before it is written down.
struct Offer {
  std::size_t candidate = 0;
  std::uint64_t peak_bytes = 0;  // with the overhead
  double seconds = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t host_bytes = 0;
  std::vector<std::uint32_t> chosen;
};

// What a device needs beside the step's tensors.
struct SNUG_API Overhead {
  std::uint64_t outside_bytes = 0;  // context and libraries
  double share = 0;                 // of the tensors' peak: what the allocator holds beside them
  bool pins = false;                // what is offloaded is pinned, which takes page tables on the device

  std::uint64_t outside_with(std::uint64_t host_bytes) const;
  std::uint64_t on_top_of(std::uint64_t tensor_bytes, std::uint64_t host_bytes = 0) const;
  std::uint64_t left_of(std::uint64_t budget_bytes) const;  // for tensors
};

struct Decision {
  bool fits = false;
  std::uint64_t budget_bytes = 0;
  std::uint64_t missing_bytes = 0;  // beyond the budget, for `taken`; 0 if it fits
  Offer taken;                      // the fastest that fits, or the leanest there is
  Amount plain;
  double bound_seconds = 0;
  std::string binds;  // where memory is highest
  std::vector<Lever> levers;
  std::optional<Offer> faster;  // with the least more memory that saves at least 1 % of the time
  std::optional<Offer> leaner;  // with at least 1 % less memory
};

// On a GPU the allocator rounds and leaves gaps: with segments that grow, an H200's held up to 1.6 % more
// than its tensors at the peak.
SNUG_API Overhead overhead_of(const Hardware& hardware);

class SNUG_API Planner {
 public:
  // The plain step first. `kinds`: the table of levers, which outlives the planner.
  explicit Planner(std::vector<Candidate> candidates, const Overhead& overhead = {},
                   std::span<const LeverKind> kinds = kLevers);

  void add(std::vector<Candidate> candidates);  // further ones
  // The fastest offer within the budget of each micro-batch, of those that take at most so many times as long
  // as the fastest of all: which settings to refine.
  std::vector<Offer> rivals(std::uint64_t budget_bytes, double slowdown) const;

  const std::vector<Offer>& offers() const { return offers_; }  // by rising peak and falling seconds
  const Candidate& candidate(const Offer& offer) const { return candidates_[offer.candidate]; }
  const std::vector<Candidate>& candidates() const { return candidates_; }  // their settings name every lever
  Amount plain() const { return plain_; }
  double bound_seconds(std::uint64_t budget_bytes) const;
  const Overhead& overhead() const { return overhead_; }
  void set_overhead(const Overhead& overhead);
  void set_plain_overhead(const Overhead& overhead);  // of the plain step, whatever that of others is

  Decision decide(std::uint64_t budget_bytes) const;
  Decision about(const Offer& offer, std::uint64_t budget_bytes) const;  // if that one is taken
  // The leanest whose step is at most so many times as long as the plain one.
  const Offer& leanest_within(double slowdown) const;

  Plan write_down(const Decision& decision, Json step) const;

 private:
  Amount all_kept(std::size_t candidate) const;
  std::vector<Lever> levers(const Offer& taken) const;

  std::vector<Candidate> candidates_;
  std::span<const LeverKind> kinds_;
  Overhead overhead_;
  std::optional<Overhead> plain_overhead_;
  std::vector<Offer> all_, offers_;  // offers_: those of all_ that no other beats
  Amount plain_;
};

}  // namespace snug::plan
