// Weights and gradients that are on the host while their region does not run.
//
//   const HostShares all{.weights = 1, .gradients = 1};
//   const auto there = std::make_shared<HostParameters>(device, store, all);
//   for (...) there->add("layers.3", layer->parameters());                  // in the order of the forward
//   const Placement placement{.on_host = 1, .store = store, .parameters = there};
//   AdamW optimizer(model->parameters(), {.placement = placement});
//
// Note [When parameters are there]
// A weight comes when the region before its own begins, in the order of the pass, and goes when its own ends:
// so a copy has one region's time (trace/moves.h). A gradient is sent when its region's backward ends and
// leaves when the next one's does; in a pass that adds to it, it comes back like a weight. Each pass adds on
// the device, with the kernels that it has anyway: the bits are those of gradients that stay. Memory is taken
// and given back at these points of the program, by torch's allocator, on the stream that computes.
//
// What is away throws if somebody asks for its contents, and names its region. A grad() that somebody else
// clears meanwhile is gone, as it should be; what somebody writes to a weight or adds to a gradient while it
// is on the device goes to the host with it.
//
// Note [Pieces]
// Of a weight that ranks share out the host has this rank's piece (zero/sharding.h). It never comes to the
// device by itself: it is copied to its place in the whole weight, which is then gathered. Its gradient comes
// while the ranks sum what a pass made, has that added, and is sent when the next region's was summed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/region.h"
#include "snug/host/copy.h"
#include "snug/host/region_weights.h"

namespace snug::host {
class Store;
}  // namespace snug::host

namespace snug::optim {

class HostGradient;

// Of the regions, spread evenly over all of them.
struct HostShares {
  double weights = 0, gradients = 0;
};

// Who says when they come and go: regions as they run, or whoever has added them: see Note [Pieces].
enum class MovedBy { Regions, Owner };

class SNUG_API HostParameters final : private hooks::RegionListener {
 public:
  // On Meta there is no store: nothing is copied.
  HostParameters(c10::Device device, std::shared_ptr<host::Store> store, const HostShares& shares,
                 MovedBy moved_by = MovedBy::Regions);
  // Brings back the weights of parameters that are still used, but no pieces; gradients that are on the host
  // go with it.
  ~HostParameters() override;

  // The parameters of the next region in the order of the forward, or more of the last one's; none if they
  // are to stay, as those must that several regions read. Small ones stay anyway.
  void add(std::string_view region, at::TensorList parameters);

  // For an owner: pieces of the next region, or more of one.
  struct Piece {
    at::Tensor tensor;
    std::int64_t largest;           // elements of the largest rank's: all ranks do the same
    bool has_weight, has_gradient;  // that may leave
  };
  void add_pieces(std::string_view region, const std::vector<Piece>& pieces);
  // Of a piece whose weight is here: to memory of the device that was taken at `since`, and from there.
  host::CopyPtr fetch_weight(const at::Tensor& piece, void* memory, const host::CopyPtr& since);
  host::CopyPtr send_weight(const at::Tensor& piece, const void* memory);
  host::CopyPtr mark() const;  // see Link
  // Of a piece whose gradient is here, in this order: its memory is taken and a copy asked for, if there is a
  // sum; grad() is that sum; what grad() is now is sent, after whoever uses it at once was told; the memory
  // of all that was sent goes.
  void fetch_gradient(const at::Tensor& piece);
  void use_gradient(const at::Tensor& piece);
  void send_gradients(at::TensorList pieces);
  void leave_gradients();

  const HostShares& shares() const { return shares_; }
  MovedBy moved_by() const { return guard_ ? MovedBy::Regions : MovedBy::Owner; }
  bool has_weight(const at::Tensor& parameter) const;
  bool has_gradient(const at::Tensor& parameter) const;  // a home for one
  std::uint64_t bytes() const { return bytes_; }         // on the host

  // What a pass moves for each region, in the order of the forward.
  struct Load {
    std::string region;
    std::uint64_t weight_bytes = 0, gradient_bytes = 0;
  };
  std::vector<Load> loads() const;

  // Where a weight is, to be read and written by the host between steps; the parameter itself if it stays.
  at::Tensor weight(const at::Tensor& parameter) const;
  // Calls `fill`, which writes to the parameter on the device.
  void write(const at::Tensor& parameter, const std::function<void()>& fill);

  // For an optimizer. All that was sent leaves, and weights that are on the device go.
  void before_update();
  void finish_gradients();  // the host may read them
  bool gradient_is_there(const at::Tensor& parameter) const;
  at::Tensor gradient_norm(const at::Tensor& parameter) const;  // then, as a scalar on the device
  void forget_gradient(const at::Tensor& parameter);
  // Where they are on the host, for whoever keeps the order of copies.
  at::Tensor home_of_weight(const at::Tensor& parameter) const;
  at::Tensor home_of_gradient(const at::Tensor& parameter) const;
  host::CopyPtr* last_written(const at::Tensor& parameter) const;  // the last copy to home_of_weight()
  std::vector<host::CopyPtr> copies_of(const at::Tensor& parameter) const;  // all that may be under way
  struct Told {
    // Of a region's weights; whether the host has them. `wait`: the host waits until it has.
    std::function<bool(hooks::RegionId, bool wait)> before_fetch;
    std::function<void()> before_send;  // of a region's gradients, when its backward ended
    std::function<void(const at::Tensor&)>
        before_write;  // of a parameter, on the device, to home_of_weight()
  };
  Told& told(const void* owner);
  void tell_no_more(const void* owner);
  // Whether it tells of this region's weights.
  bool has_region(hooks::RegionId region) const { return guard_ && place_of(region) != kNowhere; }
  void note_update(const at::Tensor& parameter);  // of a weight on the host: what is on the device is old

 private:
  struct Region {
    hooks::RegionId id;
    Load load;
    std::vector<std::unique_ptr<host::MovingTensor>> weights;
    std::vector<std::unique_ptr<HostGradient>> gradients;
  };
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  void throw_failed();
  void before_forward(hooks::RegionId id) override;
  void after_forward(hooks::RegionId id) override;
  void before_backward(hooks::RegionId id) override;
  void after_backward(hooks::RegionId id) override;
  void before_replay(hooks::RegionId id, at::TensorList parameters) override;

  std::size_t place_of(hooks::RegionId id) const;
  void take_weight(Region& region, const at::Tensor& parameter);
  void take_gradient(Region& region, const at::Tensor& parameter);
  void leave_all_but(std::size_t place);  // gradients
  void send(const std::vector<HostGradient*>& gradients);
  bool tell_before_fetch(std::size_t place, bool wait) const;

  const c10::Device device_;
  const std::shared_ptr<host::Store> store_;
  const HostShares shares_;
  mutable std::recursive_mutex mutex_;  // forward and backward may be on different threads
  std::vector<Region> regions_;         // in the order of the forward
  host::RegionWeights moving_{
      [this](std::size_t place, bool wait) { return tell_before_fetch(place, wait); }};
  std::unordered_map<const c10::TensorImpl*, host::MovingTensor*> weights_;
  std::unordered_map<const c10::TensorImpl*, HostGradient*> gradients_;
  std::uint64_t bytes_ = 0;
  std::exception_ptr failed_;                        // where nobody may throw: for the next place that may
  std::unordered_map<const void*, Told> told_;       // by owner
  std::optional<hooks::RegionListenerGuard> guard_;  // none: an owner moves them
};

}  // namespace snug::optim
