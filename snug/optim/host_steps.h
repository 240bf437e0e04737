// Parameters that the host updates, beside the device: their weights and gradients come to the host, if they
// are not there, a worker steps them by most cores, and weights go back. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "snug/optim/host_states.h"
#include "snug/optim/host_worker.h"
#include "snug/ops/update.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {

struct AskedOfHost {
  HostWorker::Ticket ticket;
  std::vector<host::CopyPtr> sent;  // to be waited for before the gradient goes
};

class HostSteps {
 public:
  // Memory on the host is the states'. On Meta there is no store: nothing is done.
  HostSteps(c10::Device device, std::shared_ptr<host::Store> store, HostStates& states,
            std::size_t parameters);

  // `weight`, `gradient`: where these are on the host; undefined if they are on the device.
  void add(std::size_t i, const at::Tensor& parameter, const at::Tensor& weight, const at::Tensor& gradient,
           std::uint64_t bytes_of_states);
  bool takes(std::size_t i, const at::Tensor& gradient) const;  // of a type that has room in its home
  const SteppedThere& all() const { return all_; }

  // Before these are updated. `numbers`: see Optimizer::numbers_of_step().
  void begin(const std::vector<std::size_t>& which, const ops::UpdateControl& control,
             const at::Tensor& numbers);

  // All on the host.
  struct Here {
    at::Tensor weight, gradient;
    ops::UpdateControl control;
    at::Tensor numbers;
  };
  // Asks for one. `gradient`: undefined if it is in its home; `before`: copies of what is.
  AskedOfHost push(std::size_t i, const at::Tensor& parameter, const at::Tensor& gradient,
                   std::vector<host::CopyPtr> before, std::function<void(const Here&)> update);
  void finish();  // the host waits for all

 private:
  struct Home {
    at::Tensor weight, gradient;
    bool has_weight_here = false;  // on the device
  };

  const c10::Device device_;
  const std::shared_ptr<host::Store> store_;
  HostStates& states_;
  std::vector<Home> homes_;
  at::Tensor numbers_, numbers_there_;  // of each parameter factor, skip, and two; on the device and here
  host::CopyPtr begun_, numbers_sent_;
  SteppedThere all_;
  std::unique_ptr<HostWorker> worker_;  // the first to go; null on Meta
};

}  // namespace snug::optim
