#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/pin.h"

namespace snug::host {

namespace {

std::string lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

}  // namespace

void check_can_pin() {
  check(c10::cuda::device_count() > 0,
        "pinned host memory is for copies to and from a GPU, and there is none here: ask for memory that is "
        "not pinned");
}

void pin(void* data, std::uint64_t bytes) {
  const cudaError_t result = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // told here, not by whoever asks next
  throw RunError(concat("cannot pin ", format_bytes(bytes), " of host memory: ", cudaGetErrorString(result),
                        "; this process may lock ", lock_limit(),
                        ": raise that (ulimit -l), or lower `host_budget`"));
}

void unpin(void* data) noexcept {
  const cudaError_t result = cudaHostUnregister(data);
  if (result == cudaSuccess || result == cudaErrorCudartUnloading) return;
  static_cast<void>(cudaGetLastError());
  TORCH_WARN("cannot unpin host memory: ", cudaGetErrorString(result));
}

}  // namespace snug::host
