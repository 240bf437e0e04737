#include "snug/tape/operator_facts.h"

#include <ATen/core/enum_tag.h>

#include <atomic>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>

#include "snug/tape/replayable.h"
#include "snug/tape/value.h"

namespace snug::tape {

namespace {

struct OptedIn {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
  std::atomic<int> changes = 0;
};
OptedIn& opted_in() {
  static OptedIn table;
  return table;
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> beginnings) {
  for (const std::string_view beginning : beginnings)
    if (name.starts_with(beginning)) return true;
  return false;
}

bool has_tensors(const std::vector<c10::Argument>& some) {
  for (const c10::Argument& argument : some)
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  return false;
}

std::string why_unreplayable(const c10::OperatorHandle& op, std::string_view full_name) {
  const std::string& name = op.schema().name();
  {
    std::lock_guard lock(opted_in().mutex);
    if (opted_in().names.contains(name)) return "";
  }
  if (!starts_with_any(name, {"aten::", "snug::"})) return "a foreign operator that did not opt in";
  if (op.hasTag(at::Tag::nondeterministic_bitwise)) return "not deterministic";
  if (starts_with_any(full_name, {"aten::_cudnn_rnn", "aten::_cudnn_init", "aten::miopen_rnn"}))
    return "keeps a state of its own";
  if (full_name.starts_with("aten::resize")) return "resizes its argument";
  return "";
}

// Arguments that an operator writes although its schema does not say so.
bool is_written_unsaid(const std::string& name, const std::string& argument) {
  if (name == "aten::_cudnn_rnn") return argument == "dropout_state";
  return argument.starts_with("running_") &&
         (name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" ||
          name == "aten::miopen_batch_norm" || name == "aten::batch_norm_update_stats" ||
          name.starts_with("aten::batch_norm_gather_stats"));
}

void read_arguments(const c10::FunctionSchema& schema, OperatorFacts& facts) {
  for (const auto& argument : schema.arguments()) {
    const int position = static_cast<int>(facts.writes.size());
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    facts.writes.push_back(writes);
    facts.writes_any |= writes;
    if (argument.name() == "training") facts.training = position;
    if (argument.name() == "non_blocking") facts.non_blocking = position;
    if (is_written_unsaid(schema.name(), argument.name()) && !argument.alias_info())
      facts.hidden_writes.push_back(position);
  }
}

OperatorFacts read(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorFacts facts;
  facts.name = name_of(&schema);
  read_arguments(schema, facts);
  const bool returns_tensors = has_tensors(schema.returns());
  bool all_alias = returns_tensors;
  for (const auto& result : schema.returns()) all_alias &= result.alias_info() != nullptr;
  facts.is_view = all_alias && !facts.writes_any;
  facts.resizes = starts_with_any(facts.name, {"aten::resize"});
  facts.changes_shape = !facts.resizes && (op.hasTag(at::Tag::inplace_view) ||
                                           starts_with_any(facts.name, {"aten::record_stream"}));
  facts.is_random = op.hasTag(at::Tag::nondeterministic_seeded) && returns_tensors;
  facts.makes_undefined = starts_with_any(facts.name, {"aten::empty", "aten::new_empty"});
  facts.reads_shape_only =
      starts_with_any(facts.name, {"aten::empty_like", "aten::zeros_like", "aten::ones_like",
                                   "aten::full_like", "aten::rand_like", "aten::randn_like", "aten::new_"});
  facts.makes_constant = !facts.makes_undefined && !facts.is_random && returns_tensors && !facts.writes_any &&
                         (facts.reads_shape_only || !has_tensors(schema.arguments()));
  facts.sets_parts =
      starts_with_any(facts.name, {"aten::masked_fill_", "aten::masked_scatter_", "aten::index_fill_",
                                   "aten::index_copy_", "aten::index_put_", "aten::_index_put_impl_",
                                   "aten::scatter_", "aten::fill_diagonal_", "aten::triu_", "aten::tril_"});
  facts.overwrites =
      starts_with_any(facts.name, {"aten::bernoulli_", "aten::normal_", "aten::uniform_", "aten::random_",
                                   "aten::exponential_", "aten::fill_", "aten::zero_", "aten::copy_"}) ||
      schema.overload_name().ends_with("out");
  // Workspaces of recurrent nets.
  if (starts_with_any(facts.name, {"aten::mkldnn_rnn_layer", "aten::_cudnn_rnn"})) facts.scratch_output = 3;
  facts.unreplayable = why_unreplayable(op, facts.name);
  return facts;
}

}  // namespace

void replayable(std::string_view name) {
  std::lock_guard lock(opted_in().mutex);
  opted_in().names.emplace(name);
  ++opted_in().changes;
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorFacts> cache;
  thread_local int changes = 0;
  if (const int now = opted_in().changes; now != changes) {
    cache.clear();
    changes = now;
  }
  auto [entry, fresh] = cache.try_emplace(&op.schema());
  if (fresh) entry->second = read(op);
  return entry->second;
}

}  // namespace snug::tape
