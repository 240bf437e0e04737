// All that the planner knows of a step at one micro-batch: which choices its regions have, and what any
// choice of them needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/collectives.h"
#include "snug/plan/problem.h"
#include "snug/plan/setting.h"
#include "snug/plan/streaming.h"
#include "snug/plan/timeline.h"
#include "snug/trace/sketch.h"

namespace snug::plan {

using Cost = std::function<double(const trace::Work&)>;  // seconds

class SNUG_API StepModel {
 public:
  // The sketch holds one or more passes, forward and backward; the step has `passes`, 0: as many. Calls of
  // one name and structure are of one region. A pass may lack some: what a GAN trains in turns has another
  // structure in each. Calls may differ in size; what is chosen is chosen by the first one, peaks are exact
  // all the same.
  StepModel(Sketch sketch, double passes, const Cost& cost, const Links& links = {},
            const Streamed& streamed = {});

  struct Region {
    std::string name;
    std::uint64_t structure = 0;
    std::vector<std::size_t> calls;                                 // in the sketch, by pass
    std::shared_ptr<const std::vector<std::vector<Fate>>> choices;  // by value of the tape
    std::vector<std::uint32_t> kept_instead;   // by choice: the one that keeps what it offloads
    std::uint32_t lean = 0, lean_on_host = 0;  // nothing is kept but what comes in, here or on the host
  };

  const Sketch& sketch() const { return *sketch_; }
  const Timeline& timeline() const { return timeline_; }
  const std::vector<Region>& regions() const { return regions_; }
  // Of the region; empty if it is the only one of its name, and so for all passes.
  std::vector<std::int64_t> own_passes(const Region& region) const;
  std::int64_t sketched_passes() const { return static_cast<std::int64_t>(passes_.size()); }
  const Streamed& streamed() const { return streamed_; }
  const Problem& problem() const { return problem_; }
  std::vector<std::uint32_t> all_kept() const { return std::vector<std::uint32_t>(regions_.size()); }

  // Within passes that keep nothing, with what comes into regions here or on the host: the most of what
  // outlives a pass (weights, gradients), and of what does not.
  struct PassMemory {
    std::uint64_t held_bytes = 0, own_bytes = 0;
  };
  PassMemory lean_pass(bool on_host) const;

  // Nothing is kept that can be recomputed; what comes into regions is on the device, or on the host.
  std::vector<std::uint32_t> lean(bool on_host) const;

  // Moment by moment: what a step under these choices needs, to the byte.
  std::uint64_t peak_bytes(std::span<const std::uint32_t> chosen) const;
  std::uint64_t host_bytes(std::span<const std::uint32_t> chosen) const;              // with what is streamed
  std::vector<std::vector<Fate>> fates(std::span<const std::uint32_t> chosen) const;  // by call
  std::vector<std::uint32_t> without_offload(std::span<const std::uint32_t> chosen) const;
  // Where that is: "the backward of layers.3".
  std::string place_of_peak(std::span<const std::uint32_t> chosen) const;
  double seconds(std::span<const std::uint32_t> chosen) const { return evaluate(problem_, chosen).seconds; }
  // What ranks do together in a step: bytes that each sends, seconds that it would take by itself, and by how
  // much the step is longer for it.
  struct Together {
    std::uint64_t sent_bytes = 0;
    double seconds = 0, cost_seconds = 0;
  };
  Together together(std::span<const std::uint32_t> chosen) const;

 private:
  void find_regions();
  void find_choices();
  void add_offloading_choices(std::size_t region, std::vector<std::vector<Fate>>& choices);
  void add_lean_choices(Region& region, std::vector<std::vector<Fate>>& choices) const;
  std::vector<trace::ValueIndex> movable_values(std::size_t call, const std::vector<Fate>& fates) const;
  void build_problem();
  void share_seconds();
  void add_streamed(const std::string& region, Choice& choice) const;
  double share_of_passes(const Region& region) const;
  void add_collectives(const Region& region, Choice& choice) const;
  StepCollectives::Beside together_beside(std::string_view region) const;
  double seconds_alone() const;        // of a step's collectives, beside nothing
  double backward_seconds() const;     // of the last pass, without what is recomputed
  double forward_seconds() const;      // of the first pass
  std::uint64_t most_on_host() const;  // of one region
  double seconds_between(Sketch::Call::Operators operators) const;
  std::vector<const Profile*> profiles(std::span<const std::uint32_t> chosen) const;
  std::vector<Profile> profiles_of(std::size_t region, const std::vector<Fate>& fates) const;
  Choice measure(std::size_t region, const std::vector<Profile>& profiles,
                 std::span<const std::uint64_t> base) const;
  std::vector<double> seconds_of(const Sketch::Call& call) const;

  const Links links_;
  const Streamed streamed_;
  const StepCollectives collectives_;
  std::unique_ptr<const Sketch> sketch_;
  Timeline timeline_;
  double step_passes_ = 1;
  std::vector<double> operator_seconds_;
  double link_is_taken_ = 0;  // by what streams, of the forwards' time
  std::vector<Region> regions_;
  std::vector<std::vector<std::size_t>> passes_;  // their calls
  struct Place {
    std::size_t pass, in_pass;
  };
  std::vector<Place> places_;  // by call
  Problem problem_;
  std::vector<std::vector<Profile>> profiles_;  // by call, by choice
};

}  // namespace snug::plan
