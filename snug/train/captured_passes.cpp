#include "snug/train/captured_passes.h"

#include <exception>
#include <utility>

namespace snug::train {

namespace {

constexpr std::int64_t kMostGraphs = 3;  // of a run whose steps change now and then

}  // namespace

bool may_be_captured(const TrainConfig& config) {
  return config.graph && config.device.is_cuda() && config.precision != Precision::Fp16 && !config.offload &&
         !config.has_states_on_host() && !config.zero_stage &&
         update_time(config) != optim::UpdateTime::InBackward;
}

CapturedPasses::CapturedPasses(std::vector<at::Tensor> parameters,
                               std::function<void(const std::string&)> failed)
    : parameters_(std::move(parameters)), failed_(std::move(failed)) {}

at::Tensor CapturedPasses::run(const io::Batch& batch, std::int64_t target_count, const Passes& passes) {
  was_launched_again_ = false;
  if (!may_capture_) return passes(batch);
  if (batch.tokens.sizes() != sizes_ || target_count != target_count_) {
    drop_graph();
    sizes_ = batch.tokens.sizes().vec();
    target_count_ = target_count;
  }
  if (graph_) {
    was_launched_again_ = true;
    batch_.tokens.copy_(batch.tokens, /*non_blocking=*/true);
    batch_.targets.copy_(batch.targets, /*non_blocking=*/true);
  } else if (alike_ >= kAlike) {
    capture(batch, passes);
  }
  if (!graph_) return passes(batch);
  graph_->launch();
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
  ++steps_;
  return loss_;
}

void CapturedPasses::note_step(bool host_was_slower) {
  alike_ = host_was_slower ? alike_ + 1 : 0;
}

void CapturedPasses::capture(const io::Batch& batch, const Passes& passes) try {
  batch_ = batch;
  graph_ = std::make_unique<machine::LaunchGraph>(batch_.tokens.device(), [&] { loss_ = passes(batch_); });
  for (const at::Tensor& parameter : parameters_)
    gradients_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  ++graphs_;
} catch (const std::exception& error) {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  may_capture_ = false;
  batch_ = {};
  loss_.reset();
  machine::give_back_cache(batch.tokens.device());
  const std::string text = error.what();  // torch's goes on with where it was thrown
  failed_(text.substr(0, text.find('\n')));
}

void CapturedPasses::drop_graph() {
  alike_ = 0;
  if (!graph_) return;
  batch_ = {};
  loss_.reset();
  gradients_.clear();
  graph_.reset();
  may_capture_ = graphs_ < kMostGraphs;
}

}  // namespace snug::train
