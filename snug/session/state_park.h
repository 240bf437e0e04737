// Where the states of anyone's optimizers wait between steps: on the host. Internal to session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "snug/host/moving_tensor.h"
#include "snug/host/store.h"
#include "snug/memory/tracker.h"
#include "snug/plan/setting.h"
#include "snug/session/any_optimizer.h"

namespace snug::session {

struct StateParkOptions {
  memory::Tracker* tracker = nullptr;
  plan::Streamed* streamed = nullptr;  // what is parked counts there
  // Asked once, when the first state is to leave; null: none, and on a device all states stay. On Meta
  // nothing is copied, and nobody is asked.
  std::function<std::shared_ptr<host::Store>()> open_store;
  std::function<void(const std::string&)> say;
};

// Note [A parked optimizer steps by parts]
// torch's optimizers use all their states in one call. They leave out parameters that have no gradient, and
// update the others one by one. So a step is taken as several calls, each with the gradients of some
// parameters and none of the others': while a part is updated, the states of the next one come and those of
// the one before go. The bits are those of one call, and of all states three parts are on the device. What a
// first step makes leaves with its part.
class StatePark {
 public:
  explicit StatePark(StateParkOptions options) : options_(std::move(options)) {}
  ~StatePark();                          // brings back what is still used
  StatePark(const StatePark&) = delete;  // tensors that come tell it
  StatePark& operator=(const StatePark&) = delete;

  void step(const AnyOptimizer& optimizer);
  void park(const AnyOptimizer& optimizer);
  void unpark(const AnyOptimizer& optimizer, ReadStates where);
  void forget_gone();  // of optimizers that are no more
  std::uint64_t bytes() const { return bytes_; }
  // The session ends, and with it what it tracks and limits.
  void let_go_of_tracker() { options_.tracker = nullptr; }

 private:
  using Moving = std::shared_ptr<host::MovingTensor>;
  using Part = std::vector<std::size_t>;  // parameters that are updated together

  // Null if it is not parked.
  Moving find(const at::Tensor& state) const;
  // Null if it stays.
  Moving take_in(const OptimizerState& state, std::size_t parameter);
  std::vector<Moving> parked(const AnyOptimizer& optimizer, const Part& part) const;
  std::vector<Moving> take_in_all(const AnyOptimizer& optimizer, const Part& part);
  bool may_move(const at::Tensor& state);
  void step_by_parts(const AnyOptimizer& optimizer, const std::vector<Part>& parts);

  StateParkOptions options_;
  std::shared_ptr<host::Store> store_;
  bool has_asked_ = false, is_full_ = false;
  std::unordered_map<const c10::TensorImpl*, Moving> parked_;
  std::uint64_t bytes_ = 0;
};

}  // namespace snug::session
