// Parameters whose gradients are complete, whenever the backward of a region ends. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "snug/hooks/region.h"
#include "snug/host/copy.h"
#include "snug/optim/host_worker.h"

namespace snug::optim {

// What of it is still under way.
struct UpdatedInBackward {
  std::vector<at::Tensor> norms;  // of the gradients, by parameter; undefined: it was not updated
  std::vector<HostWorker::Ticket> tickets;
  // Of the last region: what must be over before its gradients go, and these.
  std::unique_ptr<c10::Event> done;
  std::vector<host::CopyPtr> sent;
  std::vector<at::Tensor> gradients;
  std::function<void()> stream;  // asks for what of it streams; empty: that was done
};

class InBackward final : private hooks::RegionListener {
 public:
  // `is_told(region)`: somebody else calls take_complete() when the backward of this one ends.
  // `wait`: called before a region runs forward.
  InBackward(const std::vector<at::Tensor>& parameters, std::function<bool(hooks::RegionId)> is_told,
             std::function<void()> wait);

  // From now on `update` gets the numbers of parameters whose gradients are complete. `stream` is called when
  // the next region has asked for its own copies: see Note [Copies are asked for in the order in which they
  // are needed].
  void begin(std::function<void(const std::vector<std::size_t>&)> update, std::function<void()> stream);
  void end();
  void take_complete();

 private:
  void before_forward(hooks::RegionId) override { wait_(); }
  void gradient_ready(const at::Tensor& leaf) override;
  void after_backward(hooks::RegionId region) override;

  const std::function<bool(hooks::RegionId)> is_told_;
  const std::function<void()> wait_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_;
  std::mutex mutex_;                                             // a backward may be on another thread
  std::function<void(const std::vector<std::size_t>&)> update_;  // empty: nothing is done
  std::function<void()> stream_;
  std::vector<std::size_t> complete_;
  hooks::RegionListenerGuard guard_{*this};
};

}  // namespace snug::optim
