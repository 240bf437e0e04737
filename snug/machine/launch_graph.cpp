#include "snug/machine/launch_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "snug/host/cuda_stream.h"
#include "snug/memory/process_memory.h"

namespace snug::machine {

namespace {

// Those of the threads and streams that are no longer used would lie beside the graph's own.
void give_back_cache() {
  c10::cuda::device_synchronize();
  at::cuda::clearCublasWorkspaces();
  memory::empty_cuda_cache();
}

// A capture that fails leaves it in one for good.
void make_new(at::Generator generator, const at::Tensor& numbers) {
  at::Generator fresh = at::cuda::detail::createCUDAGenerator(generator.device().index());
  fresh.set_state(numbers);
  generator.graphsafe_set_state(fresh);
}

}  // namespace

class LaunchGraph::Captured {
 public:
  Captured(c10::Device device, const std::function<void()>& work) : device_(device) {
    const c10::cuda::CUDAGuard device_guard(device_);
    give_back_cache();
    const c10::cuda::CUDAStreamGuard side(host::make_cuda_stream(device_.index()));
    const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(device_.index());
    const at::Tensor numbers = generator.get_state();
    // Whoever writes a state meanwhile may do so: this is about our thread, and autograd's beside it.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    std::exception_ptr failed;
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    try {
      graph_.capture_end();
    } catch (...) {  // because the work failed: torch forgets the rest
      end_allocating();
      make_new(generator, numbers);
      if (!failed) failed = std::current_exception();
    }
    if (!failed) return;
    static_cast<void>(cudaGetLastError());
    drop();
    std::rethrow_exception(failed);
  }
  ~Captured() { drop(); }

  void launch() { graph_.replay(); }

 private:
  // While torch's allocators believe in a capture they give nothing back to the driver.
  void end_allocating() {
    const auto attempt = [](const auto& end) {
      try {
        end();
      } catch (const std::exception&) {  // it has ended, or never began
      }
    };
    attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_); });
    attempt([&] { c10::cuda::CUDACachingAllocator::releasePool(device_.index(), pool_); });
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    attempt([&] { host->end_allocate_to_pool(pool_); });
    attempt([&] { host->release_pool(pool_); });
  }

  void drop() noexcept try {
    const c10::cuda::CUDAGuard device_guard(device_);
    c10::cuda::device_synchronize();
    graph_.reset();
    give_back_cache();
  } catch (const std::exception&) {  // the device failed, and whoever uses it next will say so
  }

  const c10::Device device_;
  const at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
};

LaunchGraph::LaunchGraph(c10::Device device, const std::function<void()>& work)
    : captured_(std::make_unique<Captured>(device, work)) {}

LaunchGraph::~LaunchGraph() = default;

void LaunchGraph::launch() {
  captured_->launch();
}

}  // namespace snug::machine
