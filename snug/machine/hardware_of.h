// The hardware that is here: by its preset, or as `snug probe` measured it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"

namespace snug::machine {

// The preset of the device; of an h200 where there is no GPU.
SNUG_API plan::Hardware hardware_of(c10::Device device);

// Of a GPU; 0 for the CPU.
SNUG_API std::uint64_t memory_bytes(c10::Device device);

// What a probe of it is called: "NVIDIA H200", "AMD EPYC 9654, 16 threads".
SNUG_API std::string device_name(c10::Device device);

// Where `snug probe` leaves what it measured: snug/hardware-cuda.json, or -cpu.json, in $XDG_CACHE_HOME or
// ~/.cache. Empty if there is neither.
SNUG_API std::filesystem::path probe_file(c10::DeviceType kind);

struct HardwareHere {
  plan::Hardware hardware;
  std::filesystem::path file;  // of the probe; empty: the preset
  std::string note;            // which of them and why, for people
};

// As last probed, if that was this very device, or if there is none here to compare with; else the preset.
// Throws Error, which names the file and says to probe again, if it is damaged.
SNUG_API HardwareHere hardware_here(c10::Device device);

}  // namespace snug::machine
