// What a stretch of work launches on a GPU, captured once as a CUDA graph and from then on launched at once:
// for work whose kernels run faster than a host launches them one by one.
//
//   LaunchGraph graph(device, [&] { loss = model->loss(tokens); loss.backward(); });  // nothing is computed
//   graph.launch();                                              // now it is, of what `tokens` holds by now
//
// The work does the same at every launch, on the same addresses: what it reads has to be written in place,
// and tensors that it made and that outlive it are written again. What it let go of stays the graph's own
// memory. It may wait for nothing on the GPU and copy nothing from memory that is not pinned. It must have
// run before, as it was: libraries load kernels and choose algorithms when they are first used.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "snug/base/export.h"

namespace snug::machine {

// What torch's allocator has cached for nobody, and cuBLAS's workspaces. On the CPU nothing.
SNUG_API void give_back_cache(c10::Device device);

class SNUG_API LaunchGraph {
 public:
  // Gives back what torch's allocator has cached, and cuBLAS its workspaces: the graph takes as much. Throws
  // c10::Error for work that cannot be captured, and what the work throws; all is then as it was, but for
  // what the work itself has changed.
  LaunchGraph(c10::Device device, const std::function<void()>& work);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;  // it is memory at fixed addresses
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  void launch();  // on the current stream

 private:
  class Captured;
  std::unique_ptr<Captured> captured_;
};

}  // namespace snug::machine
