// A parameter whose contents are on the host while nobody uses them. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <string>

#include "snug/host/copy.h"
#include "snug/host/link.h"
#include "snug/optim/host_tensor.h"

namespace snug::optim {

// The parameter's own storage is emptied and filled again, so that its views, which autograd may have saved,
// see what it sees. While it is away the parameter itself has another, which throws.
class HostWeight {
 public:
  // Empties it. `link`: null on Meta, where nothing is copied.
  HostWeight(const at::Tensor& parameter, at::Tensor host, host::Link* link, const std::string& region);

  void fetch();                                   // memory is taken and a copy asked for, unless it is here
  void use();                                     // the device waits for that copy
  void drop();                                    // its memory goes; what was written to it is lost
  void write(const std::function<void()>& fill);  // on the device, then to the host
  void bring_back() noexcept;                     // for good, if the parameter is still used

  const at::Tensor& host() const { return host_; }
  host::CopyPtr& written() { return written_; }  // the last copy to the host

 private:
  void take_memory();
  bool is_here() const { return is_here_; }

  const WeakTensor parameter_;
  const at::Tensor host_;
  host::Link* const link_;
  c10::Storage contents_;  // without memory while it is away
  const c10::Storage away_;
  const std::uint64_t bytes_;
  bool is_here_ = false;
  host::CopyPtr fetched_, written_;
};

}  // namespace snug::optim
