// AdamW on CUDA: fills launches with tensors of one kind.
#include <torch/library.h>

#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "snug/base/error.h"
#include "snug/ops/adamw_kernel.h"
#include "snug/ops/cuda_launch.h"

namespace snug::ops {
namespace {

using Kind = AdamWBatch::Kind;

Kind kind_of(const at::Tensor& weight, const at::Tensor& master) {
  if (weight.scalar_type() == at::kFloat) return Kind::Plain;
  return master.scalar_type() == at::kFloat ? Kind::Master : Kind::Remainder;
}

bool takes_vectors(const AdamWBatch::Entry& entry) {
  return entry.count % 4 == 0 && is_aligned(entry.weights) && is_aligned(entry.gradients) &&
         is_aligned(entry.masters) && is_aligned(entry.exp_avgs) && is_aligned(entry.exp_avg_sqs);
}

void adamw_cuda(at::TensorList weights, at::TensorList gradients, at::TensorList masters,
                at::TensorList exp_avgs, at::TensorList exp_avg_sqs, at::TensorList steps,
                const std::optional<at::Tensor>& factor, double lr, double beta1, double beta2,
                double weight_decay, double eps) {
  std::map<std::tuple<Kind, bool, bool>, AdamWBatch> batches;  // being filled
  const auto flush = [&](AdamWBatch& batch) {
    if (batch.entry_count > 0) launch_on(weights[0], batch);
    batch.entry_count = 0;
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const AdamWBatch::Entry entry{.weights = weights[i].mutable_data_ptr(),
                                  .gradients = gradients[i].const_data_ptr(),
                                  .masters = masters[i].mutable_data_ptr(),
                                  .exp_avgs = exp_avgs[i].mutable_data_ptr<float>(),
                                  .exp_avg_sqs = exp_avg_sqs[i].mutable_data_ptr<float>(),
                                  .step = steps[i].const_data_ptr<float>(),
                                  .count = weights[i].numel()};
    if (entry.count == 0) continue;
    const std::int64_t blocks = (entry.count + kAdamWBlockElements - 1) / kAdamWBlockElements;
    const bool half = gradients[i].scalar_type() == at::kBFloat16, wide = takes_vectors(entry);
    const Kind kind = kind_of(weights[i], masters[i]);
    AdamWBatch& batch = batches[{kind, half, wide}];
    if (batch.entry_count == AdamWBatch::kMost) flush(batch);
    if (batch.entry_count == 0) {
      batch.first_block[0] = 0;
      batch.kind = kind;
      batch.half_gradients = half;
      batch.wide = wide;
      batch.factor = factor ? factor->const_data_ptr<float>() : nullptr;
      batch.lr = static_cast<float>(lr);
      batch.beta1 = static_cast<float>(beta1);
      batch.beta2 = static_cast<float>(beta2);
      batch.weight_decay = static_cast<float>(weight_decay);
      batch.eps = static_cast<float>(eps);
    }
    const std::int64_t before = batch.first_block[batch.entry_count];
    check(before + blocks <= std::numeric_limits<int>::max(),
          "adamw_ on CUDA: more than 2^44 parameters in one launch");
    batch.entries[batch.entry_count++] = entry;
    batch.first_block[batch.entry_count] = static_cast<int>(before + blocks);
  }
  for (auto& [kind, batch] : batches) flush(batch);
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("adamw_", TORCH_FN(adamw_cuda));
}

}  // namespace
}  // namespace snug::ops
