#include "snug/machine/hardware_of.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdlib>
#include <system_error>

#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/memory/process_memory.h"
#include "snug/machine/host_probe.h"

namespace snug::machine {
namespace {

namespace fs = std::filesystem;

memory::CudaDevice cuda_device(c10::Device device) {
  return memory::cuda_device(hooks::with_index(device).index());
}

bool is_here(c10::Device device) {
  return !device.is_cuda() || (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0);
}

fs::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  // A relative one is to be ignored, says the XDG Base Directory Specification 0.8.
  if (const fs::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache;
  const fs::path home = variable("HOME");
  return home.empty() ? home : home / ".cache";
}

plan::Hardware load_probe(const fs::path& file, c10::Device device) {
  try {
    plan::Hardware hardware = plan::from_json(read_json(file), file.string());
    check(hardware.is_gpu == device.is_cuda(), file.string(), ": is_gpu must be ",
          device.is_cuda() ? "true" : "false", " in this file");
    return hardware;
  } catch (const Error& error) {
    fail(error.what(), "; what 'snug probe' left there is damaged: run it again, or remove the file");
  }
}

}  // namespace

plan::Hardware hardware_of(c10::Device device) {
  if (!device.is_cuda()) return plan::preset("cpu");
  if (!at::hasCUDA()) return plan::preset("h200");  // planned for, not here
  const memory::CudaDevice here = cuda_device(device);
  plan::Hardware hardware = plan::preset_like(here.name, here.memory_bytes);
  if (here.is_the_hosts) hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 0;
  return hardware;
}

std::uint64_t memory_bytes(c10::Device device) {
  return device.is_cuda() ? cuda_device(device).memory_bytes : 0;
}

std::string device_name(c10::Device device) {
  return device.is_cuda() ? cuda_device(device).name : cpu_name();
}

fs::path probe_file(c10::DeviceType kind) {
  const fs::path cache = cache_folder();
  if (cache.empty()) return cache;
  return cache / "snug" / (kind == c10::kCUDA ? "hardware-cuda.json" : "hardware-cpu.json");
}

HardwareHere hardware_here(c10::Device device) {
  const fs::path file = probe_file(device.type());
  std::error_code error;  // a file that cannot be examined is read_json()'s to explain
  if (file.empty() || (!fs::exists(file, error) && !error))
    return {
        hardware_of(device), {}, is_here(device) ? "an estimate; 'snug probe' measures it" : "an estimate"};
  plan::Hardware probed = load_probe(file, device);
  if (is_here(device) && probed.name != device_name(device))
    return {hardware_of(device), {}, concat("an estimate; ", file.string(), " is of ", probed.name)};
  return {std::move(probed), file, concat("probed: ", file.string())};
}

}  // namespace snug::machine
