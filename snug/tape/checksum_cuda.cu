// Reads at the device's copy rate: 16 bytes a thread, one atomic addition a block. Sums of integers are the
// same in any order.
#include "snug/tape/checksum_kernel.h"
#include "snug/tape/checksum_words.h"

namespace snug::tape {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr std::size_t kMostBlocks = 132 * 8;

__device__ std::uint64_t over_block(std::uint64_t sum) {
  __shared__ std::uint64_t of_warps[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return 0;
  for (int i = 1; i < kThreads / kWarp; ++i) sum += of_warps[i];
  return sum;
}

// The last word is filled up with zeros.
__device__ std::uint64_t word_at(const unsigned char* bytes, std::size_t count, std::size_t word) {
  std::uint64_t value = 0;
  for (std::size_t i = word * 8; i < min(count, word * 8 + 8); ++i)
    value |= static_cast<std::uint64_t>(bytes[i]) << (i % 8 * 8);
  return value;
}

__global__ void __launch_bounds__(kThreads) add_checksum_kernel(const unsigned char* bytes, std::size_t count,
                                                                std::size_t pairs, std::uint64_t* out) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  std::uint64_t sum = 0;
  const auto* const aligned = reinterpret_cast<const ulonglong2*>(bytes);
#pragma unroll 4
  for (std::size_t pair = first; pair < pairs; pair += stride) {
    const ulonglong2 words = aligned[pair];
    sum += stirred(words.x, 2 * pair) + stirred(words.y, 2 * pair + 1);
  }
  for (std::size_t word = 2 * pairs + first; word < (count + 7) / 8; word += stride)
    sum += stirred(word_at(bytes, count, word), word);
  sum = over_block(sum);
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(out), sum);
}

}  // namespace

cudaError_t add_checksum(const void* bytes, std::size_t count, std::uint64_t* sum, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(bytes) % sizeof(ulonglong2) == 0;
  const std::size_t pairs = is_aligned ? count / sizeof(ulonglong2) : 0;
  const std::size_t work = is_aligned ? pairs + 1 : (count + 7) / 8;
  const std::size_t blocks = (work + kThreads - 1) / kThreads;
  add_checksum_kernel<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
                        stream>>>(static_cast<const unsigned char*>(bytes), count, pairs, sum);
  return cudaGetLastError();
}

}  // namespace snug::tape
