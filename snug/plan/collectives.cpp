#include "snug/plan/collectives.h"

#include <algorithm>

namespace snug::plan {

PeerLinks peer_links_of(const Hardware& hardware) {
  // Gloo on CPUs: a message is some system calls and the waking of a thread at both ends; not measured.
  constexpr double kMessage = 50e-6;
  constexpr double kFastestPci = 64e9;  // above it ranks are joined by NVLink
  PeerLinks peers{.peer_rate = hardware.peer_rate,
                  .network_rate = hardware.network_rate,
                  .ranks_per_network = static_cast<int>(hardware.ranks_per_network)};
  if (hardware.is_gpu) {
    peers.start_seconds = 8.4e-6;
    peers.peer_hop_seconds = hardware.peer_rate > kFastestPci ? 3.4e-6 : 5.7e-6;
    peers.network_hop_seconds = 14e-6;
    peers.slowdown = 0.13;  // NCCL's kernels on 17 of an H100's 132 multiprocessors: assumed
  } else {
    peers.start_seconds = peers.peer_hop_seconds = peers.network_hop_seconds = kMessage;
  }
  return peers;
}

double collective_seconds(std::uint64_t bytes, const Ranks& ranks, const PeerLinks& peers) {
  if (ranks.count <= 1) return 0;
  const int machines = ranks.machines();
  const int cards = std::max(1, ranks.of_smallest_machine() / peers.ranks_per_network);
  const double rate = machines == 1 ? peers.peer_rate : std::min(peers.peer_rate, cards * peers.network_rate);
  return peers.start_seconds + (ranks.count - machines) * peers.peer_hop_seconds +
         (machines - 1) * peers.network_hop_seconds + static_cast<double>(sent_bytes(bytes, ranks)) / rate;
}

std::uint64_t sent_bytes(std::uint64_t bytes, const Ranks& ranks) {
  const auto count = static_cast<std::uint64_t>(ranks.count);
  return bytes / count * (count - 1);
}

StepCollectives::StepCollectives(const std::vector<Collective>& all, const Ranks& ranks,
                                 const PeerLinks& peers) {
  for (const Collective& one : all) {
    if (regions_.empty() || regions_.back().name != one.region) regions_.push_back({.name = one.region});
    Region& region = regions_.back();
    const bool is_weights = one.what == Collective::What::Weights;
    Amount& amount = one.is_in_each_pass ? (is_weights ? region.weights : region.gradients)
                                         : (is_weights ? region.weights_once : region.gradients_once);
    (one.is_second ? amount.second_bytes : amount.bytes) += one.bytes;
  }
  for (Region& region : regions_)
    for (Amount* amount :
         {&region.weights, &region.weights_once, &region.gradients, &region.gradients_once}) {
      for (const std::uint64_t bytes : {amount->bytes, amount->second_bytes}) {
        if (bytes > 0) amount->seconds += collective_seconds(bytes, ranks, peers);
        amount->sent_bytes += plan::sent_bytes(bytes, ranks);
      }
    }
}

std::size_t StepCollectives::place_of(std::string_view region) const {
  return static_cast<std::size_t>(std::ranges::find(regions_, region, &Region::name) - regions_.begin());
}

StepCollectives::Beside StepCollectives::in_each_pass(std::string_view region) const {
  const std::size_t place = place_of(region);
  Beside beside;
  if (place + 1 < regions_.size()) {
    beside.forward = regions_[place + 1].weights.seconds;
    beside.backward = regions_[place + 1].gradients.seconds;
  }
  if (place > 0 && place < regions_.size()) beside.backward += regions_[place - 1].weights.seconds;
  return beside;
}

StepCollectives::Beside StepCollectives::once(std::string_view region) const {
  const std::size_t place = place_of(region);
  if (place + 1 >= regions_.size()) return {};
  return {regions_[place + 1].weights_once.seconds, regions_[place + 1].gradients_once.seconds};
}

// The first region's weights stay from a pass to the next one of the step.
double StepCollectives::alone(double passes) const {
  if (regions_.empty()) return 0;
  const Region& first = regions_.front();
  return first.weights.seconds + first.weights_once.seconds + passes * first.gradients.seconds +
         first.gradients_once.seconds;
}

template <class Number>
Number StepCollectives::total(double passes, Number Amount::*number) const {
  double sum = 0;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const Region& region = regions_[i];
    const double gathers = (i == 0 ? 1 : passes) + (i + 1 == regions_.size() ? 0 : passes);
    const auto of = [&](const Amount& amount) { return static_cast<double>(amount.*number); };
    sum += gathers * of(region.weights) + of(region.weights_once) + passes * of(region.gradients) +
           of(region.gradients_once);
  }
  return static_cast<Number>(sum);
}

double StepCollectives::seconds(double passes) const {
  return total(passes, &Amount::seconds);
}

std::uint64_t StepCollectives::sent_bytes(double passes) const {
  return total(passes, &Amount::sent_bytes);
}

}  // namespace snug::plan
