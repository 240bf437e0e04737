// Names of categories, in text and in JSON.
#include "snug/trace/category.h"

#include <gtest/gtest.h>

#include "snug/trace/category_json.h"

namespace snug::trace {
namespace {

TEST(Category, EveryNameLeadsBackToItsCategory) {
  for (const Category category : kAllCategories) {
    EXPECT_FALSE(name(category).empty());
    EXPECT_EQ(category_from_name(name(category)), category);
  }
}

TEST(Category, AllCategoriesAreInTheOrderOfTheEnum) {
  for (std::size_t i = 0; i < kCategories; ++i) EXPECT_EQ(static_cast<std::size_t>(kAllCategories[i]), i);
}

TEST(Category, AnUnknownNameHasNone) {
  EXPECT_EQ(category_from_name("parameter"), std::nullopt);
  EXPECT_EQ(category_from_name(""), std::nullopt);
}

TEST(Category, JsonHoldsEveryCategoryByName) {
  EXPECT_EQ(
      to_json(CategoryBytes{1, 2, 3, 4, 5, 6, 7}).dump(),
      R"({"parameters":1,"gradients":2,"optimizer":3,"inputs":4,"activations":5,"temporaries":6,"other":7})");
}

}  // namespace
}  // namespace snug::trace
