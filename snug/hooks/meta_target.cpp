#include "snug/hooks/meta_target.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "snug/base/bytes.h"

namespace snug::hooks {

namespace {

constexpr std::int64_t kCublasWorkspace = 32_MiB;  // torch 2.11's on Hopper

thread_local MetaTargetScope* current = nullptr;

}  // namespace

bool meta_stands_for_cuda() noexcept {
  return current && current->target() == c10::kCUDA;
}

void after_product_on_meta() {
  if (meta_stands_for_cuda())
    current->take_workspace(/*of_backward=*/torch::autograd::get_current_graph_task_id() >= 0);
}

std::uint64_t workspaces_on_meta() {
  std::uint64_t bytes = 0;
  if (current)
    for (const at::Tensor& workspace : current->workspaces_)
      if (workspace.defined()) bytes += workspace.nbytes();
  return bytes;
}

MetaTargetScope::MetaTargetScope(c10::DeviceType target)
    : target_(target), before_(std::exchange(current, this)) {}

MetaTargetScope::~MetaTargetScope() {
  current = before_;
}

void MetaTargetScope::take_workspace(bool of_backward) {
  at::Tensor& workspace = workspaces_[of_backward];
  if (!workspace.defined())
    workspace = at::empty({kCublasWorkspace}, at::TensorOptions(at::kByte).device(c10::kMeta));
}

}  // namespace snug::hooks
