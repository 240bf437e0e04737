#include "snug/host/cuda_link.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "snug/base/error.h"
#include "snug/host/cuda_stream.h"

namespace snug::host {

namespace {

class CudaCopy final : public Copy {
 public:
  // Done when all that `stream` was given so far is.
  CudaCopy(const c10::cuda::CUDAStream& stream, std::uint64_t number) : number_(number) {
    done_.record(stream);
  }
  void wait() override { done_.block(c10::cuda::getCurrentCUDAStream(done_.device_index())); }
  void finish() override { done_.synchronize(); }
  std::uint64_t number() const override { return number_; }

 private:
  const std::uint64_t number_;
  c10::cuda::CUDAEvent done_;  // without timing; written once, so any thread may wait for it
};

// One direction.
class CopyStream {
 public:
  explicit CopyStream(c10::DeviceIndex device) : stream_(make_cuda_stream(device)) {}

  CopyPtr push(const void* from, void* to, std::uint64_t bytes, cudaMemcpyKind kind, const CopyPtr& before,
               const CopyPtr& since) {
    std::lock_guard lock(mutex_);  // numbers in the order of the stream
    if (!since) asked_.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    const c10::cuda::CUDAStreamGuard guard(stream_);  // so that the copy's stream is the one that waits
    since ? since->wait() : asked_.block(stream_);
    if (before) before->wait();
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    return std::make_shared<CudaCopy>(stream_, ++last_);
  }

 private:
  std::mutex mutex_;
  const c10::cuda::CUDAStream stream_;
  c10::cuda::CUDAEvent asked_;  // who waits for it waits for what was recorded then, so one is enough
  std::uint64_t last_ = 0;
};

class CudaLink final : public Link {
 public:
  explicit CudaLink(c10::DeviceIndex device)
      : Link({c10::kCUDA, device}), to_host_(device), to_device_(device) {}

  std::optional<c10::Stream> stream_beside(std::size_t number) override {
    const std::lock_guard lock(mutex_);
    while (beside_.size() <= number) beside_.push_back(make_cuda_stream(device().index()).unwrap());
    return beside_[number];
  }
  CopyPtr mark() override {
    return std::make_shared<CudaCopy>(c10::cuda::getCurrentCUDAStream(device().index()), 0);
  }

  CopyPtr copy_to_host(const void* from, void* to, std::uint64_t bytes, const CopyPtr& before,
                       const CopyPtr& since) override {
    return to_host_.push(from, to, bytes, cudaMemcpyDeviceToHost, before, since);
  }
  CopyPtr copy_to_device(void* to, const void* from, std::uint64_t bytes, const CopyPtr& before,
                         const CopyPtr& since) override {
    return to_device_.push(from, to, bytes, cudaMemcpyHostToDevice, before, since);
  }

 private:
  CopyStream to_host_, to_device_;
  std::mutex mutex_;
  std::vector<c10::Stream> beside_;
};

struct OpenCudaLinks {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::shared_ptr<Link>> links;
};

}  // namespace

std::shared_ptr<Link> open_cuda_link(c10::DeviceIndex device) {
  const int there = c10::cuda::device_count();
  check(device < there, "a link to cuda:", static_cast<int>(device < 0 ? 0 : device), ": this machine has ",
        there, there == 1 ? " GPU" : " GPUs");
  if (device < 0) device = c10::cuda::current_device();
  int is_the_hosts = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&is_the_hosts, cudaDevAttrIntegrated, device));
  check(is_the_hosts == 0, "cuda:", static_cast<int>(device),
        " has no memory but the host's: what waits there waits in the same memory, so keep it on the device");
  // The runtime may be gone when static objects are: nothing here is destroyed.
  static OpenCudaLinks& open = *std::make_unique<OpenCudaLinks>().release();
  std::lock_guard lock(open.mutex);
  std::shared_ptr<Link>& link = open.links[device];
  if (!link) link = std::make_shared<CudaLink>(device);
  return link;
}

}  // namespace snug::host
