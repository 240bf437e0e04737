// A tensor that autograd saved inside a region. Internal to tape.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "snug/hooks/saved_tensors.h"
#include "snug/tape/replay.h"
#include "snug/tape/value.h"

namespace snug::tape {

class Tape;

class SavedValue final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedValue(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
  ~SavedValue() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

  const ValuePtr& value() const { return value_.pointer(); }
  at::Tensor on(c10::Storage storage) const { return geometry_.on(std::move(storage)); }
  void move_to(ValuePtr value);  // the storage was written: an alias sees it
  void arm(Replay& replay);
  void disarm(Replay& replay);

 private:
  at::Tensor contents();
  at::Tensor on_counted(const c10::Storage& storage, const c10::VariableVersion& counter) const;
  at::Tensor stand_in();

  std::shared_ptr<Tape> tape_;
  SavedTensorsValue value_;
  Geometry geometry_;
  hooks::KeepSavedTensor plain_;  // what the tape leaves alone
  bool is_plain_ = false;
  // Autograd leaves the check for in-place writes to the hooks.
  c10::VariableVersion counter_;
  std::uint32_t version_ = 0;
  bool armed_ = false;
  std::size_t place_ = 0;  // among the description's saves
};

}  // namespace snug::tape
