// Where a GPU's time goes, for any CUDA program: a library that CUDA loads into it.
//
//   CUDA_INJECTION64_PATH=libkernels.so KERNELS_SECONDS=2 KERNELS_FILE=kernels.txt build/bin/snug train ...
//
// Of the last KERNELS_SECONDS (default 1) before the program's last kernel ended: how much of it no kernel
// ran, and what ran, copies too, by name: share, milliseconds, calls, microseconds of one.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Run {
  std::uint64_t begin, end;
  std::uint32_t name;
  bool is_kernel;
};

struct Seen {
  std::mutex mutex;
  std::size_t lost = 0;  // records for which CUPTI had no room
  std::vector<Run> runs;
  std::map<std::string, std::uint32_t> numbers;
};

Seen& seen() {
  static Seen& all = *std::make_unique<Seen>().release();  // the program's end comes before CUPTI's
  return all;
}

bool succeeded(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernels: %s: %s\n", what, text ? text : "failed");
  return false;
}

void note(std::uint64_t begin, std::uint64_t end, const std::string& name, bool is_kernel = false) {
  Seen& all = seen();
  const std::lock_guard lock(all.mutex);
  const auto number =
      all.numbers.try_emplace(name, static_cast<std::uint32_t>(all.numbers.size())).first->second;
  all.runs.push_back({begin, end, number, is_kernel});
}

std::string readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? text.get() : name;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  *size = 8 << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  std::size_t lost = 0;
  if (succeeded(cuptiActivityGetNumDroppedRecords(context, stream, &lost), "records lost") && lost > 0) {
    const std::lock_guard lock(seen().mutex);
    seen().lost += lost;
  }
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      note(kernel->start, kernel->end, kernel->name, /*is_kernel=*/true);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* const copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      const bool is_inside = copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
      const bool is_out = copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
      note(copy->start, copy->end,
           is_inside ? "(copy)"
           : is_out  ? "(copy to the host)"
                     : "(copy to the device)");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* const set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      note(set->start, set->end, "(set)");
    }
  }
  std::free(buffer);
}

void print() {
  succeeded(cuptiActivityFlushAll(1), "the last records");
  Seen& all = seen();
  const std::lock_guard lock(all.mutex);
  if (all.lost > 0) std::fprintf(stderr, "kernels: %zu records are lost\n", all.lost);
  std::uint64_t last = 0;
  for (const Run& run : all.runs)
    if (run.is_kernel) last = std::max(last, run.end);
  if (last == 0) {
    std::fprintf(stderr, "kernels: no kernel ran\n");
    return;
  }
  std::ranges::sort(all.runs, {}, &Run::begin);
  const char* const seconds = std::getenv("KERNELS_SECONDS");
  const auto most = static_cast<std::uint64_t>(1e9 * (seconds ? std::atof(seconds) : 1));
  const std::uint64_t first = std::max(all.runs.front().begin, last - std::min(last, most));
  std::uint64_t busy = 0, until = first;
  struct Sum {
    std::uint64_t time = 0, calls = 0;
    std::uint32_t name = 0;
  };
  std::vector<Sum> sums(all.numbers.size());
  for (const Run& run : all.runs) {
    const std::uint64_t begin = std::max(run.begin, first), end = std::min(run.end, last);
    if (begin >= end) continue;
    sums[run.name].time += end - begin;
    ++sums[run.name].calls;
    sums[run.name].name = run.name;
    if (!run.is_kernel || end <= until) continue;
    busy += end - std::max(begin, until);
    until = end;
  }
  std::vector<const std::string*> names(sums.size());
  for (const auto& [name, number] : all.numbers) names[number] = &name;
  std::ranges::sort(sums, std::greater(), &Sum::time);
  const char* const path = std::getenv("KERNELS_FILE");
  std::FILE* const file = path ? std::fopen(path, "w") : stderr;
  if (!file) {
    std::fprintf(stderr, "kernels: cannot write %s\n", path);
    return;
  }
  const auto span = static_cast<double>(last - first);
  std::fprintf(file, "%.1f ms, of which no kernel ran in %.1f %%\n", span * 1e-6,
               100 * (1 - static_cast<double>(busy) / span));
  for (const Sum& sum : sums)
    if (sum.calls > 0)
      std::fprintf(file, "%5.2f %% %9.3f ms %7llu x %9.2f us  %s\n",
                   100 * static_cast<double>(sum.time) / span, static_cast<double>(sum.time) * 1e-6,
                   static_cast<unsigned long long>(sum.calls),
                   static_cast<double>(sum.time) * 1e-3 / static_cast<double>(sum.calls),
                   readable(names[sum.name]->c_str()).substr(0, 150).c_str());
  if (path) std::fclose(file);
}

}  // namespace

// What CUDA calls when it has loaded this.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  bool works = succeeded(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "buffers");
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    works = works && succeeded(cuptiActivityEnable(kind), "recording");
  if (works) std::atexit(print);
  return 1;
}
