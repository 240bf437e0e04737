// A sum of words, each times an odd number of its own, modulo 2^64: a change of any one word changes it.
#include "snug/tape/checksum.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "snug/tape/geometry.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

constexpr std::int64_t kChunk = 1 << 20;              // words
constexpr std::int64_t kFactor = 0x1E3779B97F4A7C15;  // odd

at::Tensor weights(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong)).mul_(kFactor - 1).add_(1);
}

}  // namespace

std::int64_t checksum(const c10::Storage& storage) {
  return checksum(storage, {.begin = 0, .end = storage.nbytes()});
}

std::int64_t checksum(const c10::Storage& storage, const Span& span) {
  if (storage.device().is_meta() || span.size() == 0) return 0;
  Quiet work_of_our_own;
  const auto size = static_cast<std::int64_t>(span.size());
  const at::Tensor bytes = bytes_of(storage).narrow(0, static_cast<std::int64_t>(span.begin), size);
  const std::int64_t words = size / 8;
  const at::Tensor factors = weights(std::min(std::max<std::int64_t>(words, 8), kChunk), bytes);
  at::Tensor sum = at::zeros({}, bytes.options().dtype(at::kLong));
  for (std::int64_t first = 0; first < words; first += kChunk) {
    const std::int64_t count = std::min(kChunk, words - first);
    const at::Tensor chunk = bytes.narrow(0, first * 8, count * 8).view(at::kLong);
    sum.mul_(kFactor).add_((chunk * factors.narrow(0, 0, count)).sum());
  }
  const std::int64_t rest = size - words * 8;
  if (rest > 0) sum.mul_(kFactor).add_((bytes.narrow(0, words * 8, rest) * factors.narrow(0, 0, rest)).sum());
  return sum.item<std::int64_t>();
}

}  // namespace snug::tape
