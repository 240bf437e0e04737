// Writes tensors on a thread of its own, as they are when it begins, while training goes on.
//
//   const auto save = std::make_shared<BackgroundSave>(session.spare_host_bytes());
//   sources.push_back(save->copied("model.norm.weight", weight));           // the next step may write to it
//   at any time sources.push_back(save->in_place("exp_avg.model.norm.weight", state, 7));
//   optimizer.set_before_write([save](std::size_t i) { save->before_write(i); });
//   save->begin([sources] { io::write_safetensors(path, sources); });
//   ...
//   save->finish();
//
// The thread reads host memory that nobody writes to, and calls no operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/safetensors_writer.h"

namespace snug::train {

class SNUG_API BackgroundSave {
 public:
  // `spare_bytes`: host memory that copies may take. Each goes when it was written.
  explicit BackgroundSave(std::uint64_t spare_bytes) : spare_bytes_(spare_bytes) {}
  ~BackgroundSave();                               // waits
  BackgroundSave(const BackgroundSave&) = delete;  // the thread points to it
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // What to write, before it begins. A copy is made at once, whatever is spare.
  io::TensorSource copied(const std::string& name, const at::Tensor& tensor);
  // On the host, contiguous; read where it is until before_write() of this parameter.
  io::TensorSource in_place(const std::string& name, const at::Tensor& tensor, std::size_t parameter);

  void begin(std::function<void()> write);  // of these sources, once each
  // Returns when the parameter's tensors may be written to: they were written to disk, or copied because that
  // much was spare. From any thread.
  void before_write(std::size_t parameter);

  bool is_over() const;  // finish() would not wait
  void wait() const;
  void finish();  // throws what `write` threw, once

 private:
  enum class State { Waits, IsRead, Done };
  struct Item {
    at::Tensor tensor;
    std::optional<std::size_t> parameter;  // none: a copy of our own
    State state = State::Waits;
  };

  io::TensorSource add(const std::string& name, Item item);
  at::Tensor read(std::size_t item);
  void let_go(Item& item);
  void end();  // nobody needs to wait any more

  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Item> items_;
  std::uint64_t spare_bytes_;
  std::future<void> written_;  // last: its end waits for the thread
};

}  // namespace snug::train
