// Tensors on disk by name, each in one file or, as ranks have written it, in pieces over several.
//
//   for (const StoredTensor& tensor : stored.all()) weight.copy_(tensor.whole());
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/safetensors.h"

namespace snug::io {

class SNUG_API StoredTensor {
 public:
  std::string name;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<std::int64_t> shape;

  std::int64_t elements() const;
  std::string where() const;  // for errors: the file, and the name in quotes
  // On the CPU, for reading alone. A view of the mapped file where one piece is all of it, else a copy.
  at::Tensor whole() const;
  // `to`: contiguous, of this dtype or another, of any device: the elements from `begin` on.
  void copy_to(at::Tensor to, std::int64_t begin) const;
  void release() const;  // its pages need not stay in RAM

 private:
  friend class StoredTensors;
  struct Piece {
    const SafetensorsFile* file;
    const TensorEntry* entry;
    std::int64_t begin;  // among the elements
  };
  std::vector<Piece> pieces_;  // one after the other
};

class SNUG_API StoredTensors {
 public:
  using Shapes = std::map<std::string, std::vector<std::int64_t>>;

  // Of files that hold whole tensors.
  explicit StoredTensors(const std::vector<std::filesystem::path>& files);
  // Of files that hold pieces as well, "NAME@BEGIN", of tensors that have these shapes. Throws Error, which
  // names the tensor, unless each is there once and whole.
  StoredTensors(const std::vector<std::filesystem::path>& files, const Shapes& shapes);

  const std::vector<StoredTensor>& all() const { return all_; }  // in the order of the files
  const StoredTensor* find(const std::string& name) const;       // null if there is none
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

  static std::string piece_name(const std::string& name, std::int64_t begin);

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // pieces point to them
  std::vector<StoredTensor> all_;
  std::map<std::string, std::size_t> places_;  // in all_
};

}  // namespace snug::io
