// What the host has and does: memory, cores, disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace snug::machine {

// "AMD EPYC 9654, 16 threads": its rates are those of so many.
std::string cpu_name();

// All of the machine, or of its container if that is less.
std::uint64_t host_memory_bytes();

// Parameters per second of AdamW in fp32.
double adam_rate(std::int64_t parameters, double least_seconds);

// Bytes per second of a file written in sequence to the disk and read again, past the system's cache where
// the file system can; about `most_seconds` each at most. The file has no name once it is open: whatever
// happens, none is left. Throws Error if there can be no file in the folder, RunError if it cannot be
// written.
double disk_rate(const std::filesystem::path& folder, std::uint64_t bytes, double most_seconds);

}  // namespace snug::machine
