#include "snug/zero/nccl_group.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <ifaddrs.h>
#include <nccl.h>
#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "snug/host/cuda_stream.h"

namespace snug::zero {

namespace {

using Clock = std::chrono::steady_clock;

ncclDataType_t type_of(at::ScalarType type) {
  if (type == at::kBFloat16) return ncclBfloat16;
  if (type == at::kHalf) return ncclFloat16;
  check(type == at::kFloat, "sums over ranks are of Float, BFloat16 or Half, got ", type);
  return ncclFloat32;
}

bool are_equal(const Pieces& pieces) {
  return std::ranges::all_of(pieces, [&](const Piece& piece) { return piece.count == pieces[0].count; });
}

// Of the network that this address is in; empty if there is none.
std::string interface_of(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char text[NI_MAXHOST];
    if (getnameinfo(one->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        text == address)
      return one->ifa_name;
  }
  return "";
}

// NCCL listens on an interface of its own choice otherwise.
void choose_interface(const std::string& address) {
  constexpr int kKeep = 0;
  if (const std::string name = interface_of(address); !name.empty())
    setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), kKeep);
}

// Note [Calls that return at once]
// A call of NCCL waits for all ranks, for ever if one does not come. So the communicator is one whose calls
// return at once: what they began is asked for until it is done, called off, or has taken too long.
class NcclGroup final : public Group {
 public:
  NcclGroup(std::shared_ptr<Group> host, c10::Device device, const NcclOptions& options)
      : Group(host->rank(), host->size()),
        host_(std::move(host)),
        timeout_(options.timeout),
        stream_(host::make_cuda_stream(device.has_index() ? device.index() : c10::cuda::current_device())) {
    choose_interface(options.address);
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    const std::size_t free_before = free_bytes();
    ncclUniqueId id{};
    if (rank() == 0) end_call("meeting of ranks over NCCL", ncclGetUniqueId(&id));
    const std::string first =
        host_->exchange({id.internal, rank() == 0 ? sizeof id.internal : 0}, "meeting over NCCL").front();
    ensure(first.size() == sizeof id.internal, "rank 0 has sent ", first.size(), " bytes to meet by");
    std::memcpy(id.internal, first.data(), first.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    end_call("meeting of ranks over NCCL",
             ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config));
    take_memory();
    const std::size_t free_now = free_bytes();
    device_bytes_ = free_before > free_now ? free_before - free_now : 0;
  }

  ~NcclGroup() override {
    if (!communicator_) return;
    try {
      end_call("end of NCCL", ncclCommFinalize(communicator_));
      ncclCommDestroy(communicator_);
    } catch (const std::exception&) {  // the others may be gone: called off
    }
  }

  CollectivePtr all_gather(const at::Tensor& whole, const Pieces& pieces, const std::string& what,
                           const host::CopyPtr& piece_comes) override {
    if (piece_comes) {
      const c10::cuda::CUDAStreamGuard guard(stream_);  // so that it is the one that waits
      piece_comes->wait();
    }
    return ask(whole, pieces, "all-gather of " + what, [&](const Part& mine, const Part& all) {
      if (are_equal(pieces))
        return ncclAllGather(mine.begin, all.begin, mine.bytes, ncclInt8, communicator_, stream_);
      return each(whole, pieces, [&](const Part& part, int root) {
        return ncclBroadcast(part.begin, part.begin, part.bytes, ncclInt8, root, communicator_, stream_);
      });
    });
  }

  CollectivePtr reduce_scatter(const at::Tensor& whole, const Pieces& pieces,
                               const std::string& what) override {
    const ncclDataType_t type = type_of(whole.scalar_type());
    const auto count = [&](const Part& part) { return part.bytes / whole.element_size(); };
    return ask(whole, pieces, "reduce-scatter of " + what, [&](const Part& mine, const Part& all) {
      if (are_equal(pieces))
        return ncclReduceScatter(all.begin, mine.begin, count(mine), type, ncclSum, communicator_, stream_);
      return each(whole, pieces, [&](const Part& part, int root) {
        return ncclReduce(part.begin, part.begin, count(part), type, ncclSum, root, communicator_, stream_);
      });
    });
  }

  void together(const std::function<void()>& ask) override {
    ++depth_;
    try {
      ask();
    } catch (...) {
      // What was asked for cannot be taken back, and the other ranks would wait for the rest.
      if (--depth_ == 0 && std::exchange(batch_, nullptr)) {
        {
          const std::lock_guard lock(mutex_);
          call_off(std::current_exception());
        }
        end_group();
      }
      throw;
    }
    if (--depth_ == 0 && batch_) launch();
  }

  std::vector<std::string> exchange(const std::string& mine, const std::string& what) override {
    return host_->exchange(mine, what);
  }

  void abort(const std::exception_ptr& why) override {
    {
      const std::lock_guard lock(mutex_);
      call_off(why);
    }
    host_->abort(why);
  }

  std::string carrier() const override { return "NCCL"; }
  std::uint64_t device_bytes() const override { return device_bytes_; }

 private:
  struct Part {
    char* begin;
    std::size_t bytes;
  };

  // What travels as one: a single call of NCCL, and one event when it is done.
  struct Batch {
    std::atomic<bool> is_launched = false;
    c10::cuda::CUDAEvent done;  // written once, so any thread may wait for it
  };

  class Asked final : public Collective {
   public:
    Asked(NcclGroup& group, std::shared_ptr<Batch> batch, std::uint64_t number)
        : group_(group), batch_(std::move(batch)), number_(number) {}
    void wait() override {
      launch();
      batch_->done.block(c10::cuda::getCurrentCUDAStream(batch_->done.device_index()));
    }
    void finish() override {
      launch();
      batch_->done.synchronize();
      group_.throw_if_called_off();
    }
    bool is_done() const override { return batch_->is_launched && group_.is_over(*batch_); }
    std::uint64_t number() const override { return number_; }

   private:
    void launch() {
      group_.throw_if_called_off();
      if (batch_->is_launched) return;
      ensure(group_.batch_ == batch_, "a collective over NCCL that another thread began");
      group_.launch();
    }

    NcclGroup& group_;
    const std::shared_ptr<Batch> batch_;
    const std::uint64_t number_;
  };

  static std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  }

  // Before anybody measures what is free: NCCL makes its buffers when it first takes a way to do something,
  // and that depends on the size.
  void take_memory() {
    constexpr std::int64_t kLarge = std::int64_t{1} << 22, kMost = std::int64_t{1} << 28;  // elements
    for (const std::int64_t each :
         {std::int64_t{1}, std::max<std::int64_t>(1, std::min(kLarge, kMost / size()))}) {
      const at::Tensor whole = at::zeros(
          {size() * each + 1}, at::TensorOptions(at::kFloat).device(at::kCUDA, stream_.device_index()));
      Pieces pieces;
      for (std::int64_t rank = 0; rank < size(); ++rank) pieces.push_back({rank * each, each});
      const at::Tensor even = whole.narrow(0, 0, size() * each);
      finish_in_time(reduce_scatter(even, pieces, "memory of NCCL"), "first sums");
      finish_in_time(all_gather(even, pieces, "memory of NCCL", nullptr), "first gather");
      ++pieces.back().count;
      finish_in_time(reduce_scatter(whole, pieces, "memory of NCCL"), "first sums of uneven pieces");
      finish_in_time(all_gather(whole, pieces, "memory of NCCL", nullptr), "first gather of uneven pieces");
    }
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  // Ranks that have met may still not reach each other's memory; nobody else watches yet.
  void finish_in_time(const CollectivePtr& asked, const std::string& what) {
    constexpr auto kPause = std::chrono::microseconds(50);
    const auto until = Clock::now() + timeout_;
    while (!asked->is_done()) {
      if (Clock::now() > until)
        give_up(concat("the ", what, " over NCCL did not end within ",
                       std::chrono::duration<double>(timeout_).count(),
                       " s: ranks have met, but do not reach each other's GPUs; NCCL_DEBUG=INFO says what it "
                       "tries, NCCL_P2P_DISABLE=1 goes around direct access between GPUs"));
      std::this_thread::sleep_for(kPause);
    }
    asked->finish();
  }

  // Done, or failed: of what failed nobody knows more than that.
  bool is_over(const Batch& batch) {
    try {
      if (batch.done.query()) return true;
    } catch (const std::exception&) {  // the device failed: whoever waits is told by it
      return true;
    }
    const std::lock_guard lock(mutex_);
    ncclResult_t state = ncclSuccess;
    if (why_ || is_open_ || !communicator_) return why_ != nullptr;
    if (ncclCommGetAsyncError(communicator_, &state) == ncclSuccess && !is_wrong(state)) return false;
    call_off(std::make_exception_ptr(RankFailure(concat("rank ", rank(), ": ", said_of(state)))));
    return true;
  }

  static Part part_of(const at::Tensor& whole, const Piece& piece) {
    const auto width = static_cast<std::int64_t>(whole.element_size());
    return {static_cast<char*>(whole.mutable_data_ptr()) + piece.begin * width,
            static_cast<std::size_t>(piece.count * width)};
  }

  // What each rank has, as one thing that NCCL is asked for.
  template <class Ask>
  ncclResult_t each(const at::Tensor& whole, const Pieces& pieces, const Ask& ask) {
    ncclGroupStart();
    ncclResult_t result = ncclSuccess;
    for (int root = 0; root < size() && !is_wrong(result); ++root)
      if (const Part part = part_of(whole, pieces[static_cast<std::size_t>(root)]); part.bytes > 0)
        result = ask(part, root);
    const ncclResult_t ended = ncclGroupEnd();
    return is_wrong(result) ? result : ended;
  }

  template <class Begin>
  CollectivePtr ask(const at::Tensor& whole, const Pieces& pieces, const std::string& what,
                    const Begin& begin) {
    check_given(whole, pieces, what);
    ensure(whole.is_cuda(), what, " is on ", whole.device());
    {
      const std::lock_guard lock(mutex_);
      if (why_) std::rethrow_exception(why_);
      if (!batch_) {
        batch_ = std::make_shared<Batch>();
        what_ = what;
        is_open_ = true;
        ncclGroupStart();
      }
      begun_ =
          begin(part_of(whole, pieces[static_cast<std::size_t>(rank())]), part_of(whole, {0, whole.numel()}));
    }
    const std::shared_ptr<Batch> batch = batch_;
    if (depth_ == 0 || is_wrong(begun_)) launch();
    return std::make_shared<Asked>(*this, batch, ++number_);
  }

  // After what the device's current stream was given so far.
  void launch() {
    const std::shared_ptr<Batch> batch = std::exchange(batch_, nullptr);
    ensure(batch != nullptr, "a collective over NCCL that another thread began");
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    asked_.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    asked_.block(stream_);
    const ncclResult_t ended = end_group();
    end_call(what_, is_wrong(begun_) ? begun_ : ended);
    throw_if_called_off();  // while the group was being ended
    batch->done.record(stream_);
    batch->is_launched = true;
  }

  void throw_if_called_off() const {
    const std::lock_guard lock(mutex_);
    if (why_) std::rethrow_exception(why_);
  }

  // See Note [Calls that return at once].
  void end_call(const std::string& what, ncclResult_t result) {
    constexpr auto kPause = std::chrono::microseconds(10);
    const auto until = Clock::now() + timeout_;
    while (result == ncclInProgress) {
      {
        const std::lock_guard lock(mutex_);
        if (why_) std::rethrow_exception(why_);
        const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &result);
        if (asked != ncclSuccess) result = asked;
      }
      if (result != ncclInProgress) break;
      if (Clock::now() > until)
        give_up(concat("not all ranks have come to the ", what, " within ",
                       std::chrono::duration<double>(timeout_).count(), " s"));
      std::this_thread::sleep_for(kPause);
    }
    if (result == ncclSuccess) return;
    std::string text;
    {
      const std::lock_guard lock(mutex_);
      text = said_of(result);
    }
    give_up(concat("the ", what, " failed: ", text));
  }

  // Under the lock.
  std::string said_of(ncclResult_t result) const {
    const char* const last = communicator_ ? ncclGetLastError(communicator_) : nullptr;
    return concat("NCCL: ", ncclGetErrorString(result), last && *last ? concat(": ", last) : "");
  }

  [[noreturn]] void give_up(const std::string& text) {
    const std::lock_guard lock(mutex_);
    call_off(std::make_exception_ptr(RankFailure(concat("rank ", rank(), ": ", text))));
    std::rethrow_exception(why_);
  }

  static bool is_wrong(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

  ncclResult_t end_group() {
    const std::lock_guard lock(mutex_);
    const ncclResult_t result = ncclGroupEnd();
    is_open_ = false;
    if (why_) call_off(why_);
    return result;
  }

  // The first is why. What a thread is about to launch uses the communicator: that thread ends it then.
  void call_off(const std::exception_ptr& why) {
    if (!why_) why_ = why;
    if (is_open_) return;
    if (ncclComm* const communicator = std::exchange(communicator_, nullptr)) ncclCommAbort(communicator);
  }

  const std::shared_ptr<Group> host_;
  const std::chrono::milliseconds timeout_;
  const c10::cuda::CUDAStream stream_;
  c10::cuda::CUDAEvent asked_;  // who waits for it waits for what was recorded then, so one is enough
  std::uint64_t number_ = 0, device_bytes_ = 0;
  int depth_ = 0;                 // of together()
  std::shared_ptr<Batch> batch_;  // that is not launched yet; of one thread, as NCCL's groups are
  std::string what_;              // its first
  ncclResult_t begun_ = ncclSuccess;
  mutable std::mutex mutex_;
  bool is_open_ = false;              // a group of NCCL's
  ncclComm* communicator_ = nullptr;  // null: called off
  std::exception_ptr why_;
};

}  // namespace

std::string nccl_name_of(c10::Device device) {
  if (!device.is_cuda()) return "";
  const c10::cuda::OptionalCUDAGuard guard(device);
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, c10::cuda::current_device()));
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const char byte : properties.uuid.bytes) {
    name += kDigits[static_cast<unsigned char>(byte) >> 4];
    name += kDigits[static_cast<unsigned char>(byte) & 0xF];
  }
  return name;
}

std::shared_ptr<Group> connect_nccl(std::shared_ptr<Group> host, c10::Device device,
                                    const NcclOptions& options) {
  return std::make_shared<NcclGroup>(std::move(host), device, options);
}

}  // namespace snug::zero
