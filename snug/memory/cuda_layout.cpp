#include "snug/memory/cuda_layout.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

namespace snug::memory {

namespace {

using trace::AllocatorLayout;

// Of a segment that grows torch tells the parts that have memory; the driver knows the addresses it may have.
// Where it does not say, those are all.
void find_addresses(AllocatorLayout::Segment& segment) {
  static const auto get_attribute = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<decltype(&cuPointerGetAttribute)>(found)
               : nullptr;
  }();
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  if (!get_attribute ||
      get_attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, segment.address) != CUDA_SUCCESS ||
      get_attribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, segment.address) != CUDA_SUCCESS ||
      begin > segment.address || begin + bytes < segment.address + segment.bytes)
    return;
  segment.address = begin;
  segment.bytes = bytes;
}

}  // namespace

AllocatorLayout cuda_layout(c10::DeviceIndex device) {
  const auto snapshot = c10::cuda::CUDACachingAllocator::snapshot({0, 0}, /*include_traces=*/false);
  const void* stream = c10::cuda::getCurrentCUDAStream(device).stream();
  AllocatorLayout layout;
  for (const auto& part : snapshot.segments) {
    if (part.device != device) continue;
    const bool is_ours = part.stream == stream && part.owner_private_pool_id == c10::MempoolId_t{0, 0};
    AllocatorLayout::Segment segment{.address = part.address,
                                     .bytes = part.total_size,
                                     .is_small = !part.is_large,
                                     .grows = part.is_expandable && is_ours};
    std::uint64_t address = part.address;
    for (const auto& block : part.blocks) {
      segment.blocks.push_back(
          {.address = address, .bytes = block.size, .is_free = is_ours && !block.active});
      address += block.size;
    }
    if (segment.grows) find_addresses(segment);
    layout.segments.push_back(std::move(segment));
  }
  std::ranges::sort(layout.segments, {}, [](const auto& segment) {
    return std::tuple(segment.address, segment.blocks.front().address);
  });
  // Parts of one segment that grows: they have the same addresses.
  std::vector<AllocatorLayout::Segment> joined;
  for (AllocatorLayout::Segment& segment : layout.segments) {
    if (!joined.empty() && joined.back().address == segment.address)
      std::ranges::move(segment.blocks, std::back_inserter(joined.back().blocks));
    else
      joined.push_back(std::move(segment));
  }
  return {std::move(joined)};
}

}  // namespace snug::memory
