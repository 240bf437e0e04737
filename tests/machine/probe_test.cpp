#include "snug/machine/probe.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>

#include "snug/base/error.h"
#include "snug/machine/hardware_of.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

namespace snug::machine {
namespace {

namespace fs = std::filesystem;
using testing::FileSizeLimit;
using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;

// Milliseconds: each thing runs twice.
ProbeOptions small() {
  return {.layers = 2,
          .hidden = 32,
          .intermediate = 48,
          .vocabulary = 64,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 16,
          .tokens = {8, 16},
          .copy_bytes = 1_MiB,
          .adam_parameters = 1000,
          .disk_bytes = 8_MiB,
          .least_seconds = 0};
}

bool is_empty(const TemporaryFolder& folder) {
  return fs::is_empty(folder.path());
}

// $XDG_CACHE_HOME for one test.
class CacheHome {
 public:
  explicit CacheHome(const std::string& path) {
    if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
    ::setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  ~CacheHome() { before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME"); }
  CacheHome(const CacheHome&) = delete;  // it restores a variable of the whole process
  CacheHome& operator=(const CacheHome&) = delete;

 private:
  std::optional<std::string> before_;
};

plan::Hardware probed_cpu() {
  plan::Hardware hardware = plan::preset("cpu");
  hardware.name = device_name(c10::kCPU);
  hardware.is_estimate = false;
  return hardware;
}

TEST(Probe, MeasuresTheCpu) {
  TemporaryFolder folder;
  ProbeOptions options = small();
  options.disk_folder = folder.path();
  std::set<std::string> said;
  options.say = [&](const std::string& what) { said.insert(what); };
  const plan::Hardware hardware = probe(options);
  EXPECT_NO_THROW(plan::validate(hardware, "probe"));
  EXPECT_EQ(plan::from_json(plan::to_json(hardware), "probe"), hardware);
  EXPECT_FALSE(hardware.is_estimate);
  EXPECT_FALSE(hardware.is_gpu);
  EXPECT_EQ(hardware.name, device_name(c10::kCPU));
  EXPECT_EQ(hardware.memory_bytes, hardware.host_bytes);
  EXPECT_EQ(hardware.outside_bytes, 0u);
  EXPECT_EQ(hardware.to_host_rate, 0);
  EXPECT_EQ(hardware.to_device_rate, 0);
  EXPECT_EQ(hardware.both_ways_rate, 0);
  EXPECT_EQ(hardware.copy_slowdown, 0);
  EXPECT_GT(hardware.operation_seconds, 0);
  EXPECT_GT(hardware.disk_rate, 0);
  EXPECT_EQ(said.size(), 7u);
  EXPECT_TRUE(said.contains("the disk of " + folder.path().string()));
  EXPECT_TRUE(is_empty(folder));
}

TEST(Probe, LeavesOutTheDiskUnlessThereIsAFolderForIt) {
  EXPECT_EQ(probe(small()).disk_rate, 0);
}

TEST(Probe, EndsEarlyWhereAFigureTakesTooLong) {
  ProbeOptions options = small();
  options.most_seconds = 0;
  EXPECT_NO_THROW(plan::validate(probe(options), "probe"));
}

TEST(Probe, LeavesGradModeAsItWas) {
  ASSERT_TRUE(at::GradMode::is_enabled());
  probe(small());
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(Probe, NamesAFolderThatCannotBeWritten) {
  ProbeOptions options = small();
  options.disk_folder = "/nowhere";
  const std::string message = message_of<Error>([&] { probe(options); });
  EXPECT_EQ(message.find("/nowhere/"), 0u) << message;
  EXPECT_NE(message.find("cannot write"), std::string::npos) << message;
}

TEST(Probe, LeavesNoFileWhenTheDiskIsFull) {
  TemporaryFolder folder;
  ProbeOptions options = small();
  options.disk_folder = folder.path();
  const FileSizeLimit full(6_MiB);
  const std::string message = message_of<RunError>([&] { probe(options); });
  EXPECT_EQ(message.find(folder.path().string()), 0u) << message;
  EXPECT_TRUE(is_empty(folder));
}

TEST(HardwareHere, IsThePresetUntilThereIsAProbe) {
  TemporaryFolder folder;
  const CacheHome home(folder.path().string());
  EXPECT_EQ(probe_file(c10::kCPU), folder / "snug/hardware-cpu.json");
  EXPECT_EQ(probe_file(c10::kCUDA), folder / "snug/hardware-cuda.json");
  const HardwareHere before = hardware_here(c10::kCPU);
  EXPECT_EQ(before.hardware, plan::preset("cpu"));
  EXPECT_TRUE(before.file.empty());
  EXPECT_EQ(before.note, "an estimate; 'snug probe' measures it");

  fs::create_directory(folder / "snug");
  plan::save_hardware(probed_cpu(), probe_file(c10::kCPU));
  const HardwareHere after = hardware_here(c10::kCPU);
  EXPECT_EQ(after.hardware, probed_cpu());
  EXPECT_EQ(after.file, probe_file(c10::kCPU));
  EXPECT_EQ(after.note, "probed: " + probe_file(c10::kCPU).string());
}

TEST(HardwareHere, IsNotAnotherMachines) {
  TemporaryFolder folder;
  const CacheHome home(folder.path().string());
  fs::create_directory(folder / "snug");
  plan::Hardware other = probed_cpu();
  other.name = "Z80, 1 thread";
  plan::save_hardware(other, probe_file(c10::kCPU));
  const HardwareHere here = hardware_here(c10::kCPU);
  EXPECT_EQ(here.hardware, plan::preset("cpu"));
  EXPECT_EQ(here.note, concat("an estimate; ", probe_file(c10::kCPU).string(), " is of Z80, 1 thread"));
}

TEST(HardwareHere, OfADeviceThatIsNotHereIsWhatWasProbedLast) {
  if (at::hasCUDA()) GTEST_SKIP() << "a GPU is here";
  TemporaryFolder folder;
  const CacheHome home(folder.path().string());
  fs::create_directory(folder / "snug");
  plan::Hardware gpu = plan::preset("a100-40");
  gpu.is_estimate = false;
  plan::save_hardware(gpu, probe_file(c10::kCUDA));
  EXPECT_EQ(hardware_here(c10::kCUDA).hardware, gpu);
}

TEST(HardwareHere, RefusesADamagedFileAndSaysWhatToDo) {
  TemporaryFolder folder;
  const CacheHome home(folder.path().string());
  fs::create_directory(folder / "snug");
  const fs::path file = probe_file(c10::kCPU);
  for (const std::string& content : {std::string("{"), plan::to_json(plan::preset("h200")).dump(),
                                     std::string(R"({"name": "an older one"})")}) {
    write_file(file, content);
    const std::string message = message_of<Error>([] { hardware_here(c10::kCPU); });
    EXPECT_EQ(message.find(file.string()), 0u) << message;
    EXPECT_NE(message.find("run it again"), std::string::npos) << message;
  }
}

TEST(HardwareHere, CountsThreadsAsPartOfTheName) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(device_name(c10::kCPU).ends_with(", 3 threads")) << device_name(c10::kCPU);
  at::set_num_threads(1);
  EXPECT_TRUE(device_name(c10::kCPU).ends_with(", 1 thread")) << device_name(c10::kCPU);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace snug::machine
