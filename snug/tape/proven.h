// What is known of a place in the program that runs a region: see Note [Proof]. Internal to tape.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace snug::tape {

class Site {
 public:
  // A hash of all that the operators of a call did so far, one after each operator.
  using Prefixes = std::vector<std::uint64_t>;
  struct Known {
    std::unordered_set<std::uint64_t> prefixes;  // of calls that were proven
    std::unordered_set<std::uint64_t> suspects;  // values that are not recomputed; by Proof::name()
  };

  static std::shared_ptr<Site> at(std::uint64_t key);  // one for the process
  static void forget_all();

  std::shared_ptr<const Known> known() const;
  bool wants_proof() const;
  void proven(const Prefixes& call);
  void went_another_way();  // a call left what is known: the next ones are proven
  void suspect(std::uint64_t value);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Known> known_ = std::make_shared<const Known>();
  int calls_to_prove_ = 1;
};

}  // namespace snug::tape
