#include "snug/machine/products.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "snug/base/error.h"
#include "snug/ops/product_choices.h"
#include "tests/support/temporary_folder.h"

namespace snug::machine {
namespace {

using testing::TemporaryFolder;
using testing::write_file;

class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
    ops::stop_races();
  }
  const TemporaryFolder folder_;
};

TEST_F(Products, ThatWonAreKeptBesideTheProbeAndJoinedWithOthers) {
  EXPECT_EQ(products_file(), folder_.path() / "snug" / "products.json");
  ops::note_choice("a race", 3, /*won=*/true);
  ops::note_choice("no race", 2, /*won=*/false);
  keep_products();
  EXPECT_EQ(read_json(products_file()), Json({{"a race", 3}}));
  write_file(products_file(), R"({"another process": 5, "a race": 1})");
  keep_products();
  EXPECT_EQ(read_json(products_file())["a race"], 1) << "nothing new is not written";
  ops::note_choice("a second race", 4, /*won=*/true);
  keep_products();
  EXPECT_EQ(read_json(products_file()), Json({{"a race", 1}, {"a second race", 4}, {"another process", 5}}));
}

TEST_F(Products, AreThoseOfAStateThenOfRacesBeforeThenRaced) {
  std::filesystem::create_directories(folder_.path() / "snug");
  write_file(products_file(), R"({"kept": 5, "both": 5})");
  EXPECT_FALSE(ops::choice_for("new", false).races) << "not before they may";
  race_products();
  products_from_json(Json{{"both", 6}}, "a state");
  EXPECT_EQ(ops::choice_for("kept", false).number, 5);
  EXPECT_EQ(ops::choice_for("kept", /*deterministic=*/true).number, std::nullopt);
  EXPECT_FALSE(ops::choice_for("kept", /*deterministic=*/true).races);
  EXPECT_EQ(ops::choice_for("both", /*deterministic=*/true).number, 6);
  EXPECT_TRUE(ops::choice_for("new", false).races);
  ops::note_choice("both", 7, /*won=*/false);
  EXPECT_EQ(ops::choice_for("both", false).number, 7) << "what was computed with stays";
  EXPECT_EQ(products_to_json()["both"], 7);
  EXPECT_FALSE(products_to_json().contains("kept")) << "a state has what its run used";
  race_products(false);
  EXPECT_EQ(ops::choice_for("kept", false).number, std::nullopt);
  EXPECT_FALSE(ops::choice_for("new", false).races);
  EXPECT_THROW(products_from_json(Json{{"both", "x"}}, "a state"), Error);
}

TEST_F(Products, OfAPlanAreTakenAndWhatDiffersIsSaid) {
  take_products({{"of the plan", 2}});
  EXPECT_EQ(products_that_differ(), "");
  EXPECT_EQ(ops::choice_for("of the plan", false).number, 2);
  EXPECT_TRUE(ops::choice_for("of the plan", false).is_wanted);
  EXPECT_EQ(products_that_differ(), "");
  ops::choice_for("of another GPU", false);
  EXPECT_EQ(products_that_differ().find("1 matrix product has another algorithm"), 0u)
      << products_that_differ();
  ops::note_not_as_chosen();
  EXPECT_EQ(products_that_differ().find("2 matrix products have another algorithm"), 0u);
  std::map<std::string, std::int64_t> products;
  ops::note_choice("of the plan", 2, /*won=*/false);
  EXPECT_TRUE(write_down_products(products));
  EXPECT_FALSE(write_down_products(products)) << "nothing new";
  EXPECT_EQ(products.at("of the plan"), 2);
  EXPECT_FALSE(products.contains("of another GPU"));
  take_products({});
  ops::choice_for("something new", false);
  EXPECT_EQ(products_that_differ(), "") << "nothing was chosen";
}

TEST_F(Products, OfADamagedFileAreRacedAgain) {
  std::filesystem::create_directories(folder_.path() / "snug");
  for (const char* damaged : {"{", R"({"kept": "5"})", "[]"}) {
    write_file(products_file(), damaged);
    EXPECT_NO_THROW(race_products());
    EXPECT_TRUE(ops::choice_for("kept", false).races) << damaged;
  }
  ops::note_choice(concat("a race ", ops::races_so_far()), 1, /*won=*/true);
  keep_products();
  EXPECT_FALSE(read_json(products_file()).empty());
}

TEST_F(Products, ThatCannotBeWrittenAreNotKept) {
  write_file(folder_.path() / "snug", "a file where the folder would be");
  ops::note_choice(concat("a race ", ops::races_so_far()), 0, /*won=*/true);
  EXPECT_NO_THROW(keep_products());
}

}  // namespace
}  // namespace snug::machine
