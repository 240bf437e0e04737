// What ranks send one another, and how long it takes.
//
//   const PeerLinks peers = peer_links_of(hardware);
//   collective_seconds(weight_bytes, {.count = 16, .per_machine = 8}, peers);
//
// Note [What a collective costs]
// All-gathers and reduce-scatters of n bytes go around a ring: every rank sends and receives
// n (ranks - 1) / ranks. A ring within a machine has the rate of its GPUs' links. Over several machines there
// are as many rings as each has network cards, and each crosses from machine to machine once: together they
// have the rate of all cards of the machine with the fewest ranks, or that of its GPUs' links if that is
// less. On top of that each hop has a latency: those of NCCL's own model of rings with large messages
// (src/graph/tuning.cc of 2.28: 3.4 us over NVLink, 5.7 us over PCI Express, 14 us over a network, 8.4 us to
// begin with). NCCL's kernels hold some of a GPU's multiprocessors meanwhile: see docs/scaling.md for how
// large that share is taken to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"
#include "snug/plan/setting.h"

namespace snug::plan {

// Between ranks.
struct PeerLinks {
  double peer_rate = 0;  // bytes per second that a rank sends within its machine, while it receives as many
  double network_rate = 0;  // the same, of a network card
  int ranks_per_network = 1;
  double start_seconds = 0, peer_hop_seconds = 0, network_hop_seconds = 0;
  double slowdown = 0;  // the share by which computing is slower meanwhile
};

SNUG_API PeerLinks peer_links_of(const Hardware& hardware);

// Of an all-gather or a reduce-scatter of so many bytes, which ranks have together. 0 for one rank.
SNUG_API double collective_seconds(std::uint64_t bytes, const Ranks& ranks, const PeerLinks& peers);
// That each rank sends in it.
SNUG_API std::uint64_t sent_bytes(std::uint64_t bytes, const Ranks& ranks);

// When ranks do what in a step: a region's weights are gathered while the region before it runs, in the order
// of the pass, its gradients are added up while the next one's backward runs. Weights that the backward needs
// first are there from the forward.
class SNUG_API StepCollectives {
 public:
  StepCollectives() = default;
  StepCollectives(const std::vector<Collective>& all, const Ranks& ranks, const PeerLinks& peers);

  // Beside a region, in seconds.
  struct Beside {
    double forward = 0, backward = 0;
  };
  Beside in_each_pass(std::string_view region) const;
  Beside once(std::string_view region) const;  // in a step: beside the first forward and the last backward
  // Of a step: what runs beside nothing.
  double alone(double passes) const;

  double seconds(double passes) const;  // of a step, all of it
  std::uint64_t sent_bytes(double passes) const;

 private:
  struct Amount {  // of a region: asked for together, in one round or two, so each hop's latency is there
                   // once
    std::uint64_t bytes = 0, second_bytes = 0, sent_bytes = 0;
    double seconds = 0;
  };
  struct Region {
    std::string name;
    Amount weights, weights_once, gradients, gradients_once;
  };
  template <class Number>
  Number total(double passes, Number Amount::*number) const;
  std::size_t place_of(std::string_view region) const;

  std::vector<Region> regions_;  // in the order of the forward
};

}  // namespace snug::plan
