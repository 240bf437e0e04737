// What a safetensors file says about its tensors before it holds them: 8 bytes with the length of a JSON
// object, that object, then the tensors' bytes one after the other, little endian, without holes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace snug::io {

constexpr std::uint64_t kLongestHeader = 100'000'000;  // as the reference implementation has it

struct TensorEntry {
  std::string name;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes of the file

  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Of a whole file, which errors call `where`. Throws Error unless every byte belongs to one tensor and every
// tensor has the bytes that its shape and dtype need.
SNUG_API SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                                    const std::string& where);

// "F32", "BF16", ...
SNUG_API std::string safetensors_name(c10::ScalarType dtype);
// As config.json has it: "float32", "bfloat16", "float16".
SNUG_API std::string config_name(c10::ScalarType dtype);

}  // namespace snug::io
