#include "snug/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

namespace snug::io {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_shared<const MappedFile>(path)),
      header_(parse_safetensors_header(file_->bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.entries.size(); ++i) places_[header_.entries[i].name] = i;
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &header_.entries[place->second];
}

at::Tensor SafetensorsFile::tensor(const TensorEntry& entry) const {
  const auto bytes = file_->bytes().subspan(entry.begin, entry.bytes());
  if (bytes.empty()) return at::empty(entry.shape, entry.dtype);
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % c10::elementSize(entry.dtype) == 0)
    return at::from_blob(
        const_cast<std::byte*>(bytes.data()), entry.shape, [file = file_](void*) {}, entry.dtype);
  at::Tensor copy = at::empty(entry.shape, entry.dtype);
  std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
  return copy;
}

void SafetensorsFile::release(const TensorEntry& entry) const {
  file_->release(entry.begin, entry.bytes());
}

}  // namespace snug::io
