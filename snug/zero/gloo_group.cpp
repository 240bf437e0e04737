#include "snug/zero/gloo_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

namespace snug::zero {

namespace {

// For whoever waits: the collective itself is a thread's.
class Asked final : public Collective {
 public:
  Asked(std::shared_future<void> done, std::uint64_t number) : done_(std::move(done)), number_(number) {}
  void wait() override { done_.get(); }
  void finish() override { done_.get(); }
  std::uint64_t number() const override { return number_; }
  bool is_done() const override {
    return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  const std::shared_future<void> done_;
  const std::uint64_t number_;
};

// Gloo's text without where in Gloo it was thrown.
std::string text_of(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch ? torch->what_without_backtrace() : error.what();
  if (const auto end = text.find('\n'); end != std::string::npos) text.resize(end);
  if (text.starts_with("["))
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  return text;
}

template <class Number>
void add(float* sum, const void* from, std::int64_t count) {
  const auto* const numbers = static_cast<const Number*>(from);
  for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(numbers[i]);
}

template <class Number>
void round_into(void* to, const float* sum, std::int64_t count) {
  auto* const numbers = static_cast<Number*>(to);
  for (std::int64_t i = 0; i < count; ++i) numbers[i] = static_cast<Number>(sum[i]);
}

// How numbers of one type are added up.
struct Adding {
  void (*add)(float*, const void*, std::int64_t);
  void (*round_into)(void*, const float*, std::int64_t);
};

Adding adding(at::ScalarType type) {
  if (type == at::kBFloat16) return {add<c10::BFloat16>, round_into<c10::BFloat16>};
  if (type == at::kHalf) return {add<c10::Half>, round_into<c10::Half>};
  check(type == at::kFloat, "sums over ranks are of Float, BFloat16 or Half, got ", type);
  return {add<float>, round_into<float>};
}

// The part of a piece that one round carries.
Piece slice_of(const Piece& piece, std::int64_t round, std::int64_t length) {
  const std::int64_t begin = std::min(piece.count, round * length);
  return {piece.begin + begin, std::min(length, piece.count - begin)};
}

std::int64_t rounds_of(const Pieces& pieces, std::int64_t length) {
  std::int64_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.count);
  return (most + length - 1) / length;
}

class GlooGroup final : public Group {
 public:
  GlooGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::Device device,
            const GlooOptions& options)
      : Group(rank, size),
        device_(device),
        timeout_(options.timeout),
        delay_(options.delay),
        slice_bytes_(std::max<std::int64_t>(kSliceBytes / size / 64 * 64, 64 * 1024)) {
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
    gloo->threads = 1;
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
    const auto slices = at::TensorOptions(at::kByte).pinned_memory(device.is_cuda());
    received_ = at::empty({size, slice_bytes_}, slices);
    if (device.is_cuda()) {
      staged_ = at::empty({size, slice_bytes_}, slices);
      stream_.emplace(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
    }
    sum_.resize(static_cast<std::size_t>(slice_bytes_) / sizeof(c10::BFloat16));
    thread_ = std::thread([this] { run(); });
  }

  ~GlooGroup() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  CollectivePtr all_gather(const at::Tensor& whole, const Pieces& pieces, const std::string& what,
                           const host::CopyPtr& piece_comes) override {
    check_given(whole, pieces, what);
    return push(whole, [=, this] {
      if (piece_comes) piece_comes->wait();
      gather(whole, pieces, "all-gather of " + what);
    });
  }

  CollectivePtr reduce_scatter(const at::Tensor& whole, const Pieces& pieces,
                               const std::string& what) override {
    check_given(whole, pieces, what);
    const Adding with = adding(whole.scalar_type());
    return push(whole, [=, this] { add_up(whole, pieces, with, "reduce-scatter of " + what); });
  }

  std::vector<std::string> exchange(const std::string& mine, const std::string& what) override {
    const auto ranks = static_cast<std::size_t>(size());
    const auto one = [](std::int64_t k) { return Piece{k, 1}; };
    at::Tensor lengths = at::empty({size()}, at::kLong);
    Pieces pieces;
    for (std::int64_t k = 0; k < size(); ++k) pieces.push_back(one(k));
    auto* const length = lengths.mutable_data_ptr<std::int64_t>();
    length[rank()] = static_cast<std::int64_t>(mine.size());
    push(lengths, [=, this] { gather(lengths, pieces, what); })->finish();
    std::int64_t end = 0;
    for (std::size_t k = 0; k < ranks; ++k) {
      pieces[k] = {end, length[k]};
      end += length[k];
    }
    const at::Tensor all = at::empty({end}, at::kByte);
    auto* const bytes = static_cast<char*>(all.mutable_data_ptr());
    std::memcpy(bytes + pieces[static_cast<std::size_t>(rank())].begin, mine.data(), mine.size());
    push(all, [=, this] { gather(all, pieces, what); })->finish();
    std::vector<std::string> texts;
    for (const Piece& piece : pieces)
      texts.emplace_back(bytes + piece.begin, static_cast<std::size_t>(piece.count));
    return texts;
  }

  void abort(const std::exception_ptr& why) override {
    const std::lock_guard lock(mutex_);
    if (!why_) why_ = why;
    for (const Work& work : under_way_) work->abort();
  }

  std::string carrier() const override { return "Gloo"; }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  static constexpr std::int64_t kSliceBytes = 4 << 20;

  CollectivePtr push(const at::Tensor& whole, std::function<void()> collective) {
    std::shared_ptr<c10::Event> asked;
    if (whole.is_cuda()) {
      asked = std::make_shared<c10::Event>(device_.type());
      asked->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(whole.device()));
    }
    Task task{.run = [this, asked, collective = std::move(collective)] {
      if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
      if (asked) asked->block(*stream_);
      collective();
    }};
    const std::shared_future<void> done = task.done.get_future().share();
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      if (why_) std::rethrow_exception(why_);
      number = ++asked_;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return std::make_shared<Asked>(done, number);
  }

  // Its tensors go before anybody who waits goes on.
  struct Task {
    std::function<void()> run;
    std::promise<void> done = {};

    void operator()() {
      try {
        run();
        run = nullptr;
        done.set_value();
      } catch (...) {
        run = nullptr;
        done.set_exception(std::current_exception());
      }
    }
  };

  void run() {
    const at::NoGradGuard no_grad;
    std::optional<c10::StreamGuard> guard;
    if (stream_) guard.emplace(*stream_);
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      ++tag_;
      task();
    }
  }

  // Where Gloo may read and write a slice of this rank's tensor: there, or beside a GPU's.
  at::Tensor on_host(const at::Tensor& whole, int piece, const Piece& slice) {
    if (whole.is_cpu()) return on_device(whole, slice);
    return staged_[piece].view(whole.scalar_type()).narrow(0, 0, slice.count);
  }
  static at::Tensor on_device(const at::Tensor& whole, const Piece& slice) {
    return whole.view(-1).narrow(0, slice.begin, slice.count);
  }
  void to_host(const at::Tensor& whole, int piece, const Piece& slice) {
    if (!whole.is_cpu()) on_host(whole, piece, slice).copy_(on_device(whole, slice), /*non_blocking=*/true);
  }
  void to_device(const at::Tensor& whole, int piece, const Piece& slice) {
    if (!whole.is_cpu()) on_device(whole, slice).copy_(on_host(whole, piece, slice), /*non_blocking=*/true);
  }
  void wait_for_device(const at::Tensor& whole) {
    if (!whole.is_cpu()) stream_->synchronize();
  }

  struct Message {
    Work work;
    int peer;
  };

  Message send(const at::Tensor& slice, int to, const std::string& what) {
    std::vector<at::Tensor> tensors{slice.view(at::kByte)};
    return begun([&] { return gloo_->send(tensors, to, tag_); }, to, what);
  }
  Message receive(const at::Tensor& slice, int from, const std::string& what) {
    std::vector<at::Tensor> tensors{slice.view(at::kByte)};
    return begun([&] { return gloo_->recv(tensors, from, tag_); }, from, what);
  }

  template <class Begin>
  Message begun(Begin begin, int peer, const std::string& what) {
    try {
      const std::lock_guard lock(mutex_);
      if (why_) std::rethrow_exception(why_);
      under_way_.push_back(begin());
      return {under_way_.back(), peer};
    } catch (const std::exception& error) {
      give_up(error, peer, what);
    }
  }

  void finish(const Message& message, const std::string& what) {
    try {
      if (!message.work->wait(timeout_)) fail("it was called off");
      const std::lock_guard lock(mutex_);
      std::erase(under_way_, message.work);
    } catch (const std::exception& error) {
      give_up(error, message.peer, what);
    }
  }

  // What has begun ends before its memory goes.
  [[noreturn]] void give_up(const std::exception& error, int peer, const std::string& what) {
    std::exception_ptr why;
    {
      const std::lock_guard lock(mutex_);
      under_way_.clear();  // all of this collective: their memory is let go when it ends
      if (!why_)
        why_ = std::make_exception_ptr(
            RankFailure(concat("rank ", peer, " is lost in the ", what, ": ", text_of(error))));
      why = why_;
    }
    std::rethrow_exception(why);
  }

  // The other ranks, in an order in which no two ranks begin with the same one.
  template <class With>
  void with_others(With with) {
    for (int k = 1; k < size(); ++k) with((rank() + size() - k) % size(), (rank() + k) % size());
  }

  void gather(const at::Tensor& whole, const Pieces& pieces, const std::string& what) {
    const std::int64_t length = slice_bytes_ / static_cast<std::int64_t>(whole.element_size());
    for (std::int64_t round = 0; round < rounds_of(pieces, length); ++round) {
      const auto slice = [&](int piece) { return slice_of(pieces[index(piece)], round, length); };
      to_host(whole, rank(), slice(rank()));
      wait_for_device(whole);
      std::vector<Message> messages;
      with_others([&](int from, int to) {
        if (slice(from).count > 0) messages.push_back(receive(on_host(whole, from, slice(from)), from, what));
        if (slice(rank()).count > 0)
          messages.push_back(send(on_host(whole, rank(), slice(rank())), to, what));
      });
      for (const Message& message : messages) finish(message, what);
      with_others([&](int from, int) { to_device(whole, from, slice(from)); });
      wait_for_device(whole);
    }
  }

  void add_up(const at::Tensor& whole, const Pieces& pieces, const Adding& with, const std::string& what) {
    const std::int64_t length = slice_bytes_ / static_cast<std::int64_t>(whole.element_size());
    for (std::int64_t round = 0; round < rounds_of(pieces, length); ++round) {
      const auto slice = [&](int piece) { return slice_of(pieces[index(piece)], round, length); };
      for (int piece = 0; piece < size(); ++piece) to_host(whole, piece, slice(piece));
      wait_for_device(whole);
      const Piece mine = slice(rank());
      std::vector<at::Tensor> parts(index(size()));  // of my slice, by rank
      for (int from = 0; from < size(); ++from)
        parts[index(from)] = from == rank()
                                 ? on_host(whole, from, mine)
                                 : received_[from].view(whole.scalar_type()).narrow(0, 0, mine.count);
      std::vector<Message> sent;
      std::vector<std::optional<Message>> come(index(size()));
      with_others([&](int from, int to) {
        if (mine.count > 0) come[index(from)] = receive(parts[index(from)], from, what);
        if (slice(to).count > 0) sent.push_back(send(on_host(whole, to, slice(to)), to, what));
      });
      std::fill_n(sum_.begin(), mine.count, -0.0F);  // what is added to it is as it was
      for (std::size_t from = 0; from < parts.size() && mine.count > 0; ++from) {
        if (come[from]) finish(*come[from], what);
        with.add(sum_.data(), parts[from].const_data_ptr(), mine.count);
      }
      with.round_into(parts[index(rank())].mutable_data_ptr(), sum_.data(), mine.count);
      to_device(whole, rank(), mine);
      for (const Message& message : sent) finish(message, what);
      wait_for_device(whole);
    }
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  const c10::Device device_;
  const std::chrono::milliseconds timeout_, delay_;
  const std::int64_t slice_bytes_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  at::Tensor received_, staged_;  // a slice for each rank; staged_: only of a GPU
  std::vector<float> sum_;
  std::optional<c10::Stream> stream_;  // of the thread, on a GPU
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<Work> under_way_;
  std::exception_ptr why_;
  std::uint64_t asked_ = 0;
  bool ending_ = false;
  int tag_ = 0;  // of the collective that is under way: ranks that ask for different ones wait, and are named
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Group> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    c10::Device device, const GlooOptions& options) {
  return std::make_shared<GlooGroup>(store, rank, size, device, options);
}

}  // namespace snug::zero
