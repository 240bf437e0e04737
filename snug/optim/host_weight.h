// A parameter whose contents are on the host while nobody uses them. Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "snug/host/copy.h"
#include "snug/host/link.h"
#include "snug/optim/host_tensor.h"

namespace snug::optim {

// The parameter's own storage is emptied and filled again, so that its views, which autograd may have saved,
// see what it sees. Until its contents are there the parameter itself has another, which throws. (A view or a
// detached alias that somebody kept has the emptied one: a null pointer.)
class HostWeight {
 public:
  // Empties it. `link`: null on Meta, where nothing is copied. `before_write`: told before it goes to the
  // host.
  HostWeight(const at::Tensor& parameter, at::Tensor host, host::Link* link, const std::string& region,
             std::function<void(const at::Tensor&)> before_write);

  ~HostWeight();                           // waits for copies that are under way
  HostWeight(const HostWeight&) = delete;  // copies point into it
  HostWeight& operator=(const HostWeight&) = delete;

  void fetch();  // memory is taken and a copy asked for, unless it is here
  void use();    // the parameter has it, and the device waits for that copy
  void drop();   // its memory goes; what somebody wrote to the parameter goes to the host
  void write(const std::function<void()>& fill);  // on the device, then to the host
  void finish();                                  // the host waits: it may read and write host()
  void bring_back() noexcept;                     // for good, if the parameter is still used
  void note_update();                             // of host(): what is here is old, for autograd too

  const at::Tensor& host() const { return host_; }
  host::CopyPtr& written() { return written_; }  // the last copy to the host
  std::vector<host::CopyPtr> copies() const { return {fetched_, written_}; }

 private:
  void take_memory();
  void send();
  std::int64_t version() const;  // of the parameter

  const WeakTensor parameter_;
  const at::Tensor host_;
  host::Link* const link_;
  c10::Storage contents_;  // without memory while it is away
  const c10::Storage away_;
  const std::function<void(const at::Tensor&)> before_write_;
  const std::uint64_t bytes_;
  bool is_here_ = false, is_fetched_ = false;  // is_fetched_: nobody waited for the copy yet
  std::int64_t version_ = 0;                   // of the parameter, when it got its contents
  host::CopyPtr fetched_, written_;
};

}  // namespace snug::optim
