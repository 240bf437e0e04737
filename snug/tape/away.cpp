#include "snug/tape/away.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "snug/hooks/saved_tensors.h"
#include "snug/tape/checksum.h"
#include "snug/tape/tape.h"
#include "snug/tape/value.h"

namespace snug::tape {

namespace {

void wait_for(host::CopyPtr& copy, Away::Streams streams) {
  if (!copy) return;
  if (streams.empty()) copy->wait();
  for (const c10::Stream& stream : streams) {
    const c10::StreamGuard guard(stream);
    copy->wait();
  }
  copy = nullptr;
}

class OnTheHost final : public Away {
 public:
  explicit OnTheHost(std::shared_ptr<host::Store> store) : store_(std::move(store)) {}

  std::string put(const c10::Storage& contents) override try {
    device_ = contents.device();
    nbytes_ = contents.nbytes();
    if (device_.is_meta() || bytes() == 0) return "";  // nothing to copy
    if (!store_) store_ = host::Store::shared(device_);
    if (store_->device() != device_) return "on another device";
    slot_ = store_->arena().take(bytes());
    sent_ = store_->link().to_host(span_.in(contents), slot_, bytes());
    return "";
  } catch (const std::exception& error) {  // a region's end may not throw
    slot_ = {};
    return error.what();
  }

  c10::Storage bring_back() override {
    const at::Tensor memory =
        at::empty({static_cast<std::int64_t>(nbytes_)}, at::TensorOptions(at::kByte).device(device_));
    hooks::tell_saved(memory);
    if (slot_) fetched_ = store_->link().to_device(span_.in(memory.storage()), slot_, bytes());
    return memory.storage();
  }

  void arrive(Streams streams) override { wait_for(fetched_, streams); }

  void settle(Streams streams) override {
    wait_for(sent_, streams);
    wait_for(fetched_, streams);
  }

 private:
  std::shared_ptr<host::Store> store_;
  c10::Device device_ = c10::kCPU;
  std::uint64_t nbytes_ = 0;      // of the contents whole
  host::Slot slot_;               // none on Meta, or if no byte of it is needed
  host::CopyPtr sent_, fetched_;  // not waited for yet
};

// A value as the schedule moves it. Regions before are called under the lock of a later one, never the other
// way round.
class MovingValue final : public host::Item {
 public:
  MovingValue(std::weak_ptr<Tape> tape, const ValuePtr& value)
      : tape_(std::move(tape)), value_(value), bytes_(value->away()->bytes()) {}

  std::uint64_t bytes() const override { return bytes_; }
  std::string send() override {
    std::string why_not;
    if_alive([&](Tape&, Value& value) { why_not = value.send(); });
    return why_not;
  }
  void leave() override {
    if_alive([](Tape& tape, Value& value) {
      if (!tape.proof() || tape.proof()->may_leave(value)) value.leave();
    });
  }
  // It follows its uses from here on, as if it had been recomputed, so they are counted.
  void fetch() override {
    if_alive([](Tape& tape, Value& value) {
      tape.replay().begin_backward();
      if (value.is_moved() && value.uses > 0) value.bring_back();
    });
  }

 private:
  template <class Call>
  void if_alive(Call call) {
    const std::shared_ptr<Tape> tape = tape_.lock();
    if (!tape) return;
    std::lock_guard lock(tape->mutex());
    if (const ValuePtr value = value_.lock()) call(*tape, *value);
  }

  const std::weak_ptr<Tape> tape_;
  const std::weak_ptr<Value> value_;
  const std::uint64_t bytes_;
};

}  // namespace

std::uint64_t Away::checksum(const c10::Storage& contents) const {
  return tape::checksum(contents, span_);
}

std::unique_ptr<Away> on_the_host(std::shared_ptr<host::Store> store) {
  return std::make_unique<OnTheHost>(std::move(store));
}

std::shared_ptr<host::Item> as_item(const std::shared_ptr<Tape>& tape, const std::shared_ptr<Value>& value) {
  return std::make_shared<MovingValue>(tape, value);
}

}  // namespace snug::tape
