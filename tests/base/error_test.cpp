// Which condition throws which error.
#include "snug/base/error.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

TEST(Error, CheckJoinsItsParts) {
  EXPECT_NO_THROW(check(true, "never"));
  EXPECT_EQ(testing::message_of<Error>([] { check(false, "at least ", 1, ", got ", 0.5); }),
            "at least 1, got 0.5");
}

TEST(Error, EnsureSpeaksOfABug) {
  EXPECT_NO_THROW(ensure(true, "never"));
  EXPECT_EQ(testing::message_of<InternalError>([] { ensure(false, "x"); }), "bug in snug: x");
}

TEST(Error, AFailedRunIsAnErrorButABugIsNot) {
  EXPECT_TRUE((std::is_base_of_v<Error, RunError>));
  EXPECT_FALSE((std::is_base_of_v<Error, InternalError>));
}

}  // namespace
}  // namespace snug
