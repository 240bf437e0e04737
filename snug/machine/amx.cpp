// Some virtual machines say that they have AMX and hide the CPUID leaf that describes its tiles. oneDNN
// believes the first, lays out no tiles for want of the second, and torch's first product in bf16 ends the
// process with SIGILL. There oneDNN is told to do without, unless somebody chose its instructions; it looks
// once, when it is first used, so this is done when the library is loaded.
#ifdef __x86_64__

#include <cpuid.h>
#include <stdlib.h>

namespace snug::machine {

namespace {

bool has_amx_without_tiles() {
  constexpr unsigned kFeatures = 7, kAmxTile = 1u << 24, kTiles = 0x1d;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_amx = __get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) != 0 && (d & kAmxTile) != 0;
  return has_amx && (__get_cpuid_count(kTiles, 1, &a, &b, &c, &d) == 0 || a == 0);
}

[[maybe_unused]] const bool is_told = [] {
  if (has_amx_without_tiles()) ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", /*overwrite=*/0);
  return true;
}();

}  // namespace

}  // namespace snug::machine

#endif
