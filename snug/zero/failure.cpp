#include "snug/zero/failure.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "snug/base/error.h"

namespace snug::zero {

namespace {

constexpr const char* kFailure = "failure";

// Who says it comes first.
Failure read(const std::string& stored, int rank) {
  return {stored.substr(stored.find(' ') + 1), stored.starts_with(concat(rank, " "))};
}

}  // namespace

Failure note_failure(c10d::Store& store, int rank, const std::string& text, int speaker) {
  return read(store.compareSet(kFailure, "", concat(speaker, " ", text)), rank);
}

std::optional<Failure> find_failure(c10d::Store& store, int rank) {
  if (!store.check({kFailure})) return std::nullopt;
  return read(store.get_to_str(kFailure), rank);
}

}  // namespace snug::zero
