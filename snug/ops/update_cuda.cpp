// Optimizer steps on CUDA: fills launches with tensors of one kind.
#include <torch/library.h>

#include <limits>
#include <map>
#include <tuple>

#include "snug/base/error.h"
#include "snug/ops/cuda_launch.h"
#include "snug/ops/update_dispatch.h"
#include "snug/ops/update_kernel.h"

namespace snug::ops {
namespace {

template <class Entry>
bool takes_vectors(const Entry& entry) {
  const auto fits = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % (kUpdateVector * sizeof(float)) == 0;
  };
  return entry.count % kUpdateVector == 0 && fits(entry.weights) && fits(entry.gradients) &&
         fits(entry.masters) && fits(entry.states[0]) && fits(entry.states[1]);
}

struct Cuda {
  template <class Rule>
  static void update(const Rule& rule, const UpdateLists& lists) {
    using Batch = UpdateBatch<Rule>;
    std::map<std::tuple<WeightKind, KernelDtype, bool>, Batch> batches;  // being filled
    const auto flush = [&](Batch& batch) {
      if (batch.entry_count > 0) launch_on(lists.weights[0], batch);
      batch.entry_count = 0;
    };
    const auto scalar = [](const std::optional<at::Tensor>& tensor) {
      return tensor ? tensor->const_data_ptr<float>() : nullptr;
    };
    for (std::size_t i = 0; i < lists.weights.size(); ++i) {
      typename Batch::Entry entry{
          .weights = lists.weights[i].mutable_data_ptr(),
          .gradients = lists.gradients[i].const_data_ptr(),
          .masters = lists.masters[i].mutable_data_ptr(),
          .step = lists.steps.empty() ? nullptr : lists.steps[i].const_data_ptr<float>(),
          .count = lists.weights[i].numel()};
      if (entry.count == 0) continue;
      for (int state = 0; state < Rule::kStates; ++state)
        entry.states[state] = lists.states[state][i].template mutable_data_ptr<float>();
      const WeightKind kind = weight_kind(lists.weights[i], lists.masters[i]);
      const KernelDtype gradients = kernel_dtype("an optimizer's step", lists.gradients[i]);
      const bool wide = takes_vectors(entry);
      Batch& batch = batches[{kind, gradients, wide}];
      if (batch.entry_count == Batch::kMost) flush(batch);
      if (batch.entry_count == 0) {
        batch.first_block[0] = 0;
        batch.kind = kind;
        batch.gradients = gradients;
        batch.wide = wide;
        batch.factor = scalar(lists.factor);
        batch.skip = scalar(lists.skip);
        batch.rule = rule;
      }
      const std::int64_t before = batch.first_block[batch.entry_count];
      const std::int64_t blocks = (entry.count + kUpdateBlockElements - 1) / kUpdateBlockElements;
      check(before + blocks <= std::numeric_limits<int>::max(),
            "an optimizer's step on CUDA: more than 2^42 parameters in one launch");
      batch.entries[batch.entry_count++] = entry;
      batch.first_block[batch.entry_count] = static_cast<int>(before + blocks);
    }
    for (auto& [kind, batch] : batches) flush(batch);
  }

  static void correct(const AdamWRule& rule, const at::Tensor& steps, const at::Tensor& corrections) {
    launch_on(steps, AdamWCorrections{steps.const_data_ptr<float>(), corrections.mutable_data_ptr<float>(),
                                      steps.numel(), rule});
  }
};

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("adamw_", TORCH_FN(UpdateOperators<Cuda>::adamw));
  library.impl("adamw_corrections", TORCH_FN(UpdateOperators<Cuda>::adamw_corrections));
  library.impl("sgd_", TORCH_FN(UpdateOperators<Cuda>::sgd));
}

}  // namespace
}  // namespace snug::ops
