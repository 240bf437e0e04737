#include "snug/hooks/engine.h"

#include <torch/csrc/autograd/engine.h>

#include <mutex>

#include "snug/hooks/frame.h"
#include "snug/hooks/saved_tensors.h"

namespace snug::hooks {

namespace ag = torch::autograd;

namespace {

// Starts no threads of its own; the backward runs in `next`.
class DelegatingEngine final : public ag::Engine {
 public:
  explicit DelegatingEngine(ag::Engine& next) : next_(next) {}

  ag::variable_list execute(const ag::edge_list& roots, const ag::variable_list& inputs, bool keep_graph,
                            bool create_graph, bool accumulate_grad, const ag::edge_list& outputs) override {
    return next_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<ag::GraphTask>& graph_task, std::shared_ptr<ag::Node> graph_root,
      ag::InputBuffer&& input_buffer) override {
    return next_.execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<ag::AnomalyMetadata> make_anomaly_metadata() override {
    return next_.make_anomaly_metadata();
  }

  std::unique_ptr<ag::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (auto theirs = next_.get_default_saved_variable_hooks())
      return theirs;  // hooks set in Python are the inner ones
    std::unique_ptr<ag::SavedVariableHooks> ours;
    bool is_watched = false;
    for_each_frame([&](const Frame& frame) {
      if (!ours && frame.saved_tensors) frame.visit([&] { ours = frame.saved_tensors->hooks(); });
      is_watched |= frame.saved_listener && !frame.is_closed();
    });
    // Only hooks can tell of what is saved and asked for.
    if (!ours && is_watched) ours = std::make_unique<KeepSavedTensor>();
    return ours;
  }

 private:
  ag::Engine& next_;
};

DelegatingEngine* installed = nullptr;

}  // namespace

void install_engine() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  ag::Engine& current = ag::Engine::get_default_engine();
  if (&current == installed) return;
  // Never destroyed: autograd may ask for its engine until the process ends.
  installed = std::make_unique<DelegatingEngine>(current).release();
  ag::set_default_engine_stub([]() -> ag::Engine& { return *installed; });
}

}  // namespace snug::hooks
