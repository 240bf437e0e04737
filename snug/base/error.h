// Errors with one meaning each, so that a program can turn them into an exit status. They name settings as
// the library has them, in backquotes; a command line turns `batch_size` into its flag.
//
//   check(batch > 0, "`batch_size` must be at least 1, got ", batch);
//   ensure(live >= bytes, "freed more than was allocated");
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "snug/base/export.h"

namespace snug {

// A caller's mistake or bad input: says what was expected, what came, what to do.
class SNUG_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The input was fine, the run failed: disk full, out of memory, lost peer.
class SNUG_API RunError : public Error {
 public:
  using Error::Error;
};

// A bug of ours.
class SNUG_API InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw Error(concat(parts...));
}

template <class... Parts>
void ensure(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw InternalError(concat("bug in snug: ", parts...));
}

}  // namespace snug
