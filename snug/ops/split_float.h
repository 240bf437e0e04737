// An fp32 number in two halves of 16 bits: the bf16 nearest to it, and how far it is from that. Together they
// are the number bit for bit (a NaN stays one, without its payload). For CPU and CUDA; torch-free.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SNUG_ANYWHERE __host__ __device__
#else
#define SNUG_ANYWHERE [[gnu::always_inline]]  // so that loops over it become vectors
#endif

namespace snug::ops {

struct SplitFloat {
  std::uint16_t nearest;   // bits of a bf16; halfway goes away from zero, so that the rest fits
  std::int16_t remainder;  // in units of the last place of the fp32

  SNUG_ANYWHERE static SplitFloat of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0, 0};
    const std::uint32_t rounded = (bits + 0x8000u) & 0xffff0000u;
    return {static_cast<std::uint16_t>(rounded >> 16), static_cast<std::int16_t>(bits - rounded)};
  }

  SNUG_ANYWHERE float joined() const {
    const std::uint32_t bits =
        (static_cast<std::uint32_t>(nearest) << 16) + static_cast<std::uint32_t>(std::int32_t{remainder});
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

}  // namespace snug::ops
