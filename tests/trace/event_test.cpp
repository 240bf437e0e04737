// The table of names.
#include "snug/trace/event.h"

#include <gtest/gtest.h>

#include "snug/base/error.h"

namespace snug::trace {
namespace {

TEST(NameTable, GivesEachTextOneNumber) {
  NameTable names;
  EXPECT_EQ(names.intern("a"), 1u);
  EXPECT_EQ(names.intern("b"), 2u);
  EXPECT_EQ(names.intern("a"), 1u);
  EXPECT_EQ(names[2], "b");
  EXPECT_EQ(names.size(), 3u);
}

TEST(NameTable, NumberZeroIsTheEmptyText) {
  NameTable names;
  EXPECT_EQ(names.intern(""), 0u);
  EXPECT_EQ(names[0], "");
  EXPECT_EQ(names.size(), 1u);
}

TEST(NameTable, ACopyStandsAlone) {
  NameTable names;
  names.intern("a");
  NameTable copy = names;
  EXPECT_EQ(copy.intern("b"), 2u);
  EXPECT_EQ(copy.intern("a"), 1u);
  EXPECT_EQ(names.size(), 2u);
}

TEST(NameTable, ANumberNobodyInternedIsABug) {
  EXPECT_THROW(NameTable()[1], InternalError);
}

}  // namespace
}  // namespace snug::trace
