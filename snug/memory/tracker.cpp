#include "snug/memory/tracker.h"

#include <exception>
#include <limits>
#include <mutex>

#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/memory/account.h"
#include "snug/memory/cuda_tracker.h"
#include "snug/memory/device_allocator.h"
#include "snug/memory/recognise.h"

namespace snug::memory {

using trace::Category;
using trace::EventKind;

namespace {

// Emptied at this many events, between two operators: on a GPU that time is hidden behind kernels already
// launched.
constexpr std::size_t kQueueLength = 1 << 12;

// What a tracker knows. Shared with its watch in the allocator's slot: a thread may be in there while the
// tracker goes.
class Books {
 public:
  explicit Books(trace::EventSink* sink) : account_(sink) {}

  EventQueue queue;
  std::unique_ptr<CudaTracker> cuda;

  // Everything seen so far is in the account when `use` runs.
  template <class Use>
  auto with_account(Use use) {
    std::lock_guard lock(mutex_);
    empty_queue();
    if (auto failure = account_.take_sink_failure()) std::rethrow_exception(failure);
    return use(account_);
  }

  // The same where an exception would be in the way; the next with_account() throws it.
  template <class Use>
  auto with_account_quietly(Use use) {
    std::lock_guard lock(mutex_);
    empty_queue();
    return use(account_);
  }

  trace::Snapshot alive() {
    return with_account_quietly([](Account& account) { return account.ledger().live(account.names()); });
  }

 private:
  void empty_queue() {
    cuda ? cuda->take(batch_) : queue.take(batch_);
    for (const RawEvent& event : batch_) account_.apply(event);
    batch_.clear();
  }

  std::mutex mutex_;
  Account account_;
  std::vector<RawEvent> batch_;
};

class QueueAllocations final : public BlockObserver {
 public:
  explicit QueueAllocations(std::shared_ptr<Books> books) : books_(std::move(books)) {}

  void on_alloc(void* address, std::size_t bytes) noexcept override {
    books_->queue.push({.kind = EventKind::Alloc,
                        .category = in_operator() ? Category::Temporary : Category::Other,
                        .region = hooks::current_region(),
                        .address = address,
                        .bytes = bytes});
  }
  void on_free(void* address, std::size_t bytes) noexcept override {
    books_->queue.push(
        {.kind = EventKind::Free, .region = hooks::current_region(), .address = address, .bytes = bytes});
  }

 private:
  std::shared_ptr<Books> books_;
};

// CPU and Meta: a place in torch's allocator slot.
class HostWatch {
 public:
  HostWatch(const std::shared_ptr<Books>& books, c10::DeviceType device, std::uint64_t limit)
      : queue_(books->queue),
        allocator_(DeviceAllocator::of(device)),
        watch_(std::make_shared<Watch>(
            limit, [books] { return books->alive(); }, std::make_shared<QueueAllocations>(books))),
        place_(allocator_.add(watch_)) {}
  ~HostWatch() { allocator_.remove(place_); }
  HostWatch(const HostWatch&) = delete;  // see ResourceScope
  HostWatch& operator=(const HostWatch&) = delete;

  bool adopt(const at::Tensor& tensor, Category category) {
    auto& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    const std::size_t bytes = tensor.storage().nbytes();
    if (!allocator_.adopt(data, bytes, watch_)) return false;
    watch_->limit().count(bytes);
    queue_.push({.kind = EventKind::Alloc,
                 .category = category,
                 .region = hooks::region_of_parameter(tensor),
                 .address = data.get_context(),
                 .bytes = bytes});
    return true;
  }

  std::uint64_t live_bytes() const { return watch_->limit().live_bytes(); }
  Limit& limit() { return watch_->limit(); }

 private:
  EventQueue& queue_;
  DeviceAllocator& allocator_;
  std::shared_ptr<Watch> watch_;
  DeviceAllocator::Place place_;
};

}  // namespace

class Tracker::Impl {
 public:
  explicit Impl(const TrackerOptions& options)
      : books_(std::make_shared<Books>(options.sink)), device_(hooks::with_index(options.device)) {
    if (device_.is_cuda()) {
      check(!options.budget_bytes, "a tracker does not limit CUDA memory: cap torch's allocator instead");
      books_->cuda = CudaTracker::attach(books_->queue, device_.index());
    } else {
      const std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max() / 2;
      host_.emplace(books_, device_.type(), options.budget_bytes.value_or(unlimited));
    }
  }

  std::uint64_t adopt(at::TensorList tensors, Category category) {
    std::uint64_t foreign = 0;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.has_storage()) continue;
      const auto& contents = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
      if (tensor.storage().nbytes() == 0 || (!contents && !tensor.is_meta())) continue;  // it is elsewhere
      void* address = block_of(tensor);
      if (books_->with_account([&](Account& account) { return account.knows(address); })) {
        books_->queue.push({.kind = EventKind::Retag,
                            .category = category,
                            .region = hooks::region_of_parameter(tensor),
                            .address = address});
      } else if (!host_ || tensor.device().type() != device_.type() || !host_->adopt(tensor, category)) {
        foreign += tensor.storage().nbytes();
      }
    }
    return foreign;
  }

  std::uint64_t allocator_bytes() const {
    return host_ ? host_->live_bytes() : books_->cuda->allocated_bytes();
  }
  Limit* limit() { return host_ ? &host_->limit() : nullptr; }
  trace::AllocatorLayout layout() {
    trace::AllocatorLayout layout;
    if (books_->cuda) layout = books_->cuda->layout();
    books_->with_account([&](Account& account) {
      for (auto& segment : layout.segments)
        for (auto& block : segment.blocks)
          if (!block.is_free) block.id = account.block(reinterpret_cast<void*>(block.address));
    });
    return layout;
  }
  Books& books() { return *books_; }

  // The sink gets every event, and none that comes later.
  ~Impl() {
    host_.reset();
    books_->with_account_quietly([](Account& account) { account.send_to(nullptr); });
  }

 private:
  const std::shared_ptr<Books> books_;
  c10::Device device_;
  OperatorWatch operators_{books_->queue, kQueueLength, [this] { books_->with_account([](Account&) {}); }};
  SaveWatch saves_{books_->queue};
  GradientWatch gradients_{books_->queue};
  std::optional<HostWatch> host_;
  hooks::OperatorListenerGuard operators_guard_{operators_};
  hooks::SavedTensorListenerGuard saves_guard_{saves_};
  hooks::RegionListenerGuard gradients_guard_{gradients_};
};

Tracker::Tracker(const TrackerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Tracker::~Tracker() = default;

std::uint64_t Tracker::adopt(at::TensorList tensors, Category category) {
  return impl_->adopt(tensors, category);
}

trace::BlockId Tracker::block(const at::Tensor& tensor) {
  return impl_->books().with_account([&](Account& account) { return account.block(block_of(tensor)); });
}

void Tracker::send_to(trace::EventSink* sink) {
  impl_->books().with_account([&](Account& account) { account.send_to(sink); });
}

void Tracker::mark(std::string_view name) {
  const auto id = impl_->books().with_account([&](Account& account) { return account.names().intern(name); });
  impl_->books().queue.push({.kind = EventKind::Mark, .region = hooks::current_region(), .name = id});
}

void Tracker::in_order(const std::function<void()>& then) {
  impl_->books().with_account_quietly([&](Account&) { then(); });
}

std::uint64_t Tracker::live_bytes() {
  return impl_->books().with_account([](Account& account) { return account.ledger().live_bytes(); });
}
std::uint64_t Tracker::peak_bytes() {
  return impl_->books().with_account([](Account& account) { return account.ledger().peak_bytes(); });
}
trace::Snapshot Tracker::live() {
  return impl_->books().alive();
}
std::optional<Refusal> Tracker::last_refusal() {
  return impl_->books().with_account_quietly([](Account& account) { return account.last_refusal(); });
}
trace::Snapshot Tracker::peak() {
  return impl_->books().with_account([](Account& account) { return account.ledger().peak(account.names()); });
}
trace::CategoryBytes Tracker::category_peaks() {
  return impl_->books().with_account([](Account& account) { return account.ledger().category_peaks(); });
}
void Tracker::reset_peak() {
  impl_->books().with_account([](Account& account) {
    account.ledger().reset_peak();
    account.forget_refusal();
  });
  if (Limit* const limit = impl_->limit()) limit->forget_refused();
}
bool Tracker::has_refused() {
  Limit* const limit = impl_->limit();
  return limit ? limit->has_refused() : last_refusal().has_value();
}
std::uint64_t Tracker::allocator_bytes() const {
  return impl_->allocator_bytes();
}
trace::AllocatorLayout Tracker::layout() {
  return impl_->layout();
}

Tracker::Claim::Claim(Tracker& tracker, Category category)
    : tracker_(tracker),
      category_(category),
      first_(tracker.impl_->books().with_account([](Account& account) { return account.next_block(); })) {}

Tracker::Claim::~Claim() {
  tracker_.impl_->books().with_account_quietly(
      [&](Account& account) { account.claim_since(first_, category_, account.last_time()); });
}

}  // namespace snug::memory
