// What an operator that runs again must find as it was in the forward: the random numbers it draws and the
// types of autocast. Internal to tape.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::tape {

struct GeneratorState {
  at::Generator generator;
  at::Tensor state;

  // Before an operator with these arguments draws. On Meta nothing is drawn.
  static std::optional<GeneratorState> before(const torch::jit::Stack& arguments);
  bool is_unchanged() const;  // it drew nothing
};

// Puts the generator into the recorded state, and back at the end, also when the operator throws.
class DrawAgain {
 public:
  explicit DrawAgain(const std::optional<GeneratorState>& recorded);
  ~DrawAgain();
  DrawAgain(const DrawAgain&) = delete;  // it is a stretch of time
  DrawAgain& operator=(const DrawAgain&) = delete;

 private:
  const std::optional<GeneratorState>& recorded_;
  at::Tensor before_;
};

// Operators of one's own may call others inside: under autocast these must cast to the forward's type.
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
