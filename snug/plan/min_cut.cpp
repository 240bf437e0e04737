#include "snug/plan/min_cut.h"

#include <algorithm>

namespace snug::plan {

MinCut::Node MinCut::add_node() {
  out_.emplace_back();
  return static_cast<Node>(out_.size() - 1);
}

void MinCut::add_edge(Node from, Node to, double capacity) {
  out_[from].push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({to, capacity});
  out_[to].push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({from, 0});
}

std::vector<bool> MinCut::solve(Node source, Node sink) {
  while (rank(source, sink)) {
    next_.assign(out_.size(), 0);
    while (push(source, sink, kForever) > 0) {
    }
  }
  std::vector<bool> reached;
  for (const std::int32_t rank : ranks_) reached.push_back(rank >= 0);
  return reached;
}

// Distance from the source over edges with capacity left; false if the sink is out of reach.
bool MinCut::rank(Node source, Node sink) {
  ranks_.assign(out_.size(), -1);
  ranks_[source] = 0;
  std::vector<Node> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (const std::uint32_t edge : out_[queue[i]]) {
      const auto& [to, capacity] = edges_[edge];
      if (capacity <= 0 || ranks_[to] >= 0) continue;
      ranks_[to] = ranks_[queue[i]] + 1;
      queue.push_back(to);
    }
  return ranks_[sink] >= 0;
}

// The depth is bounded by the longest chain of operations in one region.
double MinCut::push(Node node, Node sink, double most) {
  if (node == sink) return most;
  for (std::size_t& i = next_[node]; i < out_[node].size(); ++i) {
    const std::uint32_t edge = out_[node][i];
    const auto [to, capacity] = edges_[edge];
    if (capacity <= 0 || ranks_[to] != ranks_[node] + 1) continue;
    const double pushed = push(to, sink, std::min(most, capacity));
    if (pushed <= 0) continue;
    if (edges_[edge].capacity != kForever) edges_[edge].capacity -= pushed;
    if (edges_[edge ^ 1].capacity != kForever) edges_[edge ^ 1].capacity += pushed;
    return pushed;
  }
  return 0;
}

}  // namespace snug::plan
