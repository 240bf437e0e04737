// What torch.autograd.graph.save_on_cpu should have been: what `function` saves for the backward is on the
// host in between, and moves there and back while other parts of the model compute.
//
//   for (auto& layer : layers) x = snug::save_on_host([&](at::Tensor x) { return layer->forward(x); }, x);
//
// Copies overlap with the calls around each: one call around the whole model has nothing to overlap with.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "snug/host/store.h"
#include "snug/tape/region.h"

namespace snug {

struct SaveOnHostOptions {
  std::shared_ptr<host::Store> host;    // null: the process's own, which grows in the first steps
  std::uint64_t least_bytes = 1 << 16;  // smaller values stay
  std::string name = "save_on_host";    // of the region
};

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
auto save_on_host(const SaveOnHostOptions& options, Function&& function, Inputs&&... inputs) {
  static_assert(!std::is_void_v<std::invoke_result_t<Function, Inputs...>>,
                "the function returns what the backward starts from");
  tape::Recording recording(tape::Fates::offload().smaller_than(options.least_bytes, tape::Fate::Keep),
                            {.host = options.host, .place = tape::place_of<Function>()});
  hooks::RegionScope scope(options.name);
  return std::forward<Function>(function)(std::forward<Inputs>(inputs)...);
}

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
auto save_on_host(Function&& function, Inputs&&... inputs) {
  return save_on_host(SaveOnHostOptions{}, std::forward<Function>(function), std::forward<Inputs>(inputs)...);
}

}  // namespace snug
