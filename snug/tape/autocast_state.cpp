#include "snug/tape/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace snug::tape {

namespace {

AutocastState types() {
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA)};
}

void set_types(const AutocastState& state) {
  at::autocast::set_autocast_dtype(at::kCPU, state.cpu);
  at::autocast::set_autocast_dtype(at::kCUDA, state.cuda);
}

}  // namespace

std::optional<AutocastState> AutocastState::now() {
  if (!at::autocast::is_autocast_enabled(at::kCPU) && !at::autocast::is_autocast_enabled(at::kCUDA))
    return std::nullopt;
  return types();
}

SameAutocast::SameAutocast(const std::optional<AutocastState>& state) {
  if (!state) return;
  changed_ = true;
  before_ = types();
  cache_ = at::autocast::is_autocast_cache_enabled();
  set_types(*state);
  at::autocast::set_autocast_cache_enabled(false);
}

SameAutocast::~SameAutocast() {
  if (!changed_) return;
  set_types(before_);
  at::autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace snug::tape
