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
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/ops/update.h"

namespace c10 {
struct Event;
}

namespace snug::host {
class Copy;
class Store;
}  // namespace snug::host

namespace snug::optim {

class Deferred;
class HostParameters;
class HostStates;
class HostSteps;
struct AskedOfHost;
class InBackward;
struct UpdatedInBackward;

// Where the fp32 value of a bf16 weight lives: as the 16 bits that the weight lacks, or whole beside it. fp16
// weights always have it whole. Both are the same number, bit for bit.
enum class Master { Split, Fp32 };

// BeforeForward: parameters whose states are on the host wait until the region that they are bound to
// (hooks/region.h) runs forward again, beside the forward of the regions before it; others are updated in
// step(). InBackward: all are updated in the backward that last_pass() was called before, each when that of a
// region ends and its gradient is complete, beside the regions after it; nothing can be clipped then.
enum class UpdateTime { InStep, BeforeForward, InBackward };

// Where states wait between steps: on the parameters' device, or some of them in host memory. The numbers are
// the same.
struct Placement {
  double on_host = 0;  // the share of their bytes, by whole parameters, the last ones first; small ones stay
  std::shared_ptr<host::Store> store;  // of the parameters' device; on Meta there is none
  // BeforeForward: step() takes the gradients away and holds them until then. Whoever reads weights elsewhere
  // than in their region's forward calls finish() first.
  UpdateTime update = UpdateTime::InStep;
  // Weights and gradients that are on the host too; the states of these parameters are there as well.
  std::shared_ptr<HostParameters> parameters;
  // Of the parameters whose states are there, the share that the host updates, beside the device, spread
  // evenly over them. Their weights and gradients, if they are on the device, are copied for it.
  double stepped_there = 0;
  // Elements by which it is decided what stays because it is small, for each parameter: its own, if it is
  // empty. Of pieces those of the largest rank's, so that all ranks do the same: Sharding::largest_pieces().
  std::vector<std::int64_t> elements = {};
};

// What of an optimizer the host steps: elements, bytes of theirs on the host (of these gradients, which are
// only read), and what of them each step copies to the host and to the device.
struct SteppedThere {
  std::uint64_t parameters = 0, bytes = 0, gradient_bytes = 0, sent_bytes = 0, fetched_bytes = 0;
};

// One tensor of optimizer state, for saving, loading (copy_ into it) and accounting.
struct StateTensor {
  std::size_t parameter;  // index into parameters()
  std::string name;       // "exp_avg", "master", ...
  at::Tensor tensor;
  bool is_on_host = false;  // only updates write to it, and tell of it before: see set_before_write()
};

class SNUG_API Optimizer {
 public:
  virtual ~Optimizer();
  // Neither copied nor moved: its state belongs to one set of parameters.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every parameter that has a gradient, in fp32, each number read and written once; some
  // later, without their gradients from now on, if `placement.update` says so. Takes no memory, except for a
  // gradient that is not contiguous or of another type: one such copy at a time. States on the host come and
  // go in slices (see host_states.h). `control` clips and unscales on the way, or calls the step off; see
  // clip.h. After an update that failed, whenever it was done, this and whatever reads weights or states
  // throws.
  void step(double lr, const ops::UpdateControl& control = {});
  // The next backward is the last one before step(). With UpdateTime::InBackward it updates parameters and
  // frees their gradients, region by region, at this rate: step() does what is left, and takes no control.
  // A backward that fails leaves some parameters updated and others not. Else nothing happens.
  void last_pass(double lr);
  void step() { step(lr_); }
  void step_unscaled(const at::Tensor& factor, const at::Tensor& skip) { step(lr_, {factor, skip}); }
  void zero_grad();                          // frees the gradients: they are undefined afterwards
  void finish();                             // does the updates that still wait for their region's forward
  void finish_region(std::uint32_t region);  // those of one: for whoever reads its weights before its forward

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor> gradients() const;  // those that are defined, some of them on the host
  // Their norm, as optim::grad_norm() has it, wherever they are.
  at::Tensor gradient_norm() const;
  // Parameter i, or where its weight is on the host: to be read, and written until the next step.
  at::Tensor weight(std::size_t i) const;
  at::Tensor exact(std::size_t i) const;  // parameter i in fp32, with all bits that the optimizer knows

  // "master" or "remainder" of 16-bit parameters, and the optimizer's own, after finish(). Those on the host
  // may be read and written until the next step; on Meta they have no memory.
  virtual std::vector<StateTensor> state() const;
  // Told before an update, or a weight that leaves the device, writes to what parameter i has on the host:
  // its states, its weight. Whoever still reads them lets it wait there. Empty: nobody is told.
  void set_before_write(std::function<void(std::size_t parameter)> tell);
  std::uint64_t state_bytes() const;
  // Of these on the host, with what the host needs to step some: each step brings the others to the device
  // and back.
  std::uint64_t host_bytes() const;
  SteppedThere stepped_there() const;

 protected:
  // For destructors, while update() is still there: finish() that throws nothing.
  void end() noexcept;

  // All state is allocated by the constructors, none in step(); masters take the parameters' values as they
  // are then. `moments`: names of the fp32 states that each parameter has beside its master. Throws Error
  // unless every parameter is fp32, bf16 or fp16, contiguous, on one device, and given once.
  Optimizer(std::vector<at::Tensor> parameters, double lr, Master master, std::vector<std::string> moments,
            const Placement& placement);

  // A parameter or a stretch of one: contiguous; the gradient is fp32 or of the weight's type. On the device,
  // or a whole parameter on the host, with its `numbers`.
  struct Part {
    std::size_t parameter;
    at::Tensor weight, gradient, master;
    std::vector<at::Tensor> moments;
    at::Tensor numbers;
  };
  // Before these parameters are updated, part by part.
  virtual void count_step(const std::vector<std::size_t>& which, const ops::UpdateControl& control);
  virtual void update(const std::vector<Part>& parts, double lr, const ops::UpdateControl& control) = 0;
  // What an update on the host must know of the device's states: two numbers for each parameter, in fp32, on
  // the device. Undefined: nothing.
  virtual at::Tensor numbers_of_step() const { return {}; }

  static ops::UpdateTensors tensors_of(const std::vector<Part>& parts);

 private:
  struct Pending {
    std::size_t number;  // of the parameter
    at::Tensor gradient;
    bool gradient_is_there = false;  // on the host
  };

  std::vector<bool> choose_hosted(const Placement& placement) const;
  void choose_stepped_there(const Placement& placement);
  void listen(UpdateTime update);
  std::uint64_t bytes_of_states(std::size_t i, std::int64_t elements) const;
  void make_states(std::size_t i, HostStates* home);
  bool has_master(std::size_t i) const;  // beside the parameter itself
  bool has_weight_there(std::size_t i) const;
  void make_buffers();
  Pending pending(std::size_t i) const;
  Part part(std::size_t i, const at::Tensor& weight, const at::Tensor& gradient,
            const std::vector<at::Tensor>& states) const;
  bool is_stepped_there(const Pending& update) const;
  bool is_streamed(const Pending& update) const;
  using Ticket = std::shared_future<std::shared_ptr<host::Copy>>;  // see HostWorker
  AskedOfHost ask_host(const Pending& update, double lr);
  void update_in_backward(const std::vector<std::size_t>& numbers, double lr);
  void stream(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control);
  void stream_beside(const std::vector<Pending>& which, double lr, c10::Event* after);
  void stream_updated() const;
  void release_updated();          // gradients
  bool end_backward();             // whether parameters were updated in it
  void wait_for_backward() const;  // the device waits for what was updated in it
  void check_used_once() const;
  void update_all(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control);
  void defer(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control);
  void begin_update(const std::vector<Pending>& which, const ops::UpdateControl& control);
  void finish_updates() const;  // and copies
  // Part of an update: if it throws, weights and states no longer belong together.
  void attempt(const std::function<void()>& part) const;
  void check_whole() const;
  struct Streamed;  // how an update streams

  std::vector<at::Tensor> parameters_;
  const Master master_;
  const std::vector<std::string> moments_;
  std::vector<std::vector<at::Tensor>> states_;  // by parameter: its moments, then its master if it has one
  std::vector<bool> is_hosted_;                  // by parameter: states_ are host_'s
  std::unique_ptr<HostStates> host_;             // null: nothing is
  std::shared_ptr<HostParameters> there_;        // null: nothing is
  std::unique_ptr<HostSteps> stepped_there_;     // null: nothing is
  std::unique_ptr<Deferred> deferred_;           // null: nothing is
  std::unique_ptr<InBackward> in_backward_;      // null: nothing is
  std::unique_ptr<UpdatedInBackward> updated_;   // null: nothing is
  std::function<void(std::size_t)> before_write_;
  mutable bool is_half_updated_ = false;
  double lr_;
};

// Throws Error unless the value is finite and at least 0.
SNUG_API void check_not_negative(double value, const char* name);

}  // namespace snug::optim
