// Gradient checkpointing as torch.utils.checkpoint(use_reentrant=False) does it, for C++: nothing that
// `function` makes is kept for the backward; it is recomputed there.
//
//   x = snug::checkpoint([&](at::Tensor x) { return block->forward(x); }, x);
//   x = snug::checkpoint_sequential(layers, 4, x);      // all but the last of four parts
//
// The function itself runs once: its operators are run again, with the random numbers of the forward.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "snug/base/export.h"
#include "snug/tape/region.h"

namespace snug {

struct CheckpointOptions {
  bool preserve_rng_state = true;  // else random operators draw new numbers, as in torch
  tape::DeterminismCheck determinism_check = tape::DeterminismCheck::Size;
  std::string name = "checkpoint";  // of the region
};

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
auto checkpoint(const CheckpointOptions& options, Function&& function, Inputs&&... inputs) {
  static_assert(!std::is_void_v<std::invoke_result_t<Function, Inputs...>>,
                "a checkpointed function returns what the backward starts from");
  tape::Recording recording(tape::Fates::recompute(), {.record_generators = options.preserve_rng_state,
                                                       .determinism_check = options.determinism_check,
                                                       .place = tape::place_of<Function>()});
  hooks::RegionScope scope(options.name);
  return std::forward<Function>(function)(std::forward<Inputs>(inputs)...);
}

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
auto checkpoint(Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions{}, std::forward<Function>(function), std::forward<Inputs>(inputs)...);
}

// Throws Error unless 1 <= segments <= the number of modules.
SNUG_API at::Tensor checkpoint_sequential(torch::nn::Sequential& modules, std::size_t segments,
                                          at::Tensor input, const CheckpointOptions& options = {});

}  // namespace snug
