// Random operators draw the same numbers again. Internal to tape.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

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

}  // namespace snug::tape
