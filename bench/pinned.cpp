// What the driver takes on the device for pinned host memory, by how the memory was made: used memory of the
// whole device before and after, so run it on an idle one.
//
//   pinned [GIB...]      default: 1 4 16
#include <ATen/Context.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/host/arena.h"
#include "snug/memory/process_memory.h"

namespace {

using namespace snug;

const c10::Device kDevice(c10::kCUDA, 0);

// Of this process, as the kernel counts it.
std::uint64_t huge_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (std::uint64_t kib = 0; word == "AnonHugePages:" && file >> kib) return kib * 1_KiB;
  return 0;
}

// Mapped as asked, touched and registered; unmapped when it goes.
class Mapped {
 public:
  Mapped(std::uint64_t bytes, int map_flags, int advice) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | map_flags, -1, 0);
    if (data_ == MAP_FAILED) return;
    if (advice != 0) ::madvise(data_, bytes, advice);
    std::memset(data_, 1, bytes);
    works_ = cudaHostRegister(data_, bytes, cudaHostRegisterPortable) == cudaSuccess;
  }
  ~Mapped() {
    if (works_) cudaHostUnregister(data_);
    if (data_ != MAP_FAILED) ::munmap(data_, bytes_);
  }
  Mapped(const Mapped&) = delete;  // it is a mapping
  Mapped& operator=(const Mapped&) = delete;
  bool works() const { return works_; }

 private:
  std::uint64_t bytes_;
  void* data_ = nullptr;
  bool works_ = false;
};

void show(const std::string& name, std::uint64_t gib, std::uint64_t process_before, std::uint64_t free_before,
          std::uint64_t huge_before) {
  const std::uint64_t taken = free_before - memory::cuda_device(0).free_bytes;
  const std::uint64_t counted = memory::process_memory(kDevice).process_bytes - process_before;
  fmt::print("{:30} {:>4} GiB {:>10.3f} MiB per GiB taken {:>10.3f} counted {:>6.1f} % in huge pages\n", name,
             gib, static_cast<double>(taken) / static_cast<double>(gib * 1_MiB),
             static_cast<double>(counted) / static_cast<double>(gib * 1_MiB),
             100 * static_cast<double>(huge_bytes() - huge_before) / static_cast<double>(gib * 1_GiB));
}

}  // namespace

int main(int count, char** arguments) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  std::vector<std::uint64_t> sizes;
  for (int i = 1; i < count; ++i) sizes.push_back(std::strtoull(arguments[i], nullptr, 10));
  if (sizes.empty()) sizes = {1, 4, 16};
  memory::note_memory_before_context(0);
  cudaFree(nullptr);  // the context

  using Use = std::function<void(std::uint64_t bytes, const std::function<void()>& measure)>;
  const auto mapped = [](int map_flags, int advice) -> Use {
    return [=](std::uint64_t bytes, const std::function<void()>& measure) {
      const Mapped memory(bytes, map_flags, advice);
      memory.works() ? measure() : fmt::print("  cannot be made here\n");
    };
  };
  const std::pair<const char*, Use> ways[] = {
      {"pages of 4 KiB, registered", mapped(0, MADV_NOHUGEPAGE)},
      {"MADV_HUGEPAGE, registered", mapped(0, MADV_HUGEPAGE)},
      {"MAP_HUGETLB, registered", mapped(MAP_HUGETLB, 0)},
      {"snug's arena",
       [](std::uint64_t bytes, const std::function<void()>& measure) {
         host::Arena arena({.pinned = true, .budget_bytes = bytes});
         arena.reserve(bytes);
         measure();
       }},
      {"cudaHostAlloc", [](std::uint64_t bytes, const std::function<void()>& measure) {
         void* data = nullptr;
         if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable) != cudaSuccess) return;
         measure();
         cudaFreeHost(data);
       }}};
  for (const auto& [name, use] : ways)
    for (const std::uint64_t gib : sizes) {
      const std::uint64_t process = memory::process_memory(kDevice).process_bytes,
                          free = memory::cuda_device(0).free_bytes, huge = huge_bytes();
      use(gib * 1_GiB, [&] { show(name, gib, process, free, huge); });
    }
}
