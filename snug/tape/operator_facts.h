// What an operator's schema says, and what it should have said. Internal to tape.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace snug::tape {

struct OperatorFacts {
  std::string name;          // aten::add.Tensor
  std::vector<bool> writes;  // by argument
  bool writes_any = false;
  bool is_view = false;        // results are views of arguments; nothing is computed
  bool changes_shape = false;  // of the tensor it is given, in place (t_, set_); no contents move
  bool resizes = false;
  bool is_random = false;
  bool makes_undefined = false;   // empty(): contents come from whoever writes next
  bool makes_constant = false;    // zeros(), arange(): of no tensor's contents, and the same each time
  bool reads_shape_only = false;  // zeros_like(x)
  bool overwrites = false;        // the written argument's old contents are not read
  bool sets_parts = false;        // nor here, but some of them stay: masked_fill_()
  int scratch_output = -1;        // a result of which some bytes are left as they were
  std::string unreplayable;       // why it is never run again; empty: it can be

  // Batch norm in training writes its running statistics, which its schema does not say. They are not read
  // then, and must move once only: a replay goes without them.
  std::vector<int> hidden_writes;
  int non_blocking = -1;  // the argument of that name
  int training = -1;      // the argument that says so; -1: always
};

// Of this thread's cache.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

}  // namespace snug::tape
