// Ranks that share out what training one model takes, each with its part of the batch.
//
//   zero::Sharding sharding(group, {.stage = 2});
//   for (...) sharding.add("layers.3", layer->parameters());       // in the order of the forward
//   sharding.spread();                                             // if ranks may have begun with others
//   AdamW optimizer(sharding.trained());                           // this rank's part
//   ...
//   sharding.last_pass();                                          // before the last backward of a step
//   loss.backward();
//   sharding.finish_gradients();
//   optimizer.step(lr);
//   sharding.zero_grad();
//   sharding.finish_update();
//
// Note [Stages]
//            whole on every rank                      shared out
//   stage 0  weights, gradients, states
//   stage 1  weights, gradients                       states
//   stage 2  weights                                  gradients, states
//   stage 3                                           weights, gradients, states
//
// Gradients are summed over the ranks while the backward goes on: those of a region when its backward ends,
// those of one region at a time. Stages 0 and 1 do so in the last pass of a step only, stages 2 and 3 in
// every pass, after which each rank keeps the sum of its own pieces. Weights that changed are gathered beside
// the next forward. In stage 3 they are gathered one region ahead in forward and backward, recomputation
// included, and go when their region ends: host::RegionWeights, with other ranks as the source. What is small
// stays.
//
// This rank's pieces of weights (stage 3) and of gradients (2 and 3) may wait in host memory: `there`. A
// piece is copied into its place in the whole weight, and gathered from there. The optimizer is given the
// same:
//
//   const auto there = std::make_shared<optim::HostParameters>(device, store, shares, optim::MovedBy::Owner);
//   zero::Sharding sharding(group, {.stage = 3, .there = there});
//   ...
//   AdamW optimizer(sharding.trained(), {.placement = {.on_host = 1, .store = store, .parameters = there,
//                                                      .elements = sharding.largest_pieces()}});
//
// Every rank runs the same regions in the same order. What a rank's batch does not use of the model others'
// must not use either.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/region.h"
#include "snug/host/region_weights.h"
#include "snug/optim/host_parameters.h"
#include "snug/zero/group.h"
#include "snug/zero/partition.h"

namespace snug::zero {

struct ShardingOptions {
  int stage = 0;
  std::int64_t small = 16 * 1024;                // elements: see PartitionOptions
  std::shared_ptr<optim::HostParameters> there;  // that its owner moves; null: pieces are on the device
};

class SNUG_API Sharding final : private hooks::RegionListener {
 public:
  Sharding(std::shared_ptr<Group> group, const ShardingOptions& options);
  ~Sharding() override;  // in stage 3 the weights are not there afterwards

  // The parameters of the next region in the order of the forward, or more of the last one's. In stage 3 a
  // parameter that several regions read is given for each of them. Small ones of a region get memory
  // together; in stage 3 the memory of others goes. Throws Error for parameters that are no plain tensors.
  void add(std::string_view region, at::TensorList parameters);

  // What this rank's optimizer updates: in stage 0 the parameters, else its pieces of them, as long as they
  // are [1, n] of matrices and [n] of others. They have gradients between finish_gradients() and zero_grad().
  std::vector<at::Tensor> trained() const;

  // Of each of these the elements that the rank with the largest piece has.
  std::vector<std::int64_t> largest_pieces() const;

  // The next backward is the last one before finish_gradients(), or the one after so many. Without this call
  // stages 0 and 1 sum in finish_gradients().
  void last_pass() { expect_passes(1); }
  void expect_passes(std::int64_t backwards);
  void finish_gradients();
  // This rank's pieces of the summed gradients, some of them on the host: together the ranks have all of them
  // once.
  std::vector<at::Tensor> own_gradients() const;
  // Of all of these, of all ranks, which all call it: a number in fp32.
  at::Tensor gradient_norm();
  // If it is larger, all gradients are scaled to this norm. Returns the norm before. Gradients on the host
  // are scaled by their optimizer's step() instead: see optim/clip.h.
  at::Tensor clip_grad_norm_(double max_norm);
  void zero_grad();  // frees the gradients, also those of the parameters

  // Before the first step: every rank has the weights of whoever has a piece of them, also where ranks began
  // with others.
  void spread();
  // After the weights of trained() changed. Whoever reads weights elsewhere than in their region's forward
  // and backward calls finish() first, and gives back what he reads in stage 3: see read().
  void finish_update();
  void finish();
  // Told before this rank's pieces of a region are gathered: for an optimizer whose updates wait until then.
  void set_before_gather(std::function<void(hooks::RegionId)> tell);

  // Numbers of this rank, [n] in fp32 or fp64; returns their sums over the ranks, in fp64.
  at::Tensor sum(const at::Tensor& numbers, const std::string& what);

  // Where this rank has the parameter's weight: all of it, or what it has from element `begin` on. Between
  // steps it may be read, and written if every rank does.
  struct Home {
    at::Tensor tensor;
    std::int64_t begin;
  };
  Home home_of(const at::Tensor& parameter) const;

  // A part of a parameter that this rank has, and where it is in trained(): to save and restore states.
  struct Stretch {
    at::Tensor parameter;
    std::int64_t begin = 0, count = 0;   // its elements
    at::Tensor weights;                  // these, [count]; written to, they are this rank's new ones
    std::optional<std::size_t> trained;  // which; none: it is not trained
    std::int64_t offset = 0;             // its first element there
  };
  std::vector<Stretch> own() const;      // together the ranks' are the model, once
  std::vector<Stretch> updated() const;  // of all of trained(): in stage 0 more than own()
  // All parameters, of any rank, whose states are like those of trained()[i].
  std::vector<at::Tensor> like(std::size_t i) const;

  // Calls `fill`, which writes the same to the whole parameter on every rank, when there is memory for it.
  void write(const at::Tensor& parameter, const std::function<void()>& fill);
  // Calls `look` when the parameter is there as a whole. All ranks do.
  void read(const at::Tensor& parameter, const std::function<void(const at::Tensor&)>& look);

  // What ranks do together in a step, in the order of the forward.
  struct Traffic {
    std::string region;
    bool is_of_weights;  // gathered; else gradients, added up
    bool is_in_each_pass;
    std::uint64_t bytes;
    bool is_second = false;  // asked for when the first of the region's gradients is done
  };
  std::vector<Traffic> traffic() const;

  Group& group() const { return *group_; }
  int stage() const { return options_.stage; }

 private:
  struct Member {
    at::Tensor parameter;
    std::int64_t begin;
  };
  struct Shared;
  using SharedPtr = std::unique_ptr<Shared>;

  void before_forward(hooks::RegionId id) override;
  void after_forward(hooks::RegionId id) override;
  void before_backward(hooks::RegionId id) override;
  void after_backward(hooks::RegionId id) override;
  void before_replay(hooks::RegionId id, at::TensorList parameters) override;
  void gradient_ready(const at::Tensor& leaf) override;
  void backward_begins() override;

  std::size_t place_of(hooks::RegionId id) const;
  std::vector<Stretch> stretches(bool own) const;
  SharedPtr make_shared(const Bucket& bucket, const std::vector<at::Tensor>& parameters,
                        const std::string& region) const;
  Shared* find(const at::Tensor& parameter) const;
  bool is_there(const Shared& shared) const;  // its piece, on the host
  at::Tensor piece_of(const Shared& shared) const;
  at::Tensor own_gradient(const Shared& shared) const;  // undefined where this rank has none
  bool sums_in_backward() const;
  void begin_sum(Shared& shared);
  void spread_sum(Shared& shared);  // in stage 0, where every rank needs all of it
  void end_sum(Shared& shared);
  void end_sums();
  void sum_complete();
  bool tell_before_gather(std::size_t place) const;
  void gather_changed(std::size_t place);
  void throw_failed();

  const std::shared_ptr<Group> group_;
  const ShardingOptions options_;
  mutable std::recursive_mutex mutex_;  // forward and backward may be on different threads
  std::vector<hooks::RegionId> regions_;
  std::vector<SharedPtr> shared_;  // in the order of the forward
  std::unordered_map<const c10::TensorImpl*, Shared*> of_parameter_;
  std::function<void(hooks::RegionId)> before_gather_;
  host::RegionWeights weights_{[this](std::size_t place, bool) { return tell_before_gather(place); }};
  std::vector<Shared*> complete_, under_way_;  // gradients
  std::int64_t passes_left_ = 0;               // that are expected to begin
  bool is_last_pass_ = false;
  std::exception_ptr failed_;  // where nobody may throw: for the next place that may
  hooks::RegionListenerGuard guard_{*this};
};

}  // namespace snug::zero
