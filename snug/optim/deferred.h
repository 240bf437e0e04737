// Updates that step() was asked for and that wait until their parameters are needed: each is done when the
// region its parameter is bound to (hooks/region.h) runs forward again. On a GPU they are asked of a stream
// of their own while earlier regions run, so that the copies of one region's states are beside the forward of
// those before it. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::optim {

class Deferred final : private hooks::RegionListener {
 public:
  // `stream`: where they are done; none: where the caller is.
  explicit Deferred(std::optional<c10::Stream> stream) : stream_(stream) {}

  struct Update {
    std::size_t number;  // of the parameter, for messages
    at::Tensor parameter, gradient;
    bool gradient_is_there;  // on the host
    hooks::RegionId region;
  };
  // `go_to(n)` does those before the n-th, in their order; then their gradients are let go. Those of one
  // region follow one another.
  // `wait(i)`: the device waits for the i-th, if that is done elsewhere.
  void begin(std::shared_ptr<std::vector<Update>> updates, std::function<void(std::size_t)> go_to,
             std::function<void(std::size_t)> wait);
  // Does all that wait; what the current stream is given from now on happens after them.
  void finish();
  void ask_for_region(hooks::RegionId region);  // what is on the host may be copied to the device
  bool is_waiting() const { return !stretches_.empty(); }
  // Throws Error if a parameter whose update waits has a new gradient: then its region ran without it.
  void check_unused() const;

 private:
  void before_forward(hooks::RegionId region) override;
  void ask_for(std::size_t stretches);
  void wait_for(std::size_t stretch);
  std::size_t begin_of(std::size_t stretch) const;

  // The updates of one region.
  struct Stretch {
    hooks::RegionId region;
    std::size_t end;  // of its updates
    std::unique_ptr<c10::Event> done;
  };

  const std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> stepped_on_;         // whose memory the gradients are
  std::shared_ptr<std::vector<Update>> updates_;  // null: none
  std::vector<Stretch> stretches_;
  std::function<void(std::size_t)> go_to_, wait_;
  std::size_t asked_ = 0, waited_ = 0;  // stretches
  hooks::RegionListenerGuard guard_{*this};
};

}  // namespace snug::optim
