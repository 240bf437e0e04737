// Which device a step on Meta stands for. Kernels of one operator allocate differently on CPU and CUDA; on
// Meta they allocate as on the target.
//
//   MetaTargetScope scope(at::kCUDA);   // what runs on Meta on this thread is to run on a GPU
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <cstdint>

#include "snug/base/export.h"

namespace snug::hooks {

SNUG_API bool meta_stands_for_cuda() noexcept;
inline constexpr std::int64_t kMetaProcessors = 132;  // of the GPU for which Meta stands then: an H200's

// A matrix product has just taken memory for its result on Meta. On CUDA the first of each thread, the
// forward's and the backward's, then makes cuBLAS take a workspace, which it keeps.
SNUG_API void after_product_on_meta();
SNUG_API std::uint64_t workspaces_on_meta();  // their bytes

class SNUG_API MetaTargetScope {
 public:
  explicit MetaTargetScope(c10::DeviceType target);
  ~MetaTargetScope();
  MetaTargetScope(const MetaTargetScope&) = delete;  // it is a stretch of time
  MetaTargetScope& operator=(const MetaTargetScope&) = delete;

  c10::DeviceType target() const { return target_; }

 private:
  friend void after_product_on_meta();
  friend std::uint64_t workspaces_on_meta();
  void take_workspace(bool of_backward);

  const c10::DeviceType target_;
  std::array<at::Tensor, 2> workspaces_;
  MetaTargetScope* const before_;
};

}  // namespace snug::hooks
