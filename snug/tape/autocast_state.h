// Operators of one's own may call others inside: under autocast these must cast to the forward's type.
// Internal to tape.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::tape {

struct AutocastState {
  c10::ScalarType cpu, cuda;
  static std::optional<AutocastState> now();  // nothing if autocast is off
};

// For the time of a replay. Nothing goes into autocast's cache of weights meanwhile.
class SameAutocast {
 public:
  explicit SameAutocast(const std::optional<AutocastState>& state);
  ~SameAutocast();
  SameAutocast(const SameAutocast&) = delete;  // it is a stretch of time
  SameAutocast& operator=(const SameAutocast&) = delete;

 private:
  bool changed_ = false;
  AutocastState before_{};
  bool cache_ = false;
};

}  // namespace snug::tape
