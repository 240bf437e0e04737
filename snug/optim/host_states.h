// States that wait in host memory between steps. An update takes them through the device slice by slice:
// while one is worked on, the next comes and the last one goes.
//
//   HostStates states(device, store);
//   const at::Tensor exp_avg = states.zeros(parameter.sizes(), at::kFloat);
//   states.reserve_buffers({{{exp_avg}}});                                 // once, before the first step
//   HostStates::Walk walk(states, {{{exp_avg}}}, [&](const HostStates::Slice& slice) { ... });
//   walk.go_to(1);                                                         // slice.tensors are on the device
//
// What a slice holds is elementwise, so the bits are those of a step on whole tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/host/store.h"

namespace snug::optim {

class HostStates {
  // Note [Updates beside products]
  // A product of matrices has every multiprocessor until it is over. An update of some slice that waits for
  // it then runs, however short, before the next product only if it waits already: so each buffer has a
  // stream of its own, and all that have come are updated between two products, not one.
  struct Buffer {
    std::optional<c10::Stream> stream;  // none: where the caller is
    at::Tensor memory;
    std::vector<host::CopyPtr> fetched, sent;
  };

 public:
  // On Meta there is no store: tensors have sizes and no memory, and nothing is copied.
  HostStates(c10::Device device, std::shared_ptr<host::Store> store);
  ~HostStates();

  std::optional<c10::Stream> stream_beside() const;  // see host::Link

  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype);
  std::uint64_t bytes() const { return bytes_; }

  struct Piece {
    at::Tensor tensor;  // on the host
    bool is_written = true;
    host::CopyPtr* written = nullptr;  // for whoever else reads it: the last copy to the host
  };
  // Of equal sizes, updated together.
  using Group = std::vector<Piece>;
  void reserve_buffers(
      const std::vector<Group>& groups);  // that walks may have, with or without what they only read

  struct Slice {
    std::size_t group;  // its number
    std::int64_t begin, count;
    std::vector<at::Tensor> tensors;  // flat, on the device; what is written there goes to the host
  };
  // Before the walks of a step, which go through other states each: those of the step before may have sent
  // what these fetch first.
  void begin_walks();
  // Once through these groups. One walk at a time has the buffers.
  class Walk {
   public:
    Walk(HostStates& states, std::vector<Group> groups, std::function<void(const Slice&)> use);
    // On, until what comes before this group was used. On a GPU that is asked for after what the current
    // stream was given when the walk was made; what it is given from now on happens after it. Does not wait
    // for the last copies to the host: who reads there calls finish() first.
    void go_to(std::size_t group);

   private:
    Buffer& buffer(std::size_t slice) { return states_.buffers_[slice % states_.buffers_.size()]; }
    void fetch_next();
    void use_next();
    void join() const;  // the current stream waits for the buffers'

    HostStates& states_;
    const std::vector<Group> groups_;
    const std::function<void(const Slice&)> use_;
    std::vector<Slice> slices_;
    std::size_t fetched_ = 0, used_ = 0;
  };
  void finish() const;

 private:
  std::int64_t slice_elements(const Group& group) const;
  std::vector<at::Tensor> carve(const Buffer& buffer, const Group& group, std::int64_t count) const;
  void fetch(Buffer& buffer, const Group& group, const Slice& slice);
  void send(Buffer& buffer, const Group& group, const Slice& slice);

  const c10::Device device_;
  const std::shared_ptr<host::Store> store_;
  std::uint64_t bytes_ = 0;
  std::uint64_t streamed_ = 0;  // by one walk through all
  static constexpr std::size_t kBuffers = 6;
  std::array<Buffer, kBuffers> buffers_;
};

}  // namespace snug::optim
