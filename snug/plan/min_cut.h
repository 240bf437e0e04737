// The cheapest way to tell a source from a sink: Dinic's algorithm. Internal to plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "snug/base/export.h"

namespace snug::plan {

class SNUG_API MinCut {
 public:
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  using Node = std::uint32_t;

  Node add_node();
  void add_edge(Node from, Node to, double capacity);
  // True for the nodes on the source's side; of several cheapest cuts the one nearest to the source.
  std::vector<bool> solve(Node source, Node sink);

 private:
  struct Edge {
    Node to;
    double capacity;  // what is left of it
  };

  bool rank(Node source, Node sink);
  double push(Node node, Node sink, double most);

  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::vector<std::uint32_t>> out_;
  std::vector<std::int32_t> ranks_;
  std::vector<std::size_t> next_;
};

}  // namespace snug::plan
