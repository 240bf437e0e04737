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
#include <utility>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::optim {

class Deferred final : private hooks::RegionListener {
 public:
  // `stream`: where they are done; none: where the caller is. `is_told(region)`: somebody calls
  // ask_for_region() for the one after this.
  Deferred(std::optional<c10::Stream> stream, std::function<bool(hooks::RegionId)> is_told)
      : stream_(stream), is_told_(std::move(is_told)) {}

  struct Update {
    std::size_t number;  // of the parameter, for messages
    at::Tensor parameter, gradient;
    bool gradient_is_there;  // on the host
    hooks::RegionId region;
  };
  struct Work {
    std::function<void(std::size_t)> ask_host;  // for those before the n-th that are done there
    std::function<void(std::size_t)> go_to;     // does those before the n-th that are not, in their order
    // Of the n-th, if the host does it: the host waits until it is done, and the device for its copy.
    std::function<void(std::size_t)> wait;
    std::function<bool(std::size_t)> is_done;  // whether the host would not have to wait
  };
  // Those of one region follow one another. Their gradients are let go when they are done. `regions`: all of
  // the forward, in its order.
  void begin(std::shared_ptr<std::vector<Update>> updates, std::vector<hooks::RegionId> regions, Work work);
  // Does all that wait; what the current stream is given from now on happens after them.
  void finish();
  // What of its weights is on the host may be copied to the device once this was true. `wait`: the host waits
  // for that.
  bool ask_for_region(hooks::RegionId region, bool wait);
  // Does those of this region, as if its forward began; the current stream waits.
  void finish_region(hooks::RegionId region) { before_forward(region); }
  bool is_waiting() const { return !stretches_.empty(); }
  // Throws Error if a parameter whose update waits has a new gradient: then its region ran without it.
  void check_unused() const;

 private:
  void before_forward(hooks::RegionId region) override;
  std::size_t due(hooks::RegionId region) const;
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
  const std::function<bool(hooks::RegionId)> is_told_;
  std::optional<c10::Stream> stepped_on_;         // whose memory the gradients are
  std::shared_ptr<std::vector<Update>> updates_;  // null: none
  std::vector<Stretch> stretches_;
  std::vector<hooks::RegionId> regions_;
  Work work_;
  std::size_t asked_ = 0, waited_ = 0;  // stretches
  hooks::RegionListenerGuard guard_{*this};
};

}  // namespace snug::optim
