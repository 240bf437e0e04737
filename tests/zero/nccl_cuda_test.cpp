// NCCL with as many ranks as one GPU allows: one.
#include "snug/zero/nccl_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "snug/zero/join.h"
#include "snug/zero/meeting.h"
#include "snug/zero/sharding.h"
#include "tests/support/temporary_folder.h"

namespace snug::zero::over_nccl {
namespace {

const c10::Device kGpu(at::kCUDA, 0);

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "NO GPU: collectives over NCCL were not tested";
    if (nccl_name_of(kGpu).empty()) GTEST_SKIP() << "NO GPU for NCCL: this build has none";
  }
};

std::shared_ptr<Group> alone() {
  return join({}, kGpu, {.backend = Backend::Nccl});
}

TEST_F(Nccl, OfOneRankChangesNothing) {
  const auto group = alone();
  EXPECT_EQ(group->carrier(), "NCCL");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor numbers = at::randn({3'000'001}, at::TensorOptions(kGpu)).to(type);
    const at::Tensor before = numbers.clone();
    group->reduce_scatter(numbers, {{0, numbers.numel()}}, "a gradient")->wait();
    group->all_gather(numbers, {{0, numbers.numel()}}, "a gradient")->wait();
    EXPECT_TRUE(at::equal(numbers, before));
  }
  EXPECT_EQ(group->exchange("text", "a text"), std::vector<std::string>{"text"});
}

TEST_F(Nccl, BeginsAfterWhatTheStreamWasGivenAndEndsBeforeWhatItIsGivenThen) {
  const auto group = alone();
  for (int i = 0; i < 50; ++i) {
    const at::Tensor numbers = at::zeros({1 << 20}, at::TensorOptions(kGpu));
    for (int k = 0; k < 8; ++k) numbers.add_(1);
    const CollectivePtr sum = group->reduce_scatter(numbers, {{0, numbers.numel()}}, "a gradient");
    EXPECT_EQ(sum->number(), static_cast<std::uint64_t>(8 + i + 1)) << "after those that take NCCL's memory";
    sum->wait();
    numbers.mul_(2);
    EXPECT_TRUE((numbers == 16).all().item<bool>());
    EXPECT_TRUE(sum->is_done());
    sum->finish();
  }
}

TEST_F(Nccl, SumsOnlyNumbersThatAreAddedUpInFp32) {
  const auto group = alone();
  const at::Tensor numbers = at::arange(8, at::TensorOptions(kGpu).dtype(at::kLong));
  EXPECT_NE(testing::message_of<Error>([&] {
              group->reduce_scatter(numbers, {{0, 8}}, "numbers");
            }).find("Long"),
            std::string::npos);
  group->all_gather(numbers, {{0, 8}}, "numbers")->wait();
  EXPECT_TRUE(at::equal(numbers.cpu(), at::arange(8)));
}

TEST_F(Nccl, ThrowsWhyItWasCalledOff) {
  const auto group = alone();
  const at::Tensor numbers = at::zeros({8}, at::TensorOptions(kGpu));
  const CollectivePtr sum = group->reduce_scatter(numbers, {{0, 8}}, "a gradient");
  group->abort(std::make_exception_ptr(RankFailure("rank 7 is lost")));
  const auto text = [](auto call) { return testing::message_of<RankFailure>(call); };
  EXPECT_EQ(text([&] { sum->wait(); }), "rank 7 is lost");
  EXPECT_EQ(text([&] { sum->finish(); }), "rank 7 is lost");
  EXPECT_EQ(text([&] { group->all_gather(numbers, {{0, 8}}, "a weight"); }), "rank 7 is lost");
  group->abort(std::make_exception_ptr(RankFailure("and another one")));
  EXPECT_EQ(text([&] { sum->wait(); }), "rank 7 is lost");
}

TEST_F(Nccl, CarriesTogetherWhatIsAskedForTogether) {
  const auto group = alone();
  std::vector<at::Tensor> tensors;
  std::vector<CollectivePtr> sums;
  const auto ask = [&](float number) {
    tensors.push_back(at::full({1 << 20}, number, at::TensorOptions(kGpu)));
    sums.push_back(group->reduce_scatter(tensors.back(), {{0, 1 << 20}}, "a gradient"));
  };
  group->together([&] {
    ask(1);
    ask(2);
    EXPECT_FALSE(sums[0]->is_done()) << "it is not launched before all are asked for";
    sums[1]->wait();  // nor later than it is waited for
    EXPECT_TRUE((tensors[1] == 2).all().item<bool>());
    group->together([&] { ask(3); });
    EXPECT_FALSE(sums[2]->is_done());
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i]->finish();
    EXPECT_TRUE(sums[i]->is_done());
    EXPECT_TRUE((tensors[i] == static_cast<float>(i + 1)).all().item<bool>());
  }
  EXPECT_GT(group->device_bytes(), 0u) << "of NCCL's buffers";
}

// Other ranks would wait for what was not asked for any more.
TEST_F(Nccl, IsCalledOffByAnErrorBetweenWhatIsAskedForTogether) {
  const auto group = alone();
  const at::Tensor numbers = at::zeros({8}, at::TensorOptions(kGpu));
  CollectivePtr sum;
  const auto text = [](auto call) { return testing::message_of<Error>(call); };
  EXPECT_EQ(text([&] {
              group->together([&] {
                sum = group->reduce_scatter(numbers, {{0, 8}}, "a gradient");
                fail("something else");
              });
            }),
            "something else");
  EXPECT_EQ(text([&] { sum->wait(); }), "something else");
  EXPECT_EQ(text([&] { group->all_gather(numbers, {{0, 8}}, "a weight"); }), "something else");
}

TEST_F(Nccl, IsCalledOffWhileSomethingIsAskedFor) {
  const auto group = alone();
  const at::Tensor numbers = at::zeros({8}, at::TensorOptions(kGpu));
  EXPECT_THROW(group->together([&] {
    group->reduce_scatter(numbers, {{0, 8}}, "a gradient");
    group->abort(std::make_exception_ptr(RankFailure("rank 7 is lost")));
  }),
               RankFailure);
  EXPECT_THROW(group->reduce_scatter(numbers, {{0, 8}}, "a gradient"), RankFailure);
}

// What two ranks that meet on this GPU throw, by rank; empty: joined over this.
std::map<int, std::string> two_on_this_gpu(Backend backend) {
  const int port = Listener("127.0.0.1", 0).port();
  std::map<int, std::string> said;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::string text;
      try {
        const auto group =
            join({.rank = rank, .size = 2, .address = "127.0.0.1", .port = port}, kGpu,
                 {.backend = backend, .timeout = std::chrono::seconds(20), .end = [](const std::string&) {}});
        text = group->carrier();
        group->exchange("", "end");
      } catch (const std::exception& error) {
        text = error.what();
      }
      const std::lock_guard lock(mutex);
      said[rank] = text;
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST_F(Nccl, IsNotTakenByRanksOfOneGpu) {
  for (const auto& [rank, text] : two_on_this_gpu(Backend::Auto)) EXPECT_EQ(text, "Gloo") << rank;
  for (const auto& [rank, text] : two_on_this_gpu(Backend::Nccl))
    EXPECT_NE(text.find("ranks 0 and 1 have the same GPU"), std::string::npos) << rank << ": " << text;
}

}  // namespace
}  // namespace snug::zero::over_nccl
