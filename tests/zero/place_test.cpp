#include "snug/zero/place.h"

#include <gtest/gtest.h>

#include <map>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug::zero {
namespace {

using Set = std::map<std::string, std::string>;

std::optional<Place> place_in(const Set& set) {
  return place_from_environment([&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  });
}

TEST(Place, IsNoneWhereNobodySaysThatThereAreSeveral) {
  EXPECT_FALSE(place_in({}));
  EXPECT_FALSE(place_in({{"MASTER_ADDR", "10.0.0.1"}, {"LOCAL_RANK", "0"}}));
  EXPECT_FALSE(place_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})) << "a batch script";
}

TEST(Place, IsTorchrunsWhoseAgentMayListen) {
  Set set{{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "1234"}};
  auto place = *place_in(set);
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 8) << "nobody says how many";
  EXPECT_EQ(place.address, "10.0.0.1");
  EXPECT_EQ(place.port, 1234);
  EXPECT_FALSE(place.is_met_elsewhere);
  set["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  set["TORCHELASTIC_RESTART_COUNT"] = "2";
  place = *place_in(set);
  EXPECT_TRUE(place.is_met_elsewhere);
  EXPECT_EQ(place.meeting, "/2");
}

TEST(Place, IsThatOfMpirunAndSrun) {
  auto place = *place_in({{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(place.address, "127.0.0.1") << "all are on one machine";
  EXPECT_EQ(place.port, 29500);
  place = *place_in({{"SLURM_PROCID", "3"},
                     {"SLURM_STEP_NUM_TASKS", "16"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_TASKS_PER_NODE", "4(x4)"},
                     {"SLURM_STEP_NODELIST", "gpu[03-07,12],other"}});
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.address, "gpu03");
  const Set pmi{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(place_in(pmi)->address, "a");
}

TEST(Place, OfOneRankNeedsNoAddress) {
  EXPECT_EQ(place_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->size, 1);
}

TEST(Place, BadInputIsNamed) {
  const auto refuses = [](const Set& set, const std::string& says) {
    const std::string message = testing::message_of<Error>([&] { place_in(set); });
    EXPECT_NE(message.find(says), std::string::npos) << message;
  };
  refuses({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  refuses({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE must be at least 1, got 0");
  refuses({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK must be from 0 to 1, got 2");
  refuses({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK must be from 0 to 1, got -1");
  refuses({{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "RANK must be a whole number, got \"one\"");
  refuses({{"RANK", "1"}}, "RANK is set and WORLD_SIZE is not");
  refuses({{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set and RANK is not");
  refuses({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
          "MASTER_PORT must be from 1 to 65535, got 70000");
}

}  // namespace
}  // namespace snug::zero
