// A model of two regions, and what a listener hears of them.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::hooks {

struct Log : RegionListener {
  void before_forward(RegionId id) override { lines.push_back("forward " + region_name(id)); }
  void after_forward(RegionId id) override { lines.push_back("end forward " + region_name(id)); }
  void before_backward(RegionId id) override { lines.push_back("backward " + region_name(id)); }
  void after_backward(RegionId id) override { lines.push_back("end backward " + region_name(id)); }
  void gradient_ready(const at::Tensor& leaf) override { ready.push_back(leaf.unsafeGetTensorImpl()); }
  std::vector<std::string> lines;
  std::vector<const c10::TensorImpl*> ready;
};

using Lines = std::vector<std::string>;

struct TwoLayers {
  at::Tensor a = at::randn({3, 3}).requires_grad_();
  at::Tensor b = at::randn({3, 3}).requires_grad_();
  at::Tensor loss() {
    at::Tensor x = at::ones({2, 3});
    {
      RegionScope scope("first");
      x = at::tanh(x.mm(a));
    }
    RegionScope scope("second");
    return at::tanh(x.mm(b)).sum();
  }
};

inline const Lines kForward = {"forward first", "end forward first", "forward second", "end forward second"};
inline const Lines kBackward = {"backward second", "end backward second", "backward first",
                                "end backward first"};

inline Lines operator+(Lines left, const Lines& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace snug::hooks
