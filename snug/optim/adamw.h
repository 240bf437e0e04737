// AdamW as torch defines it: decoupled decay, bias correction, eps outside the root. Moments are fp32.
#pragma once

#include <vector>

#include "snug/base/export.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {

struct AdamWOptions {
  double lr = 1e-3;  // of step() without argument
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool decay_matrices_only =
      false;  // true: parameters of fewer than two dimensions (norms, biases) do not decay
  Master master = Master::Split;
  Placement placement;
};

class SNUG_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options = {});
  ~AdamW() override { end(); }

  const AdamWOptions& options() const { return options_; }
  std::vector<StateTensor> state() const override;  // "exp_avg", "exp_avg_sq" and "step"

 private:
  void count_step(const std::vector<std::size_t>& which, const ops::UpdateControl& control) override;
  void update(const std::vector<Part>& parts, double lr, const ops::UpdateControl& control) override;
  at::Tensor numbers_of_step() const override;  // bias corrections
  bool decays(std::size_t i) const;

  AdamWOptions options_;
  at::Tensor all_steps_;           // how often each parameter was updated, on its device
  std::vector<at::Tensor> steps_;  // views of it
};

}  // namespace snug::optim
