#include "snug/precision/autocast.h"

#include <ATen/autocast_mode.h>

#include "snug/base/error.h"

namespace snug {

namespace autocast = at::autocast;

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool keep_cast_weights) : device_(device) {
  check(device == c10::kCPU || device == c10::kCUDA, "Autocast is for cpu and cuda, got ", device,
        device == c10::kMeta ? ": Meta cannot see casts, so capture such a model on its device" : "");
  check(dtype == c10::kBFloat16 || dtype == c10::kHalf, "Autocast casts to BFloat16 or Half, got ", dtype);
  enabled_before_ = autocast::is_autocast_enabled(device);
  dtype_before_ = autocast::get_autocast_dtype(device);
  cache_before_ = autocast::is_autocast_cache_enabled();
  autocast::set_autocast_enabled(device, true);
  autocast::set_autocast_dtype(device, dtype);
  autocast::set_autocast_cache_enabled(keep_cast_weights);
  autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  autocast::set_autocast_cache_enabled(cache_before_);
  autocast::set_autocast_dtype(device_, dtype_before_);
  autocast::set_autocast_enabled(device_, enabled_before_);
}

}  // namespace snug
