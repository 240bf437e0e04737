#include "snug/base/error.h"
#include "snug/memory/cuda_process_memory.h"

namespace snug::memory {

namespace {
[[noreturn]] void no_cuda() {
  fail("this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}
}  // namespace

ProcessMemory cuda_process_memory(c10::DeviceIndex) {
  no_cuda();
}
void note_memory_before_context(c10::DeviceIndex) {
  no_cuda();
}
CudaDevice cuda_device(c10::DeviceIndex) {
  no_cuda();
}
std::string why_no_cuda_device() {
  return "snug was built with SNUG_CUDA=OFF";
}
bool let_cuda_segments_grow(bool) {
  no_cuda();
}
double cuda_allocator_share(c10::DeviceIndex) {
  no_cuda();
}
void cap_cuda_allocator(c10::DeviceIndex, double) {
  no_cuda();
}
void empty_cuda_cache() {
  no_cuda();
}

}  // namespace snug::memory
