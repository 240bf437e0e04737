#include "snug/host/host_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "snug/base/error.h"

namespace snug::host {

at::Tensor host_empty(const std::shared_ptr<Store>& store, at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  if (!store) {
    at::Tensor nowhere = at::empty({0}, options.device(c10::kMeta));
    nowhere.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return nowhere;
  }
  const auto bytes = static_cast<std::uint64_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  const auto slot = std::make_shared<Slot>(store->arena().take(bytes));
  slot->finish();
  return at::from_blob(
      slot->data(), sizes, [slot](void*) {}, options);
}

at::Tensor host_zeros(const std::shared_ptr<Store>& store, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor zeros = host_empty(store, sizes, dtype);
  if (store) std::memset(zeros.mutable_data_ptr(), 0, zeros.nbytes());
  return zeros;
}

std::uint64_t host_bytes(const at::Tensor& tensor) {
  return (tensor.nbytes() + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
}

void check_share_on_host(double share, const char* what) {
  check(share >= 0 && share <= 1, "the share of ", what, " on the host must be between 0 and 1, got ", share);
}

void check_store(const std::shared_ptr<Store>& store, c10::Device device) {
  check(store || device.is_meta(), "what waits on the host needs a store of host memory: none was given");
  if (store && store->device() != device)
    fail("what waits on the host for parameters on ", device.str(),
         " needs a store of that device, got one of ", store->device().str());
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

// With its size on a device: what has none is written to files, and copied, without being read. On Meta it
// has none, by which the tracker knows that nothing is there.
c10::Storage no_contents(c10::Device device, std::uint64_t bytes, const std::string& why) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                             device.is_meta() ? 0 : bytes,
                                                             at::DataPtr(nullptr, device), nullptr,
                                                             /*resizable=*/false));
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
  return storage;
}

}  // namespace snug::host
