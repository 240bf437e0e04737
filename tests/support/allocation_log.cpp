#include "tests/support/allocation_log.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace snug::testing {
namespace {

constexpr std::size_t kWrappedNumberBytes = 8;

struct Block {
  std::string name;
  std::size_t bytes;
};

class Log {
 public:
  void start() {
    std::lock_guard lock(mutex_);
    recording_ = true;
    allocations_ = 0;
    lines_.clear();
  }
  std::vector<std::string> stop() {
    std::lock_guard lock(mutex_);
    recording_ = false;
    return std::move(lines_);
  }
  void allocated(const void* key, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    std::string name = recording_ ? std::to_string(allocations_++) : "old";
    if (recording_) lines_.push_back("alloc " + name + ": " + std::to_string(bytes) + " bytes");
    blocks_[key] = {name, bytes};
  }
  void freed(const void* key) {
    std::lock_guard lock(mutex_);
    auto block = blocks_.find(key);
    if (block == blocks_.end()) return;
    const auto& [name, bytes] = block->second;
    if (recording_) lines_.push_back("free " + name + ": " + std::to_string(bytes) + " bytes");
    blocks_.erase(block);
  }

 private:
  std::mutex mutex_;
  bool recording_ = false;
  std::size_t allocations_ = 0;
  std::vector<std::string> lines_;
  std::unordered_map<const void*, Block> blocks_;
};

// Both logs live as long as the program, as any block may.
Log& cpu_log() {
  static auto* log = new Log;
  return *log;
}
Log& meta_log() {
  static auto* log = new Log;
  return *log;
}

void free_cpu(void* data) {
  cpu_log().freed(data);
  c10::GetDefaultCPUAllocator()->raw_deleter()(data);
}

void free_meta(void* key) {
  meta_log().freed(key);
  delete static_cast<char*>(key);
}

struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto memory = c10::GetDefaultCPUAllocator()->allocate(bytes);
    bool ours = memory.compare_exchange_deleter(c10::GetDefaultCPUAllocator()->raw_deleter(), &free_cpu);
    if (ours && bytes > kWrappedNumberBytes) cpu_log().allocated(memory.get(), bytes);
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct MetaAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes <= kWrappedNumberBytes) return {nullptr, at::kMeta};
    auto* key = new char;
    meta_log().allocated(key, bytes);
    return {nullptr, key, &free_meta, at::kMeta};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};

Log& log_of(at::DeviceType device) {
  static const bool installed = [] {
    c10::SetAllocator(at::kCPU, new CpuAllocator, 1);
    c10::SetAllocator(at::kMeta, new MetaAllocator, 1);
    return true;
  }();
  EXPECT_TRUE(installed);
  return device == at::kCPU ? cpu_log() : meta_log();
}

}  // namespace

std::vector<std::string> allocations_during(at::DeviceType device, const std::function<void()>& body) {
  Log& log = log_of(device);
  log.start();
  body();
  return log.stop();
}

void expect_same_allocations(const Scenario& scenario) {
  int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::vector<std::string> lines[2];
  for (at::DeviceType device : {at::kCPU, at::kMeta}) {
    auto body = scenario(device);
    allocations_during(device, body);
    allocations_during(device, body);
    lines[device == at::kMeta] = allocations_during(device, body);
  }
  at::set_num_threads(threads);

  auto& [cpu, meta] = lines;
  EXPECT_FALSE(cpu.empty());
  auto [at_cpu, at_meta] = std::mismatch(cpu.begin(), cpu.end(), meta.begin(), meta.end());
  if (at_cpu == cpu.end() && at_meta == meta.end()) return;
  auto where = at_cpu - cpu.begin();
  std::string shown;
  for (auto i = std::max<std::ptrdiff_t>(0, where - 3); i < where + 8; ++i) {
    auto line = [i](const auto& list) { return i < std::ssize(list) ? list[i] : std::string("(end)"); };
    shown +=
        "\n  " + line(cpu) + std::string(28 - std::min<std::size_t>(27, line(cpu).size()), ' ') + line(meta);
  }
  ADD_FAILURE() << "CPU (" << cpu.size() << " events, left) and Meta (" << meta.size()
                << ", right) differ at event " << where << shown;
}

}  // namespace snug::testing
