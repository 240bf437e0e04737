// What a step of somebody's training is to snug before it runs: enough to plan it, and to say what it needs.
//
//   Step step{.device = c10::kCUDA, .on_meta = [](const Account&, const plan::Setting&) ->
//   std::function<void()> {
//     auto net = capture::on_meta([] { return std::make_shared<Net>(); });
//     auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters());
//     return [=] {
//       net->loss(at::empty({32, 64}, c10::kMeta)).backward();
//       optimizer->step();
//       optimizer->zero_grad();
//     };
//   }};
//
// The forward names its parts with snug::region(); what lies between them is planned as the region "rest".
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/memory/tracker.h"
#include "snug/plan/setting.h"
#include "snug/session/any_optimizer.h"
#include "snug/trace/category.h"

namespace snug::host {
class Store;
}  // namespace snug::host

namespace snug::session {
class StatePark;
}  // namespace snug::session

namespace snug {

// Where a step says what its memory is for: a session's, or that of a step on Meta.
class SNUG_API Account {
 public:
  // `streamed`: what the step says of it is added there. Without a `park` all states stay.
  explicit Account(memory::Tracker& tracker, std::shared_ptr<host::Store> host = nullptr,
                   plan::Streamed* streamed = nullptr, session::StatePark* park = nullptr)
      : tracker_(&tracker), host_(std::move(host)), streamed_(streamed), park_(park) {}

  // See memory::Tracker.
  [[nodiscard]] memory::Tracker::Claim claim(trace::Category category) const {
    return tracker_->claim(category);
  }
  void adopt(at::TensorList tensors, trace::Category category) const { tracker_->adopt(tensors, category); }
  void mark(std::string_view phase) const { tracker_->mark(phase); }

  // Where states may wait between steps. None on Meta, and where nobody foresaw any.
  const std::shared_ptr<host::Store>& host() const { return host_; }
  // Once for each optimizer.
  void streams(const plan::Streamed& streamed) const {
    if (!streamed_) return;
    streamed_->bytes += streamed.bytes;
    streamed_->read_bytes += streamed.read_bytes;
    streamed_->beside_forward |= streamed.beside_forward;
    streamed_->beside_backward |= streamed.beside_backward;
    streamed_->stepped.parameters += streamed.stepped.parameters;
    streamed_->stepped.bytes += streamed.stepped.bytes;
    streamed_->stepped.read_bytes += streamed.stepped.read_bytes;
    streamed_->stepped.sent_bytes += streamed.stepped.sent_bytes;
    streamed_->stepped.fetched_bytes += streamed.stepped.fetched_bytes;
    streamed_->regions.insert(streamed_->regions.end(), streamed.regions.begin(), streamed.regions.end());
    if (streamed.ranks.count > 1) streamed_->ranks = streamed.ranks;
    streamed_->collectives.insert(streamed_->collectives.end(), streamed.collectives.begin(),
                                  streamed.collectives.end());
  }
  // As Session has them; on Meta nothing is copied.
  void step(const AnyOptimizer& optimizer) const;
  void park(const AnyOptimizer& optimizer) const;
  void unpark(const AnyOptimizer& optimizer, ReadStates where = ReadStates::OnDevice) const;

 private:
  memory::Tracker* tracker_;
  std::shared_ptr<host::Store> host_;
  plan::Streamed* streamed_;
  session::StatePark* park_;
};

struct Step {
  c10::Device device = c10::kCPU;  // where it will run; Meta stands for this one
  // What it is: written into its plans. A plan for another is refused, with the first key that differs.
  Json identity = Json::object();
  // That the planner may choose from, the plain one first. Empty: it runs as it is.
  std::vector<plan::Setting> settings;
  // Between this one, which turned out to be a good one, and its neighbours among them. May be empty.
  std::function<std::vector<plan::Setting>(const plan::Setting&)> finer;
  // Builds on Meta what a step at this setting needs and returns the step, which may be run several times. Of
  // many passes it may run two, which need as much as all of them.
  std::function<std::function<void()>(const Account&, const plan::Setting&)> on_meta;
  // Of the tensors' peak: what kernels take for themselves at moments that nobody can foresee.
  double scratch_share = 0;
  // Whoever runs it on a GPU makes a CUDA graph of it, which takes so much at this setting, where the host is
  // slower in launching its kernels than the GPU in running them and nothing waits on the host. Empty: never.
  std::function<std::uint64_t(const plan::Setting&)> graph_bytes;
};

// The step's identity with what every plan depends on: torch, kind of device, threads.
SNUG_API Json identity_of(const Step& step);

}  // namespace snug
