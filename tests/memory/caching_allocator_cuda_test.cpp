// The model of torch's allocator against torch's allocator, after every event. A program of its own: it needs
// an allocator that nobody else has used. Skips loudly where there is no GPU.
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/tracker.h"
#include "snug/plan/caching_allocator.h"
#include "tests/plan/random_steps.h"

namespace snug::plan {
namespace {

namespace torchs = c10::cuda::CUDACachingAllocator;

struct Live {
  void* real;
  CachingAllocator::Handle model;
  CachingAllocator::Handle blind;
  std::uint64_t bytes;
};

std::uint64_t device_bytes() {
  return at::cuda::getDeviceProperties(0)->totalGlobalMem;
}

class CachingAllocatorCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available())
      GTEST_SKIP() << "NO GPU: the allocator's model was not compared with torch's";
    at::globalContext().lazyInitDevice(at::kCUDA);
    use({});
  }
  void TearDown() override {
    if (!torch::cuda::is_available()) return;
    free_all();
    torchs::setMemoryFraction(1.0, 0);
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  }

  // Both allocators start empty. The model learns from torch's pointer where the driver put a new segment:
  // the block that needed it lies at its beginning. `blind_` has to guess.
  void use(CachingAllocatorOptions options) {
    free_all();
    torchs::emptyCache();
    ASSERT_EQ(stats().reserved_bytes[0].current, 0) << "somebody else uses torch's allocator";
    c10::CachingAllocator::setAllocatorSettings(options.expandable_segments ? "expandable_segments:True"
                                                                            : "expandable_segments:False");
    const double fraction =
        options.limit_bytes ? static_cast<double>(*options.limit_bytes) / static_cast<double>(device_bytes())
                            : 1.0;
    torchs::setMemoryFraction(fraction, 0);
    torchs::resetAccumulatedStats(0);
    torchs::resetPeakStats(0);
    options.device_bytes = device_bytes();
    blind_ = CachingAllocator(options);
    options.place_segment = [this](std::uint64_t) { return reinterpret_cast<std::uint64_t>(pointer_); };
    model_ = CachingAllocator(options);
  }

  void play(std::uint64_t seed, int events, std::uint64_t most_live) {
    RandomSteps steps(seed, most_live);
    for (int i = 0; i < events; ++i) {
      const Step step = steps.next(live_.size(), live_bytes_);
      step.bytes == 0 ? free(step.which) : allocate(step.bytes);
      compare();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", event " << i << ", " << step.bytes << " bytes";
    }
  }

  void allocate(std::uint64_t bytes) {
    pointer_ = nullptr;
    try {
      pointer_ = torchs::raw_alloc(bytes);
    } catch (const c10::OutOfMemoryError&) {
      ++refused_;
    }
    const auto model = model_.allocate(bytes);
    const auto blind = blind_.allocate(bytes);
    ASSERT_EQ(model.has_value(), pointer_ != nullptr);
    if (!model) {
      blind_.free(blind.value_or(0));
      return;
    }
    EXPECT_EQ(model_.address(*model), reinterpret_cast<std::uint64_t>(pointer_));
    live_.push_back({pointer_, *model, blind.value_or(0), bytes});
    live_bytes_ += bytes;
  }

  void free(std::size_t which) {
    const Live gone = live_[which];
    live_[which] = live_.back();
    live_.pop_back();
    live_bytes_ -= gone.bytes;
    torchs::raw_delete(gone.real);
    model_.free(gone.model);
    blind_.free(gone.blind);
  }

  void free_all() {
    while (!live_.empty()) free(live_.size() - 1);
  }

  void compare() {
    const auto real = stats();
    ASSERT_EQ(model_.allocated_bytes(), static_cast<std::uint64_t>(real.allocated_bytes[0].current));
    ASSERT_EQ(model_.reserved_bytes(), static_cast<std::uint64_t>(real.reserved_bytes[0].current));
    ASSERT_EQ(model_.peak_allocated_bytes(), static_cast<std::uint64_t>(real.allocated_bytes[0].peak));
    ASSERT_EQ(model_.peak_reserved_bytes(), static_cast<std::uint64_t>(real.reserved_bytes[0].peak));
    ASSERT_EQ(model_.retries(), static_cast<std::uint64_t>(real.num_alloc_retries));
  }

  // From here on the model is one that begins with what torch says is there.
  void begin_with_what_is_there(CachingAllocatorOptions options) {
    std::map<std::uint64_t, CachingAllocator::Handle> there;  // by address
    options.device_bytes = device_bytes();
    options.place_segment = [this](std::uint64_t) { return reinterpret_cast<std::uint64_t>(pointer_); };
    memory::Tracker tracker({.device = c10::Device(c10::kCUDA, 0)});
    model_ =
        CachingAllocator(options, tracker.layout(), [&](const auto& block, CachingAllocator::Handle handle) {
          EXPECT_NE(block.id, 0u) << "the tracker knows what is there";
          there[block.address] = handle;
        });
    for (Live& live : live_) live.model = there.at(reinterpret_cast<std::uint64_t>(live.real));
    torchs::resetAccumulatedStats(0);
    torchs::resetPeakStats(0);
  }

  // How far off the peak is when addresses are guessed; a finding, not a promise.
  void report_blind(const std::string& name) {
    const auto guessed = static_cast<double>(blind_.peak_reserved_bytes());
    const auto real = static_cast<double>(model_.peak_reserved_bytes());
    std::cout << name << ": peak reserved " << format_bytes(model_.peak_reserved_bytes())
              << ", with guessed addresses " << 100 * (guessed / real - 1) << " % off\n";
  }

  static c10::CachingDeviceAllocator::DeviceStats stats() { return torchs::getDeviceStats(0); }

  CachingAllocator model_;
  CachingAllocator blind_;
  std::vector<Live> live_;
  std::uint64_t live_bytes_ = 0;
  void* pointer_ = nullptr;
  int refused_ = 0;
};

TEST_F(CachingAllocatorCuda, ClassicSegmentsAgreeAtEveryEvent) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(use({}));
    ASSERT_NO_FATAL_FAILURE(play(seed, 3000, 3_GiB));
    report_blind("classic");
  }
}

TEST_F(CachingAllocatorCuda, ExpandableSegmentsAgreeAtEveryEvent) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(use({.expandable_segments = true}));
    ASSERT_NO_FATAL_FAILURE(play(seed, 3000, 3_GiB));
    report_blind("expandable");
  }
}

// As a session finds it: parameters in segments of fixed sizes, states in those that grow.
TEST_F(CachingAllocatorCuda, OneThatBeginsWithWhatIsThereAgreesAtEveryEvent) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(use({}));
    ASSERT_NO_FATAL_FAILURE(play(seed, 500, 1_GiB));
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
    ASSERT_NO_FATAL_FAILURE(begin_with_what_is_there({.expandable_segments = true}));
    ASSERT_NO_FATAL_FAILURE(play(seed + 100, 1500, 3_GiB));
    if (seed % 2 == 0) torchs::emptyCache();
    ASSERT_NO_FATAL_FAILURE(begin_with_what_is_there({.expandable_segments = true}));
    ASSERT_NO_FATAL_FAILURE(play(seed + 200, 1500, 3_GiB));
  }
}

// The limit is no multiple of 2 MiB, so that the rounding of a fraction cannot decide.
TEST_F(CachingAllocatorCuda, AtTheLimitClassicSegmentsAgree) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(use({.limit_bytes = 1_GiB + 1_MiB}));
    ASSERT_NO_FATAL_FAILURE(play(seed, 3000, 1_GiB));
  }
  EXPECT_GT(refused_, 0);
}

TEST_F(CachingAllocatorCuda, AtTheLimitExpandableSegmentsAgree) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(use({.expandable_segments = true, .limit_bytes = 1_GiB + 1_MiB}));
    ASSERT_NO_FATAL_FAILURE(play(seed, 3000, 1_GiB));
  }
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace snug::plan
