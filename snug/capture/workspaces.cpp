#include "snug/capture/workspaces.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>

#include "snug/base/bytes.h"
#include "snug/capture/operator_work.h"
#include "snug/capture/stack_tensors.h"
#include "snug/memory/tracker.h"

namespace snug::capture {

namespace {

using torch::jit::Stack;

// What a try may cost. Larger operators go without: next to their operands the buffers are small.
constexpr std::uint64_t kMostBytes = 32_MiB;
constexpr double kMostFlops = 1e9;

// fp32 kernels take nothing that Meta does not show.
bool may_need_some(const hooks::OperatorCall& call, std::size_t first) {
  const Stack& stack = call.stack;
  bool any_half = false, all_meta = true;
  std::uint64_t bytes = 0;
  each_tensor(Entries(stack).slice(first), [&](const at::Tensor& tensor) {
    any_half |= is_half(tensor);
    all_meta &= tensor.is_meta() || tensor.dim() == 0;
    bytes += tensor.nbytes();
  });
  return any_half && all_meta && bytes <= kMostBytes &&
         OperatorWork(call.op, stack).finish(stack).flops <= kMostFlops;
}

// Everything that decides which kernel runs: types, sizes, strides, numbers, threads.
std::string signature(const hooks::OperatorCall& call, std::size_t first) {
  std::ostringstream text;
  text << call.op.operator_name() << ' ' << at::get_num_threads();
  const auto add = [&](const at::Tensor& tensor) {
    text << " t" << static_cast<int>(tensor.scalar_type()) << tensor.sizes() << tensor.strides();
  };
  for (std::size_t i = first; i < call.stack.size(); ++i) {
    const c10::IValue& entry = call.stack[i];
    if (entry.isTensor() || entry.isTensorList()) continue;
    text << ' ' << entry;
  }
  each_tensor(Entries(call.stack).slice(first), add);
  return text.str();
}

c10::IValue on_cpu(const c10::IValue& entry) {
  const auto zeros = [](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_meta()) return tensor;
    const auto elements = static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
    return at::zeros({elements}, tensor.options().device(c10::kCPU))
        .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  };
  if (entry.isTensor()) return zeros(entry.toTensor());
  if (entry.isDevice()) return c10::Device(c10::kCPU);
  if (!entry.isTensorList()) return entry;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : entry.toTensorVector()) list.push_back(zeros(tensor));
  return list;
}

// What it takes beyond its results. 0 if it does not run with zeros: then there is nothing to go by.
std::uint64_t try_out(const hooks::OperatorCall& call, std::size_t first) {
  auto generator = at::globalContext().defaultGenerator(c10::kCPU);
  const at::Tensor state = generator.get_state();
  std::uint64_t taken = 0;
  try {
    Stack stack;
    for (std::size_t i = first; i < call.stack.size(); ++i) stack.push_back(on_cpu(call.stack[i]));
    memory::Tracker tracker;
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    taken = tracker.peak_bytes() - tracker.live_bytes();
  } catch (const std::exception&) {
  }
  generator.set_state(state);
  return taken;
}

std::uint64_t workspace(const hooks::OperatorCall& call, std::size_t first) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::uint64_t> known;
  const std::string key = signature(call, first);
  std::lock_guard lock(mutex);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known[key] = try_out(call, first);
}

}  // namespace

void WorkspaceScope::Watch::on_operator(hooks::OperatorCall& call) {
  const std::size_t first = call.stack.size() - call.op.schema().arguments().size();
  const std::uint64_t bytes = may_need_some(call, first) ? workspace(call, first) : 0;
  call.proceed();
  if (bytes > 0)
    at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(c10::kMeta));
}

}  // namespace snug::capture
