// Sorted tokens are cut into chunks. A block adds up one chunk, and writes the row of each token that lies
// wholly inside; of a token that crosses a border it keeps a partial sum, and a second kernel joins those. No
// atomics: every sum has an order that depends on the tokens alone.
#include <algorithm>

#include "snug/ops/embedding_kernel.h"
#include "snug/ops/kernel_vector.cuh"

namespace snug::ops {
namespace {

constexpr int kThreads = 128;
constexpr int kBatch = 4;                            // rows in flight per thread
constexpr int kWarp = 32, kWarps = 8, kColumns = 4;  // of a block that joins, and per thread
static_assert(kEmbeddingChunk % kBatch == 0);

__device__ bool has_row(const EmbeddingBackward& e, std::int64_t token) {
  return token >= 0 && token < e.rows;
}

// Of the token that a chunk begins with, if it began before; of the one that it ends with, if that goes on.
__device__ float* head(const EmbeddingBackward& e, std::int64_t chunk) {
  return e.partial + 2 * chunk * e.hidden;
}
__device__ float* tail(const EmbeddingBackward& e, std::int64_t chunk) {
  return e.partial + (2 * chunk + 1) * e.hidden;
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) add_chunk(EmbeddingBackward e) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kCount;
  if (column >= e.hidden) return;
  const std::int64_t chunk = blockIdx.x, begin = chunk * kEmbeddingChunk;
  const int length = static_cast<int>(min(static_cast<std::int64_t>(kEmbeddingChunk), e.count - begin));
  const T* grad_out = static_cast<const T*>(e.grad_out) + column;
  std::int64_t token = e.tokens[begin];
  bool began_before = begin > 0 && e.tokens[begin - 1] == token;
  float sum[kCount] = {};
  for (int first = 0; first < length; first += kBatch) {
    Packed<T, kCount> rows[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i < length) rows[i] = load_packed<kCount>(grad_out + e.order[begin + first + i] * e.hidden);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= length) break;
      for (int k = 0; k < kCount; ++k) sum[k] += static_cast<float>(rows[i].values[k]);
      const std::int64_t after = begin + first + i + 1;
      const std::int64_t following = after < e.count ? e.tokens[after] : token;
      const bool goes_on = after < e.count && following == token;
      if (goes_on && first + i + 1 < length) continue;
      if (began_before)
        store(sum, head(e, chunk) + column);
      else if (goes_on)
        store(sum, tail(e, chunk) + column);
      else if (has_row(e, token))
        store(sum, static_cast<T*>(e.grad_weight) + token * e.hidden + column);
      for (int k = 0; k < kCount; ++k) sum[k] = 0;
      token = following;
      began_before = false;
    }
  }
}

// The first of the chunks from `low` on that does not begin with the token.
__device__ std::int64_t chunk_beyond(const EmbeddingBackward& e, std::int64_t low, std::int64_t token) {
  std::int64_t high = (e.count + kEmbeddingChunk - 1) / kEmbeddingChunk;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (e.tokens[middle * kEmbeddingChunk] == token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Block x: the token that begins in chunk x and goes on beyond, if there is one. Its warps share the parts.
template <class T>
__global__ void __launch_bounds__(kWarp* kWarps) join_chunks(EmbeddingBackward e) {
  __shared__ float sums[kWarps][kColumns][kWarp];
  const std::int64_t chunk = blockIdx.x, begin = chunk * kEmbeddingChunk, end = begin + kEmbeddingChunk;
  const std::int64_t token = e.tokens[end - 1];
  if (e.tokens[end] != token || (begin > 0 && e.tokens[begin - 1] == token) || !has_row(e, token)) return;
  const std::int64_t beyond = chunk_beyond(e, chunk + 1, token);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kWarp * kColumns + threadIdx.x;
  float sum[kColumns] = {};
#pragma unroll 4
  for (std::int64_t part = chunk + threadIdx.y; part < beyond; part += kWarps) {
    const float* from = part == chunk ? tail(e, part) : head(e, part);
#pragma unroll
    for (int k = 0; k < kColumns; ++k)
      if (first + k * kWarp < e.hidden) sum[k] += from[first + k * kWarp];
  }
  for (int k = 0; k < kColumns; ++k) sums[threadIdx.y][k][threadIdx.x] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int k = 0; k < kColumns; ++k) {
    if (first + k * kWarp >= e.hidden) continue;
    for (int warp = 1; warp < kWarps; ++warp) sum[k] += sums[warp][k][threadIdx.x];
    static_cast<T*>(e.grad_weight)[token * e.hidden + first + k * kWarp] = static_cast<T>(sum[k]);
  }
}

unsigned pieces(std::int64_t whole, std::int64_t piece) {
  return static_cast<unsigned>((whole + piece - 1) / piece);
}

template <class T, int kCount>
void launch_add(const EmbeddingBackward& e, cudaStream_t stream) {
  const std::int64_t vectors = e.hidden / kCount;
  const int threads =
      static_cast<int>(std::min<std::int64_t>(kThreads, (vectors + kWarp - 1) / kWarp * kWarp));
  const dim3 blocks(pieces(e.count, kEmbeddingChunk), pieces(vectors, threads));
  add_chunk<T, kCount><<<blocks, threads, 0, stream>>>(e);
}

}  // namespace

cudaError_t launch(const EmbeddingBackward& embedding, cudaStream_t stream) {
  with_type(embedding.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    if (is_aligned(embedding.grad_out) && is_aligned(embedding.grad_weight) && embedding.hidden % kWide == 0)
      launch_add<T, kWide>(embedding, stream);
    else
      launch_add<T, 1>(embedding, stream);
    const unsigned chunks = pieces(embedding.count, kEmbeddingChunk);
    if (chunks == 1) return;
    const dim3 blocks(chunks - 1, pieces(embedding.hidden, kWarp * kColumns));
    join_chunks<T><<<blocks, dim3(kWarp, kWarps), 0, stream>>>(embedding);
  });
  return cudaGetLastError();
}

}  // namespace snug::ops
