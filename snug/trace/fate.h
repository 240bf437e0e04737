// What happens to a value between the forward that made it and the backward that needs it.
#pragma once

#include <cstdint>

namespace snug::trace {

enum class Fate : std::uint8_t { Keep, Recompute, Offload };

}  // namespace snug::trace
