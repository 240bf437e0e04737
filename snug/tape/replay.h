// Recomputes values in the backward: the rules of trace/closure, carried out on tensors. Internal to tape.
#pragma once

#include <memory>

#include "snug/tape/value.h"
#include "snug/trace/closure.h"

namespace snug::tape {

class Tape;

class Replay final : public trace::ClosureWalk {
 public:
  explicit Replay(Tape& tape) : tape_(tape) {}

  c10::Storage contents(Value& value);  // runs what leads to it; it has been armed
  void begin_backward();                // first unpack of a backward: counts every use that may come
  bool is_first_backward() const { return backwards_ <= 1; }
  bool has_begun() const { return backwards_ > 0; }
  bool is_in_backward() const;  // this thread is in one that was begun
  bool is_first_unpack();       // of this backward
  void end_backward();          // frees what a partial backward left

 private:
  void run(trace::ClosureOperation& operation) override;
  void last_use(trace::ClosureValue& value) override;

  struct Written {
    const Value* before;
    c10::Storage storage;
  };
  std::vector<Written> take_written(const Operation& operation);
  torch::jit::Stack arguments(const Operation& operation, const std::vector<Written>& written);
  void keep_results(Operation& operation, const torch::jit::Stack& results,
                    const std::vector<Written>& written);
  void check_unchanged(const Operation& operation, const Operation::Argument& argument) const;
  const c10::Storage& fetch(Value& value);
  void announce();

  Tape& tape_;
  std::int64_t backward_ = -1;  // the graph task
  int backwards_ = 0;           // begun so far
  bool announced_ = false;
  bool has_unpacked_ = false;
};

}  // namespace snug::tape
