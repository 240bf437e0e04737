#include "snug/io/stored_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/io/weight_files.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

at::Tensor numbers(std::int64_t begin, std::int64_t end) {
  return at::arange(begin, end, at::kFloat);
}

TensorSource piece(const std::string& name, std::int64_t begin, std::int64_t end) {
  return source_of(StoredTensors::piece_name(name, begin), numbers(begin, end));
}

class Pieces : public ::testing::Test {
 protected:
  StoredTensors open(const std::vector<std::vector<TensorSource>>& files) {
    std::vector<std::filesystem::path> paths;
    for (std::size_t i = 0; i < files.size(); ++i) {
      paths.push_back(folder_ / ("model-" + std::to_string(i) + ".safetensors"));
      write_safetensors(paths.back(), files[i]);
    }
    return StoredTensors(paths, {{"a", {3, 4}}, {"b", {5}}});
  }
  std::string refusal(const std::vector<std::vector<TensorSource>>& files) {
    return message_of<Error>([&] { open(files); });
  }

  TemporaryFolder folder_;
};

TEST_F(Pieces, AreOneTensorInAnyOrderOfFiles) {
  const StoredTensors stored =
      open({{piece("a", 7, 12), piece("b", 0, 5)}, {piece("a", 0, 5)}, {piece("a", 5, 7)}});
  ASSERT_EQ(stored.all().size(), 2u);
  const StoredTensor& a = *stored.find("a");
  EXPECT_TRUE(at::equal(a.whole(), numbers(0, 12).view({3, 4})));
  const at::Tensor middle = at::zeros({4}, at::kDouble);
  a.copy_to(middle, 4);
  EXPECT_TRUE(at::equal(middle, numbers(4, 8).to(at::kDouble)));
  EXPECT_EQ(stored.find("c"), nullptr);
}

TEST_F(Pieces, ThatAreMissingOrThereTwiceAreNamed) {
  const TensorSource b = piece("b", 0, 5);
  EXPECT_NE(refusal({{b, piece("a", 0, 5)}, {piece("a", 7, 12)}}).find("'a' lacks the elements from 5 on"),
            std::string::npos);
  EXPECT_NE(
      refusal({{b, piece("a", 0, 7)}, {piece("a", 5, 12)}}).find("'a' has twice the elements from 5 on"),
      std::string::npos);
  EXPECT_NE(refusal({{b, piece("a", 0, 5)}}).find("'a' ends at element 5 of 12"), std::string::npos);
  EXPECT_NE(refusal({{b}}).find("'a' is in no file"), std::string::npos);
  EXPECT_NE(refusal({{b, piece("a", 0, 12), piece("c", 0, 2)}}).find("that nobody has named"),
            std::string::npos);
}

// Three ranks, each in a thread; what they throw.
std::vector<std::string> write_as_ranks(const std::filesystem::path& folder, int fails) {
  constexpr int kRanks = 3;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::string>> rounds;
  std::vector<std::string> thrown(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::size_t round = 0;
      const auto exchange = [&](const std::string& mine) {
        std::unique_lock lock(mutex);
        if (rounds.size() <= round) rounds.emplace_back();
        rounds[round].push_back(std::to_string(rank) + mine);
        changed.notify_all();
        changed.wait(lock, [&] { return rounds[round].size() == kRanks; });
        std::vector<std::string> texts(kRanks);
        for (const std::string& text : rounds[round])
          texts[static_cast<std::size_t>(text[0] - '0')] = text.substr(1);
        ++round;
        return texts;
      };
      const WritingRanks together{.rank = rank,
                                  .ranks = kRanks,
                                  .model = {{"a", {3, 4}}},
                                  .optimizer = {{"m.a", {3, 4}}},
                                  .exchange = exchange};
      TrainingState state{.facts = {{"step", 3}}, .model_config = {{"model_type", "llama"}}};
      state.model = {piece("a", rank * 4, rank * 4 + 4)};
      state.optimizer = {piece("m.a", rank * 4, rank * 4 + 4)};
      if (rank == fails)
        state.model[0].make = []() -> at::Tensor { throw RunError("the disk of this rank is full"); };
      try {
        write_training_state(folder, state, &together);
      } catch (const RunError& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TEST(WrittenByRanks, AStateIsReadAsOne) {
  const TemporaryFolder run;
  const auto folder = run / "step-3";
  EXPECT_EQ(write_as_ranks(folder, -1), std::vector<std::string>(3));
  EXPECT_TRUE(at::equal(open_weights(folder).find("a")->whole(), numbers(0, 12).view({3, 4})));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_TRUE(
        at::equal(SavedState(folder, rank, 2).optimizer().find("m.a")->whole(), numbers(0, 12).view({3, 4})));
}

TEST(WrittenByRanks, AStateThatOneCannotWriteIsThereForNobody) {
  const TemporaryFolder run;
  EXPECT_EQ(write_as_ranks(run / "step-3", 1), std::vector<std::string>(3, "the disk of this rank is full"));
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

TEST(WrittenByRanks, AFileThatIsMissingOrDamagedIsNamedByTheRankThatLooksAtIt) {
  const TemporaryFolder run;
  const auto folder = run / "step-3";
  write_as_ranks(folder, -1);
  for (const char* name :
       {"model-rank-1-of-3.safetensors", "optimizer-rank-2-of-3.safetensors", "shapes.json"}) {
    const std::string good = testing::read_file(folder / name);
    std::string bad = good;
    bad.back() ^= 1;
    const auto refusals = [&] {
      int refused = 0;
      for (int rank = 0; rank < 3; ++rank) try {
          SavedState(folder, rank, 3);
        } catch (const Error& error) {
          refused += std::string(error.what()).find(name) != std::string::npos;
        }
      return refused;
    };
    testing::write_file(folder / name, bad);
    EXPECT_GE(refusals(), 1) << name;
    std::filesystem::remove(folder / name);
    EXPECT_GE(refusals(), 1) << name;
    testing::write_file(folder / name, good);
  }
}

}  // namespace
}  // namespace snug::io
