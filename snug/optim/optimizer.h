// What every optimizer shares: its parameters, the exact values behind 16-bit ones, and the walk over the
// gradients. A concrete optimizer is only its states and update().
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
#include "snug/ops/update.h"

namespace snug::optim {

// Where the fp32 value of a bf16 weight lives: as the 16 bits that the weight lacks, or whole beside it. fp16
// weights always have it whole. Both are the same number, bit for bit.
enum class Master { Split, Fp32 };

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

  // One update of every parameter that has a gradient, in fp32, each number read and written once. Takes no
  // memory, except for a gradient that is not contiguous or of another type: one such copy at a time.
  // `control` clips and unscales on the way, or calls the step off; see clip.h.
  void step(double lr, const ops::UpdateControl& control = {});
  void step() { step(lr_); }
  void step_unscaled(const at::Tensor& factor, const at::Tensor& skip) { step(lr_, {factor, skip}); }
  void zero_grad();  // frees the gradients: they are undefined afterwards

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor> gradients() const;  // those that are defined
  at::Tensor exact(std::size_t i) const;      // parameter i in fp32, with all bits that the optimizer knows

  virtual std::vector<StateTensor> state() const;  // "master" or "remainder" of 16-bit parameters
  std::uint64_t state_bytes() const;

 protected:
  // All state is allocated by the constructors, none in step(); masters take the parameters' values as they
  // are then. Throws Error unless every parameter is fp32, bf16 or fp16, contiguous, on one device, and given
  // once.
  Optimizer(std::vector<at::Tensor> parameters, double lr, Master master);

  // Updates parameter i for each i of `which`; the gradient at the same place is contiguous, fp32 or of the
  // parameter's type.
  virtual void update(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients,
                      double lr, const ops::UpdateControl& control) = 0;

  ops::UpdateTensors tensors(const std::vector<std::size_t>& which,
                             const std::vector<at::Tensor>& gradients) const;
  std::vector<at::Tensor> fp32_zeros() const;  // one state per parameter

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;  // fp32, or int16 remainders, or the parameter itself
  double lr_;
};

// Throws Error unless the value is finite and at least 0.
SNUG_API void check_not_negative(double value, const char* name);

}  // namespace snug::optim
