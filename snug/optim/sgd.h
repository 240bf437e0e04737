// Stochastic gradient descent as torch defines it, with optional momentum and (coupled) weight decay.
#pragma once

#include <vector>

#include "snug/base/export.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {

struct SgdOptions {
  double lr = 1e-3;  // of step() without argument
  double momentum = 0;
  double weight_decay = 0;
  Master master = Master::Split;
  Placement placement;
};

// Its state is "momentum_buffer" if there is momentum.
class SNUG_API Sgd final : public Optimizer {
 public:
  explicit Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options = {});
  ~Sgd() override { end(); }

  const SgdOptions& options() const { return options_; }

 private:
  void update(const std::vector<Part>& parts, double lr, const ops::UpdateControl& control) override;

  SgdOptions options_;
};

}  // namespace snug::optim
