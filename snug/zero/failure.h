// What ended a job, in the store where ranks meet: the first who writes it is right, and all others find it.
// Internal to zero.
#pragma once

#include <optional>
#include <string>

namespace c10d {
class Store;
}  // namespace c10d

namespace snug::zero {

struct Failure {
  std::string text;
  bool is_mine;  // this rank says it
};

// Unless somebody was faster: what it is then. `speaker` says it.
Failure note_failure(c10d::Store& store, int rank, const std::string& text, int speaker);
std::optional<Failure> find_failure(c10d::Store& store, int rank);

}  // namespace snug::zero
