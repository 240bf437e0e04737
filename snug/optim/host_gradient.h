// A gradient that is on the host while its region's backward does not run. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "snug/host/copy.h"
#include "snug/host/host_tensor.h"
#include "snug/host/link.h"

namespace snug::optim {

class HostGradient {
 public:
  // `link`: null on Meta, where nothing is copied.
  HostGradient(const at::Tensor& parameter, at::Tensor host, host::Link* link, const std::string& region);
  ~HostGradient();                             // waits for copies that are under way
  HostGradient(const HostGradient&) = delete;  // copies point into it
  HostGradient& operator=(const HostGradient&) = delete;

  void fetch();  // memory is taken and a copy asked for, if there is a sum and it is not here
  void use();    // grad() is the sum so far, and the device waits for that copy
  // What grad() is now, to the host, unless it is of another type or layout: then it stays.
  bool send();
  // The device's memory goes, after that copy. What was added to the gradient meanwhile goes with it.
  void leave();
  void finish();  // the host waits: it may read and write host()
  void forget();  // the sum is gone, and grad() undefined

  bool has_sum() const;  // on the host
  const at::Tensor& host() const { return host_; }
  const at::Tensor& sent() const { return here_; }
  std::vector<host::CopyPtr> copies() const { return {fetched_, sent_}; }
  // Of what was sent last, as a scalar on the device.
  at::Tensor norm() const;
  void set_norm(at::Tensor norm) { norm_ = std::move(norm); }

 private:
  void wait_for_fetched();
  void wait_for_sent();

  const host::WeakTensor parameter_;
  const at::Tensor host_;
  host::Link* const link_;
  const at::Tensor away_;  // what grad() is meanwhile
  at::Tensor here_;        // on its way, there or back
  at::Tensor norm_;
  bool is_sent_ = false;
  std::int64_t sent_version_ = 0;  // of here_
  host::CopyPtr sent_, fetched_;
};

}  // namespace snug::optim
