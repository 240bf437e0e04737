// What the kernel says about free memory, read from files below a folder so that tests can bring their own.
#pragma once

#include <cstdint>
#include <filesystem>

#include "snug/base/export.h"

namespace snug::host {

// `root` stands for "/": proc/meminfo, proc/self/cgroup and sys/fs/cgroup are looked for below it.
SNUG_API std::uint64_t free_host_bytes_below(const std::filesystem::path& root);
// What the process's container may take at most; beyond all sizes if it has no limit.
SNUG_API std::uint64_t host_limit_bytes_below(const std::filesystem::path& root);

}  // namespace snug::host
