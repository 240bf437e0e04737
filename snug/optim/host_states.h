// States that wait in host memory between steps. An update takes them through the device slice by slice:
// while one is worked on, the next comes and the last one goes.
//
//   HostStates states(device, store);
//   const at::Tensor exp_avg = states.zeros(parameter.sizes(), at::kFloat);
//   states.reserve_buffers({{exp_avg}});                                   // once, before the first step
//   states.walk({{exp_avg}}, [&](const HostStates::Slice& slice) { ... }); // slice.tensors are on the device
//
// What a slice holds is elementwise, so the bits are those of a step on whole tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "snug/host/store.h"

namespace snug::optim {

class HostStates {
 public:
  // On Meta there is no store: tensors have sizes and no memory, and nothing is copied.
  HostStates(c10::Device device, std::shared_ptr<host::Store> store);
  ~HostStates();

  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype);
  std::uint64_t bytes() const { return bytes_; }

  // Tensors of equal sizes that are updated together.
  using Group = std::vector<at::Tensor>;
  void reserve_buffers(const std::vector<Group>& groups);

  struct Slice {
    std::size_t group;  // its number
    std::int64_t begin, count;
    Group tensors;  // flat, on the device; what is written there goes to the host
  };
  // Does not wait for the last copies: who reads the tensors on the host calls finish() first.
  void walk(const std::vector<Group>& groups, const std::function<void(const Slice&)>& use);
  void finish() const;

 private:
  struct Buffer {
    at::Tensor memory;
    std::vector<host::CopyPtr> fetched, sent;
  };
  Group carve(const Buffer& buffer, const Group& group, std::int64_t count) const;
  void fetch(Buffer& buffer, const Group& group, const Slice& slice);
  void send(Buffer& buffer, const Group& group, const Slice& slice);

  const c10::Device device_;
  const std::shared_ptr<host::Store> store_;
  std::uint64_t bytes_ = 0;
  std::array<Buffer, 3> buffers_;
};

}  // namespace snug::optim
