// A gradient that is on the host while its region's backward does not run. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "snug/host/copy.h"
#include "snug/host/link.h"
#include "snug/optim/host_tensor.h"

namespace snug::optim {

class HostGradient {
 public:
  // `link`: null on Meta, where nothing is copied.
  HostGradient(const at::Tensor& parameter, at::Tensor host, host::Link* link, const std::string& region);

  void fetch();  // memory is taken and a copy asked for, if there is a sum and it is not here
  void use();    // grad() is the sum so far, and the device waits for that copy
  // What grad() is now, to the host, unless it is of another type or layout: then it stays.
  bool send();
  void leave();   // the device's memory goes, after that copy
  void finish();  // the host waits for that copy
  void forget();  // the sum is gone, and grad() undefined

  bool has_sum() const;  // on the host
  const at::Tensor& host() const { return host_; }
  const at::Tensor& sent() const { return here_; }
  // Of what was sent last, as a scalar on the device.
  const at::Tensor& norm() const { return norm_; }
  void set_norm(at::Tensor norm) { norm_ = std::move(norm); }

 private:
  const WeakTensor parameter_;
  const at::Tensor host_;
  host::Link* const link_;
  const at::Tensor away_;  // what grad() is meanwhile
  at::Tensor here_;        // on its way, there or back
  at::Tensor norm_;
  bool is_sent_ = false;
  host::CopyPtr sent_, fetched_;
};

}  // namespace snug::optim
