// A tensor whose contents are elsewhere, as a rule on the host, while nobody uses them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/host/copy.h"
#include "snug/host/host_tensor.h"
#include "snug/host/link.h"
#include "snug/host/source.h"

namespace snug::host {

struct MovingTensorOptions {
  std::string why_away;                         // what whoever reads it meanwhile is told
  std::function<void(const at::Tensor&)> came;  // told that it has memory again, which was just taken
  std::function<void(const at::Tensor&)> before_send = {};  // told before what it holds goes to the host
};

// The tensor's own storage is emptied and filled again, so that its views, which autograd may have saved,
// see what it sees. Until its contents are there the tensor itself has another, which throws. (A view or a
// detached alias that somebody kept has the emptied one: a null pointer.)
class MovingTensor {
 public:
  // It is here, and what it holds is not on the host yet. `host`: as large. `link`: null on Meta, where
  // nothing is copied; outlives it. Throws Error unless the tensor has its storage's memory for itself.
  MovingTensor(const at::Tensor& tensor, at::Tensor host, Link* link, MovingTensorOptions options);
  // `source` has what the tensor holds if `is_sent`.
  MovingTensor(const at::Tensor& tensor, std::unique_ptr<Source> source, bool is_sent,
               MovingTensorOptions options);

  ~MovingTensor();                             // waits for copies that are under way
  MovingTensor(const MovingTensor&) = delete;  // copies point into it
  MovingTensor& operator=(const MovingTensor&) = delete;

  // Memory is taken and a copy asked for, unless it is here. `is_ready`: the host has what is to be copied;
  // else the next call, or use(), asks for the copy, which then begins as if it had been asked for now.
  void fetch(bool is_ready = true);
  void use();   // the tensor has it, and the device waits for that copy
  void send();  // what it holds goes to the host; it stays as well
  void drop();  // its memory goes; what somebody wrote to the tensor goes to the host
  // As drop(), but the tensor can be read: until it is fetched, or dropped, it is one of the CPU. What is
  // written to it goes where it waits. For those on the host.
  void show_host();
  void write(const std::function<void()>& fill);  // on the device, then to the host
  // While it is away: its contents to other memory of the device, taken at `since`, and from there.
  CopyPtr fetch_into(void* memory, const CopyPtr& since);
  CopyPtr send_from(const void* memory);
  void finish();               // the host waits: it may read and write host()
  void bring_back() noexcept;  // for good, if the tensor is still used
  void note_update();          // of the source: what is here is old, for autograd too

  bool is_used() const { return tensor_.lock().defined(); }  // by anybody else
  bool has_alias() const;                                    // that would see its memory go
  const at::Tensor& host() const { return host_; }
  CopyPtr& written() { return written_; }  // the last copy to the host
  std::vector<CopyPtr> copies() const { return {fetched_, written_}; }

 private:
  void hide_host();
  void take_memory(bool is_filled_later);
  void wait_for_fetched();
  void wait_for_sent();
  void release();
  std::int64_t version() const;  // of the tensor

  const WeakTensor tensor_;
  const at::Tensor host_;  // undefined where it is not the source
  const std::unique_ptr<Source> source_;
  const MovingTensorOptions options_;
  c10::Storage contents_;  // without memory while it is away
  const std::uint64_t bytes_;
  const c10::Storage away_;
  bool is_here_ = true, is_fetched_ = false;  // is_fetched_: nobody waited for the copy yet
  bool is_owed_ = false;                      // that copy was not asked for yet
  bool is_sent_ = false;                      // the same of the copy to the host
  std::int64_t version_;                      // of the tensor, when the host had its contents
  CopyPtr fetched_, written_;
  CopyPtr mark_;       // of a copy that is owed: when its memory was taken
  at::Tensor hidden_;  // while the host is shown: what the tensor was
};

}  // namespace snug::host
