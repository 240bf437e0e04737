// What every optimizer shares: its parameters, fp32 masters for bf16 ones, and the walk over the gradients. A
// concrete optimizer is only the arithmetic of update().
//
//   AdamW optimizer(model->parameters(), {.weight_decay = 0.1});
//   loss.backward();
//   optimizer.step(3e-4);
//   optimizer.zero_grad();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace snug::optim {

// One tensor of optimizer state, for saving, loading (copy_ into it) and accounting.
struct StateTensor {
  std::size_t parameter;  // index into parameters()
  std::string name;       // "exp_avg", "master", ...
  at::Tensor tensor;
};

class SNUG_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Neither copied nor moved: its state belongs to one set of parameters.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every parameter that has a gradient. fp32 parameters are updated in place; for a bf16
  // parameter its fp32 master is updated and copied back. Beyond scalars, memory is taken for one fp32
  // gradient at a time, and only for gradients that are not fp32 or not laid out like their parameter.
  void step(double lr);
  void step() { step(lr_); }
  void zero_grad();  // frees the gradients: they are undefined afterwards

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor> gradients() const;  // those that are defined

  virtual std::vector<StateTensor> state() const;
  std::uint64_t state_bytes() const;

 protected:
  // All state is allocated by the constructors, none in step(); masters take the parameters' values as they
  // are then. Throws Error unless every parameter is fp32 or bf16, contiguous, on one device, and given once.
  Optimizer(std::vector<at::Tensor> parameters, double lr);

  // Updates weight(i) for each i of `which`; the gradient at the same place is fp32 and laid out like it.
  virtual void update(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients,
                      double lr) = 0;

  // The parameter itself or its fp32 master.
  const at::Tensor& weight(std::size_t i) const { return weights_[i]; }

 private:
  bool has_master(std::size_t i) const;

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> weights_;
  double lr_;
};

// Throws Error unless the value is finite and at least 0.
SNUG_API void check_not_negative(double value, const char* name);

}  // namespace snug::optim
