// Ranks of one machine, each in a thread: how they come together, and how they fail together.
#include "snug/zero/join.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "snug/zero/meeting.h"
#include "tests/support/temporary_folder.h"

namespace snug::zero::joining {
namespace {

using std::chrono::milliseconds;

int free_port() {
  return Listener("127.0.0.1", 0).port();
}

// What each rank threw.
std::map<int, std::string> as_ranks(int size, const std::function<void(Group&)>& role,
                                    milliseconds timeout = milliseconds(20'000)) {
  const int port = free_port();
  std::map<int, std::string> thrown;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto group = join({.rank = rank, .size = size, .address = "127.0.0.1", .port = port}, at::kCPU,
                                {.timeout = timeout, .end = [](const std::string&) {}});
        role(*group);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        thrown[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void sum(Group& group, const std::string& what) {
  const at::Tensor numbers = at::full({64}, group.rank() + 1.0F);
  const Pieces pieces = divide(64, group.size());
  group.reduce_scatter(numbers, pieces, what)->wait();
  group.all_gather(numbers, pieces, what)->wait();
  const auto size = static_cast<float>(group.size());
  EXPECT_TRUE(at::equal(numbers, at::full({64}, size * (size + 1) / 2)));
}

TEST(Join, BringsRanksTogether) {
  for (const int size : {1, 2, 4}) {
    const auto thrown = as_ranks(size, [](Group& group) {
      if (group.size() > 1) sum(group, "numbers");
    });
    EXPECT_TRUE(thrown.empty()) << thrown.begin()->second;
  }
}

// Sockets of this process that listen, by address.
std::set<std::string> listening() {
  std::set<std::string> inodes, addresses;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmit, user, wait, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmit >> user >> wait >> inode;
      if (state == "0A" && inodes.contains(inode)) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(Join, ListensAtTheAddressWhereRanksMeetAndNowhereElse) {
  const std::set<std::string> before = listening();
  std::set<std::string> during;
  as_ranks(2, [&](Group& group) {
    sum(group, "numbers");
    if (group.rank() == 0) during = listening();
    sum(group, "more numbers");
  });
  for (const std::string& address : before) during.erase(address);
  EXPECT_EQ(during, (std::set<std::string>{"0100007F"})) << "127.0.0.1, in the kernel's order";
}

TEST(Join, APortInUseAndAnAddressOfAnotherMachineAreNamed) {
  const Listener taken("127.0.0.1", 0);
  const auto join_at = [](const std::string& address, int port) {
    return testing::message_of<Error>([&] {
      join({.rank = 0, .size = 2, .address = address, .port = port}, at::kCPU,
           {.timeout = milliseconds(300)});
    });
  };
  EXPECT_NE(join_at("127.0.0.1", taken.port()).find("is in use"), std::string::npos);
  EXPECT_NE(join_at("192.0.2.1", free_port()).find("is no address of this machine"), std::string::npos);
  EXPECT_NE(join_at("no.such.machine.invalid", 1234).find("no machine is called"), std::string::npos);
}

TEST(Join, RanksThatDoNotComeAreNamed) {
  const int port = free_port();
  EXPECT_EQ(testing::message_of<RankFailure>([&] {
              join({.rank = 0, .size = 3, .address = "127.0.0.1", .port = port}, at::kCPU,
                   {.timeout = milliseconds(300)});
            }),
            "of 3 ranks, 1, 2 did not come within 0.3 s");
  EXPECT_NE(testing::message_of<RankFailure>([&] {
              join({.rank = 1, .size = 2, .address = "127.0.0.1", .port = port}, at::kCPU,
                   {.timeout = milliseconds(300)});
            }).find("rank 0 does not answer at 127.0.0.1"),
            std::string::npos);
}

TEST(Join, ARankThatIsThereTwiceIsNamed) {
  const int port = free_port();
  std::mutex mutex;
  std::multiset<std::string> thrown;
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 1})
    threads.emplace_back([&, rank] {
      const std::string message = testing::message_of<Error>([&] {
        join({.rank = rank, .size = 3, .address = "127.0.0.1", .port = port}, at::kCPU,
             {.timeout = milliseconds(5000)});
      });
      const std::lock_guard lock(mutex);
      thrown.insert(message);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(thrown.count("rank 1 is there twice"), 2u);
  EXPECT_EQ(thrown.count("rank 1 of 3 is there twice: every process needs a RANK of its own"), 1u);
}

TEST(Join, ADifferenceBetweenRanksIsNamedOnAll) {
  const auto thrown = as_ranks(3, [](Group& group) {
    check_agree(group, {{"seed", 1}, {"model", {{"layers", 2}}}});
    check_agree(group, {{"seed", 1}, {"model", {{"layers", group.rank() == 2 ? 3 : 2}}}});
  });
  ASSERT_EQ(thrown.size(), 3u);
  for (const auto& [rank, message] : thrown)
    EXPECT_EQ(message, "ranks do not train the same: model.layers 2 and 3 on ranks 0 and 2");
}

TEST(Failing, ARankThatReportsEndsAllOthersWithItsWords) {
  const auto thrown = as_ranks(3, [](Group& group) {
    sum(group, "numbers");
    if (group.rank() == 1) {
      EXPECT_TRUE(group.report("out of memory"));
      throw std::runtime_error("out of memory");
    }
    sum(group, "layers.3");
  });
  ASSERT_EQ(thrown.size(), 3u);
  EXPECT_EQ(thrown.at(0), "rank 1 failed: out of memory");
  EXPECT_EQ(thrown.at(2), "rank 1 failed: out of memory");
}

TEST(Failing, ARankThatLeavesWithAnExceptionEndsAllOthers) {
  const auto thrown = as_ranks(3, [](Group& group) {
    if (group.rank() == 2) throw std::runtime_error("a bug");
    sum(group, "layers.3");
  });
  ASSERT_EQ(thrown.size(), 3u);
  for (const int rank : {0, 1})
    EXPECT_TRUE(thrown.at(rank).starts_with("rank 2 failed: it ended with an exception") ||
                thrown.at(rank).starts_with("rank 2 is lost"))
        << thrown.at(rank);
  EXPECT_EQ(thrown.at(0), thrown.at(1));
}

// Its thread lives, and says so: but it does not come.
TEST(Failing, ARankThatDoesNotComeIsNamedByAll) {
  const auto thrown = as_ranks(
      3,
      [](Group& group) {
        sum(group, "numbers");
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
        sum(group, "layers.3");
      },
      milliseconds(1000));
  ASSERT_EQ(thrown.size(), 3u);
  for (const auto& [rank, message] : thrown) {
    EXPECT_TRUE(message.starts_with("rank 1 of 3 has not come while rank ")) << rank << ": " << message;
    EXPECT_NE(message.find("in the reduce-scatter of layers.3"), std::string::npos) << message;
  }
}

TEST(Failing, RanksThatEndAtDifferentTimesAreNoFailure) {
  const auto thrown = as_ranks(
      3,
      [](Group& group) {
        sum(group, "numbers");
        std::this_thread::sleep_for(milliseconds(group.rank() * 400));
      },
      milliseconds(1000));
  EXPECT_TRUE(thrown.empty()) << thrown.begin()->second;
}

}  // namespace
}  // namespace snug::zero::joining
