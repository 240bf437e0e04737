// Parameters whose gradients are complete, whenever the backward of a region ends. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::optim {

class InBackward final : private hooks::RegionListener {
 public:
  // `is_told(region)`: somebody else calls take_complete() when the backward of this one ends.
  InBackward(const std::vector<at::Tensor>& parameters, std::function<bool(hooks::RegionId)> is_told);

  // From now on `update` gets the numbers of parameters whose gradients are complete.
  void begin(std::function<void(const std::vector<std::size_t>&)> update);
  void end();
  void take_complete();

 private:
  void gradient_ready(const at::Tensor& leaf) override;
  void after_backward(hooks::RegionId region) override;

  const std::function<bool(hooks::RegionId)> is_told_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_;
  std::mutex mutex_;                                             // a backward may be on another thread
  std::function<void(const std::vector<std::size_t>&)> update_;  // empty: nothing is done
  std::vector<std::size_t> complete_;
  hooks::RegionListenerGuard guard_{*this};
};

}  // namespace snug::optim
