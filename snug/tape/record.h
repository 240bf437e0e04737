// One operator on its way through a tape: before it runs, what it is about to overwrite; after it ran, the
// values it made and, if one of them is to be recomputed, all that is needed to run it again. Internal to
// tape; under the tape's lock, which is open while the operator runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "snug/hooks/operators.h"
#include "snug/tape/forward_state.h"
#include "snug/tape/operator_facts.h"
#include "snug/tape/value.h"

namespace snug::tape {

class Tape;
struct Level;

class RecordedCall {
 public:
  RecordedCall(Tape& tape, hooks::OperatorCall& call, const OperatorFacts& facts, const Level& level);

  void before();
  // No contents move, but the version does: whoever watches it must not take that for a write.
  void before_change_of_shape();
  void after();
  void after_failure();  // it may have written before it threw

 private:
  struct Result {
    std::size_t place;
    ValuePtr value;
  };
  struct Read {
    std::size_t position;
    int place;
    const c10::Storage* storage;  // of the argument
    ValuePtr value;
    std::size_t sum = 0;  // in the proof
  };
  struct Write {
    std::size_t position;
    int place;
    at::Tensor tensor;
    Geometry before;  // out= variants resize what they write
    ValuePtr old, value;
    std::size_t sum = 0;  // of the old one in the proof
  };

  bool can_replay() const { return why_not_.empty(); }
  void refuse(const std::string& why);
  void refuse_always(const std::string& why);  // whatever the fates
  bool is_set(int position) const;

  void take_hidden_writes();
  void look_at_arguments();
  void look_at_write(const at::Tensor& tensor, std::size_t position, int place);
  bool goes_another_way();
  void prove_reads();
  void prove_results();

  ValuePtr make_value(std::size_t output, const at::Tensor& tensor);
  void choose_fate(Value& value);
  void make_results();
  void make_written();
  bool aliases_an_argument(const at::Tensor& tensor) const;
  static std::size_t written_output(const Write& write);

  bool wants_replay() const;
  void keep_operation();
  void keep_argument(Operation& operation, std::size_t position);
  const Write& written(std::size_t position, int place) const;
  const Read& read(std::size_t position, int place) const;
  void describe();

  Tape& tape_;
  hooks::OperatorCall& call_;
  const OperatorFacts& facts_;
  const Level& level_;
  std::uint32_t ordinal_ = 0;
  const std::size_t first_;
  torch::jit::Stack arguments_;
  std::string why_not_;  // it is not recorded
  bool replayable_;      // with other fates it could be
  std::vector<at::Tensor> hidden_;
  std::vector<Write> writes_;
  std::vector<Read> reads_;
  std::vector<Result> results_;
  std::optional<GeneratorState> generator_;
};

}  // namespace snug::tape
