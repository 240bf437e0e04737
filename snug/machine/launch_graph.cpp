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
#include <map>
#include <mutex>

#include "snug/host/cuda_stream.h"
#include "snug/memory/process_memory.h"

namespace snug::machine {

namespace {

// One for each device, never destroyed, as any that torch's allocator has seen.
c10::cuda::CUDAStream capture_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream>& streams =
      *new std::map<c10::DeviceIndex, c10::cuda::CUDAStream>;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  return found != streams.end() ? found->second
                                : streams.emplace(device, host::make_cuda_stream(device)).first->second;
}

// Torch leaves its generator inside a capture that failed.
void leave_capture(at::Generator generator, const at::Tensor& numbers) {
  at::Generator fresh = at::cuda::detail::createCUDAGenerator(generator.device().index());
  fresh.set_state(numbers);
  generator.graphsafe_set_state(fresh);
}

}  // namespace

void give_back_cache(c10::Device device) {
  if (!device.is_cuda()) return;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
  at::cuda::clearCublasWorkspaces();
  memory::empty_cuda_cache();
}

class LaunchGraph::Captured {
 public:
  Captured(c10::Device device, const std::function<void()>& work) : device_(device) {
    const c10::cuda::CUDAGuard device_guard(device_);
    give_back_cache(device_);  // the graph has workspaces of its own
    const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(device_.index());
    const at::Tensor numbers = generator.get_state();
    const c10::cuda::CUDAStream stream = capture_stream(device_.index());
    const c10::cuda::CUDAStreamGuard stream_guard(stream);
    try {
      capture(work);
      C10_CUDA_CHECK(cudaGraphUpload(graph_.raw_cuda_graph_exec(), stream));  // memory that a launch needs
      stream.synchronize();
    } catch (...) {
      static_cast<void>(cudaGetLastError());
      end_allocating();
      leave_capture(generator, numbers);
      drop();
      throw;
    }
  }
  ~Captured() { drop(); }

  void launch() { graph_.replay(); }

 private:
  void capture(const std::function<void()>& work) {
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
    } catch (...) {  // because the work failed
      if (!failed) throw;
    }
    if (failed) std::rethrow_exception(failed);
  }

  // Torch's allocators give nothing back to the driver while they believe in a capture, and torch forgets to
  // tell them of one that failed.
  void end_allocating() {
    const auto attempt = [](const auto& end) {
      try {
        end();
      } catch (const std::exception&) {  // it has ended, and is released with the graph
      }
    };
    attempt([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device_.index(), pool_);
    });
    attempt([&] {
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    });
  }

  void drop() noexcept try {
    const c10::cuda::CUDAGuard device_guard(device_);
    c10::cuda::device_synchronize();
    graph_.reset();
    give_back_cache(device_);
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
