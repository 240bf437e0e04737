#include "snug/base/error.h"
#include "snug/machine/launch_graph.h"

namespace snug::machine {

void give_back_cache(c10::Device) {}

class LaunchGraph::Captured {};

LaunchGraph::LaunchGraph(c10::Device, const std::function<void()>&) {
  fail("this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}

LaunchGraph::~LaunchGraph() = default;

void LaunchGraph::launch() {}

}  // namespace snug::machine
