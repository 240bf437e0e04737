#include "snug/tape/checkpoint.h"

#include "snug/base/error.h"

namespace snug {

at::Tensor checkpoint_sequential(torch::nn::Sequential& modules, std::size_t segments, at::Tensor input,
                                 const CheckpointOptions& options) {
  check(segments >= 1 && segments <= modules->size(), "segments must be between 1 and the ", modules->size(),
        " modules, got ", segments);
  const std::size_t length = modules->size() / segments;
  const auto run = [&](std::size_t first, std::size_t last, at::Tensor x) {
    for (std::size_t i = first; i < last; ++i)
      x = (modules->begin() + static_cast<std::ptrdiff_t>(i))->forward(x);
    return x;
  };
  std::size_t first = 0;
  for (; first + length < segments * length; first += length)
    input = checkpoint(options, run, first, first + length, std::move(input));
  return run(first, modules->size(), std::move(input));  // its values are needed at once
}

}  // namespace snug
