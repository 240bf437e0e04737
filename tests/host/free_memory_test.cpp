#include "snug/host/free_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/arena.h"
#include "tests/support/temporary_folder.h"

namespace snug::host {
namespace {

class FreeMemory : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    snug::testing::write_file(root / path, text);
  }
  void machine(std::uint64_t kib) {
    write("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:        1 kB\nMemAvailable:   " +
                              std::to_string(kib) + " kB\nBuffers: 3 kB\n");
  }
  void group2(const std::string& at, const std::string& limit, std::uint64_t usage,
              std::uint64_t inactive_file) {
    const std::string folder = "sys/fs/cgroup" + at;
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", std::to_string(usage) + "\n");
    write(folder + "/memory.stat", "anon 77\nfile 5000\ninactive_anon 99\ninactive_file " +
                                       std::to_string(inactive_file) + "\nslab 3\n");
  }
  void group1(const std::string& at, const std::string& limit, std::uint64_t usage) {
    const std::string folder = "sys/fs/cgroup/memory" + at;
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(folder + "/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  }
  std::uint64_t free() { return free_host_bytes_below(root.path()); }

  snug::testing::TemporaryFolder root;
};

TEST_F(FreeMemory, OfTheMachineWhereThereIsNoGroup) {
  machine(1000);
  EXPECT_EQ(free(), 1000_KiB);
}

TEST_F(FreeMemory, OfTheGroupIfThatIsLess) {
  machine(1000);
  write("proc/self/cgroup", "0::/\n");
  group2("", "5000", 1000, 0);
  EXPECT_EQ(free(), 4000u);
  group2("", "5000000", 1000, 0);
  EXPECT_EQ(free(), 1000_KiB);
}

TEST_F(FreeMemory, TheLowestLimitIsThatOfTheContainer) {
  write("proc/self/cgroup", "0::/a/b\n");
  group2("/a", "9000", 8000, 0);
  group2("/a/b", "max", 1000, 0);
  EXPECT_EQ(host_limit_bytes_below(root.path()), 9000u) << "whatever of it is used";
  group2("/a/b", "7000", 1000, 0);
  EXPECT_EQ(host_limit_bytes_below(root.path()), 7000u);
}

TEST_F(FreeMemory, AGroupWithoutALimit) {
  machine(1000);
  write("proc/self/cgroup", "0::/user.slice\n");
  group2("/user.slice", "max", 1000, 0);
  EXPECT_EQ(free(), 1000_KiB);
}

TEST_F(FreeMemory, CachedFilesCanGo) {
  machine(1000);
  write("proc/self/cgroup", "0::/a\n");
  group2("/a", "5000", 4500, 3000);
  EXPECT_EQ(free(), 3500u);
  group2("/a", "5000", 4500, 9000);
  EXPECT_EQ(free(), 5000u) << "more cached than used: the figures are read one after the other";
}

TEST_F(FreeMemory, AGroupOverItsLimitHasNothing) {
  machine(1000);
  write("proc/self/cgroup", "0::/a\n");
  group2("/a", "5000", 6000, 10);
  EXPECT_EQ(free(), 0u);
}

TEST_F(FreeMemory, EveryLevelCounts) {
  machine(1000);
  write("proc/self/cgroup", "0::/a/b/c\n");
  group2("/a", "9000", 1000, 0);
  group2("/a/b", "7000", 1000, 0);
  group2("/a/b/c", "max", 1000, 0);
  EXPECT_EQ(free(), 6000u);
  group2("/a", "4000", 1000, 0);
  EXPECT_EQ(free(), 3000u);
  group2("/a/b/c", "2000", 1000, 0);
  EXPECT_EQ(free(), 1000u);
}

// Without a namespace of its own a container sees the host's path, and its group as the mounted root.
TEST_F(FreeMemory, APathThatIsNotMounted) {
  machine(1000);
  write("proc/self/cgroup", "0::/docker/0123\n");
  group2("", "5000", 1000, 0);
  EXPECT_EQ(free(), 4000u);
}

TEST_F(FreeMemory, APathOutsideOfWhatIsMounted) {
  machine(1000);
  write("proc/self/cgroup", "0::/../other\n");
  group2("", "5000", 1000, 0);
  group2("/../other", "50", 0, 0);
  EXPECT_EQ(free(), 4000u);
}

TEST_F(FreeMemory, Version1) {
  machine(1000);
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b:c\n3:cpuset:/z\n0::/\n");
  group1("", "9223372036854771712", 1000000);
  EXPECT_EQ(free(), 1000_KiB);
  group1("/a", "9000", 1000);
  EXPECT_EQ(free(), 8100u);
  group1("/a/b:c", "7000", 1000);
  EXPECT_EQ(free(), 6100u);
  group1("/z", "1", 1);
  EXPECT_EQ(free(), 6100u);
}

TEST_F(FreeMemory, SaysWhatIsMissing) {
  EXPECT_THROW(free(), Error);
  write("proc/meminfo", "MemTotal: 3 kB\n");
  try {
    free();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("proc/meminfo: has no line MemAvailable"), std::string::npos);
  }
}

TEST_F(FreeMemory, OfThisMachine) {
  EXPECT_GT(free_host_bytes(), 1_MiB);
  EXPECT_LT(free_host_bytes(), std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace snug::host
