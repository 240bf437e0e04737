// Tensors in the memory of a store, for what waits on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "snug/host/store.h"

namespace snug::host {

// What copies of cost more than their memory is worth: stays where it is.
inline constexpr std::int64_t kFewElements = 16 * 1024;

// Without a store, on Meta, a tensor that has sizes and no memory. The memory goes with the tensor.
at::Tensor host_empty(const std::shared_ptr<Store>& store, at::IntArrayRef sizes, at::ScalarType dtype);
at::Tensor host_zeros(const std::shared_ptr<Store>& store, at::IntArrayRef sizes, at::ScalarType dtype);
std::uint64_t host_bytes(const at::Tensor& tensor);  // that such a tensor takes of the store

// Throws Error unless it is between 0 and 1.
void check_share_on_host(double share, const char* what);

// Throws Error unless there is a store of this device, or the device is Meta.
void check_store(const std::shared_ptr<Store>& store, c10::Device device);

// Every byte of its storage is one of its own.
bool fills_its_storage(const at::Tensor& tensor);

// Stands for contents of so many bytes that are elsewhere: whoever asks for them is told `why`.
c10::Storage no_contents(c10::Device device, std::uint64_t bytes, const std::string& why);

// A tensor that may go before whoever remembers it.
class WeakTensor {
 public:
  explicit WeakTensor(const at::Tensor& tensor) : tensor_(tensor.getIntrusivePtr()) {}
  at::Tensor lock() const {  // undefined if it is gone
    auto alive = tensor_.lock();
    return alive.defined() ? at::Tensor(std::move(alive)) : at::Tensor();
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
};

}  // namespace snug::host
