#include "snug/zero/gloo_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace snug::zero::over_gloo {
namespace {

using Role = std::function<void(Group&)>;

// Every rank in a thread of its own; what the first of them throws.
void as_ranks(int size, const Role& role, const GlooOptions& options = {.address = "127.0.0.1"}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failed;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        role(*connect_gloo(store, rank, size, at::kCPU, options));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failed) std::rethrow_exception(failed);
}

std::vector<at::Tensor> random_parts(int size, std::int64_t elements, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(at::randn({elements}).to(type));
  return parts;
}

at::Tensor piece_of(const at::Tensor& whole, const Piece& piece) {
  return whole.narrow(0, piece.begin, piece.count);
}

class Sizes : public testing::TestWithParam<std::tuple<int, std::int64_t, at::ScalarType>> {};

TEST_P(Sizes, SumsAreInRankOrderWithOneRounding) {
  const auto [size, elements, type] = GetParam();
  const std::vector<at::Tensor> parts = random_parts(size, elements, type);
  at::Tensor sum = parts[0].to(at::kFloat);
  for (int rank = 1; rank < size; ++rank) sum = sum + parts[static_cast<std::size_t>(rank)].to(at::kFloat);
  sum = sum.to(type);
  const Pieces pieces = divide(elements, size);
  as_ranks(size, [&, type = type](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const at::Tensor mine = parts[rank].clone();
    group.reduce_scatter(mine, pieces, "a gradient")->wait();
    EXPECT_TRUE(at::equal(piece_of(mine, pieces[rank]), piece_of(sum, pieces[rank])));
    group.all_gather(mine, pieces, "a gradient")->wait();
    EXPECT_TRUE(at::equal(mine, sum)) << "rank " << rank << " of " << toString(type);
  });
}

INSTANTIATE_TEST_SUITE_P(Gloo, Sizes,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(1, 100, 3'000'001),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)));

TEST(Gloo, CarriesUnevenPieces) {
  const Pieces pieces{{0, 0}, {0, 7}, {7, 3}};
  as_ranks(3, [&](Group& group) {
    const at::Tensor whole = at::zeros({10}, at::kLong);
    const Piece mine = pieces[static_cast<std::size_t>(group.rank())];
    piece_of(whole, mine).copy_(at::arange(mine.begin, mine.begin + mine.count));
    group.all_gather(whole, pieces, "numbers")->wait();
    EXPECT_TRUE(at::equal(whole, at::arange(10)));
  });
}

TEST(Gloo, DoesManyInTheOrderInWhichTheyWereAskedFor) {
  as_ranks(3, [](Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<CollectivePtr> copies;
    for (int i = 1; i <= 20; ++i) {
      tensors.push_back(at::full({i}, group.rank() + i, at::kFloat));
      copies.push_back(group.reduce_scatter(tensors.back(), divide(i, 3), "one of many"));
    }
    for (int i = 20; i >= 1; --i) {
      copies[static_cast<std::size_t>(i - 1)]->wait();
      const Piece mine = divide(i, 3)[static_cast<std::size_t>(group.rank())];
      EXPECT_TRUE(at::equal(piece_of(tensors[static_cast<std::size_t>(i - 1)], mine),
                            at::full({mine.count}, 3.0F * static_cast<float>(i) + 3)));
    }
  });
}

TEST(Gloo, ExchangesTexts) {
  as_ranks(3, [](Group& group) {
    const auto texts = group.exchange(std::string(static_cast<std::size_t>(group.rank()) * 5, 'x'), "texts");
    EXPECT_EQ(texts, (std::vector<std::string>{"", "xxxxx", "xxxxxxxxxx"}));
  });
}

TEST(Gloo, NamesTheRankThatIsLost) {
  const auto run = [](Group& group) {
    if (group.rank() == 1) return;
    group.reduce_scatter(at::zeros({100}), divide(100, 2), "layers.3")->wait();
  };
  try {
    as_ranks(2, run);
    FAIL() << "nothing was thrown";
  } catch (const RankFailure& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("rank 1 is lost in the reduce-scatter of layers.3: "))
        << error.what();
  }
}

TEST(Gloo, NamesTheRankThatDoesNotCome) {
  const auto run = [](Group& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    if (group.rank() == 0) group.all_gather(at::zeros({100}), divide(100, 2), "layers.3")->wait();
  };
  EXPECT_THROW(as_ranks(2, run, {.address = "127.0.0.1", .timeout = std::chrono::milliseconds(100)}),
               RankFailure);
}

TEST(Gloo, EndsWhatIsUnderWayWhenItIsCalledOff) {
  as_ranks(2, [](Group& group) {
    if (group.rank() == 0) {
      const CollectivePtr copy = group.all_gather(at::zeros({100}), divide(100, 2), "layers.3");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.abort(std::make_exception_ptr(RankFailure("rank 1 went home")));
      EXPECT_THROW(copy->wait(), RankFailure);
      EXPECT_THROW(group.all_gather(at::zeros({100}), divide(100, 2), "layers.3"), RankFailure);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
}

}  // namespace
}  // namespace snug::zero::over_gloo
