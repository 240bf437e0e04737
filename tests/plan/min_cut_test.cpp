#include "snug/plan/min_cut.h"

#include <gtest/gtest.h>

#include <random>

namespace snug::plan {
namespace {

struct Edge {
  MinCut::Node from, to;
  double capacity;
};

double capacity_out_of(const std::vector<bool>& side, const std::vector<Edge>& edges) {
  double sum = 0;
  for (const Edge& edge : edges)
    if (side[edge.from] && !side[edge.to]) sum += edge.capacity;
  return sum;
}

TEST(MinCut, IsTheCheapestOfAllAndNearestToTheSource) {
  std::mt19937 random(7);
  const auto below = [&](unsigned limit) { return static_cast<unsigned>(random() % limit); };
  for (int round = 0; round < 500; ++round) {
    const MinCut::Node nodes = 2 + below(8), source = 0, sink = 1;
    MinCut graph;
    for (MinCut::Node i = 0; i < nodes; ++i) graph.add_node();
    std::vector<Edge> edges;
    for (unsigned i = 0; i < 3 * nodes; ++i) {
      const Edge edge{below(nodes), below(nodes), below(9) == 0 ? MinCut::kForever : 1.0 * below(20)};
      if (edge.from == source && edge.to == sink && edge.capacity == MinCut::kForever) continue;
      graph.add_edge(edge.from, edge.to, edge.capacity);
      edges.push_back(edge);
    }
    double cheapest = MinCut::kForever;
    std::vector<bool> nearest;
    for (unsigned mask = 0; mask < 1u << nodes; ++mask) {
      if (!(mask & 1u << source) || mask & 1u << sink) continue;
      std::vector<bool> side;
      for (MinCut::Node i = 0; i < nodes; ++i) side.push_back(mask & 1u << i);
      const double cost = capacity_out_of(side, edges);
      if (cost < cheapest) nearest = side;
      if (cost == cheapest && cost < MinCut::kForever)  // the cheapest sides are closed under intersection
        for (MinCut::Node i = 0; i < nodes; ++i) nearest[i] = nearest[i] && side[i];
      cheapest = std::min(cheapest, cost);
    }
    if (cheapest == MinCut::kForever) continue;  // nothing tells them apart
    const std::vector<bool> found = graph.solve(source, sink);
    EXPECT_EQ(capacity_out_of(found, edges), cheapest) << "round " << round;
    EXPECT_EQ(found, nearest) << "round " << round;
  }
}

}  // namespace
}  // namespace snug::plan
