// One stretch of host memory, mapped, touched and, if wanted, pinned when it is made.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snug::host {

class Slab {
 public:
  Slab(std::uint64_t bytes, bool pinned);
  ~Slab();
  Slab(const Slab&) = delete;  // the memory is mapped once
  Slab& operator=(const Slab&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  bool contains(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= data_ && byte < data_ + bytes_;
  }

 private:
  struct Mapping {
    explicit Mapping(std::uint64_t bytes);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };

  Mapping mapping_;  // a little more: the slab begins where a huge page does
  std::byte* const data_;
  const std::uint64_t bytes_;
  const bool pinned_;
};

}  // namespace snug::host
