#include "snug/machine/products.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "snug/base/error.h"
#include "snug/ops/product_choices.h"
#include "tests/support/temporary_folder.h"

namespace snug::machine {
namespace {

using testing::TemporaryFolder;

TEST(Products, AreKeptBesideTheProbe) {
  const TemporaryFolder folder;
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  EXPECT_EQ(products_file(), folder.path() / "snug" / "products.json");
  ops::choose_products({{"a product", "00ff"}, {"another", "01"}});
  keep_products();
  const Json kept = read_json(products_file());
  EXPECT_EQ(kept, products_to_json());
  EXPECT_EQ(kept["a product"], "00ff");
  products_from_json(Json{{"another", "02"}}, "a state");
  EXPECT_EQ(ops::chosen_products().at("another"), "02") << "what a state says goes before what is kept";
  EXPECT_EQ(ops::chosen_products().at("a product"), "00ff");
  EXPECT_THROW(products_from_json(Json{{"another", 3}}, "a state"), Error);
}

TEST(Products, ThatCannotBeWrittenAreNotKept) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "snug") << "a file where the folder would be";
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  ops::choose_products({{"a third product", "00"}});
  EXPECT_NO_THROW(keep_products());
}

}  // namespace
}  // namespace snug::machine
