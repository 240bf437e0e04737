#include "snug/zero/watched_group.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>

#include "snug/zero/failure.h"

namespace snug::zero {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string beat_of(int rank) {
  return concat("beat/", rank);
}
std::string left_of(int rank) {
  return concat("left/", rank);
}

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

[[noreturn]] void end_process(const std::string& why) {
  if (!why.empty()) std::fputs(("snug: " + why + "\n").c_str(), stderr);
  constexpr int kRunFailed = 3;
  _exit(kRunFailed);
}

class WatchedGroup final : public Group {
 public:
  WatchedGroup(std::shared_ptr<Group> group, const StorePtr& store, const WatchOptions& options)
      : Group(group->rank(), group->size()),
        group_(std::move(group)),
        store_(store->clone()),
        options_(options),
        interval_(std::clamp<milliseconds>(options.timeout / 12, milliseconds(10), milliseconds(1000))),
        seen_(static_cast<std::size_t>(size())) {
    store_->setTimeout(options.timeout / 3);
    thread_ = std::thread([this] { run(); });
    guard_ = std::thread([this] { guard(); });
  }

  ~WatchedGroup() override {
    if (std::uncaught_exceptions() > exceptions_) report("it ended with an exception");
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    leave();
    {
      const std::lock_guard lock(mutex_);
      has_left_ = true;
    }
    changed_.notify_all();
    guard_.join();
  }

  CollectivePtr all_gather(const at::Tensor& whole, const Pieces& pieces, const std::string& what,
                           const host::CopyPtr& piece_comes) override {
    return asked("all-gather of " + what,
                 [&] { return group_->all_gather(whole, pieces, what, piece_comes); });
  }
  CollectivePtr reduce_scatter(const at::Tensor& whole, const Pieces& pieces,
                               const std::string& what) override {
    return asked("reduce-scatter of " + what, [&] { return group_->reduce_scatter(whole, pieces, what); });
  }
  void together(const std::function<void()>& ask) override {
    explained([&] { group_->together(ask); });
  }
  std::vector<std::string> exchange(const std::string& mine, const std::string& what) override {
    const Outstanding under_way(*this, what);
    return explained([&] { return group_->exchange(mine, what); });
  }

  void abort(const std::exception_ptr& why) override { group_->abort(why); }
  std::string carrier() const override { return group_->carrier(); }
  std::uint64_t device_bytes() const override { return group_->device_bytes(); }

  bool report(const std::string& cause) override {
    fail_with(concat("rank ", rank(), " failed: ", cause));
    const std::lock_guard lock(mutex_);
    return failure_ && failure_->is_mine;
  }

 private:
  // While it is there this rank waits for the store.
  class Asking {
   public:
    explicit Asking(WatchedGroup& group) : group_(group) {
      const std::lock_guard lock(group_.mutex_);
      if (group_.asking_++ == 0) group_.asking_since_ = Clock::now();
    }
    ~Asking() {
      const std::lock_guard lock(group_.mutex_);
      --group_.asking_;
    }
    Asking(const Asking&) = delete;  // it is a stretch of time
    Asking& operator=(const Asking&) = delete;

   private:
    WatchedGroup& group_;
  };
  struct UnderWay {
    std::uint64_t number;
    std::string what;
    Clock::time_point since;
    CollectivePtr collective;  // null: somebody waits for it
  };

  class Explained final : public Collective {
   public:
    Explained(WatchedGroup& group, CollectivePtr inner) : group_(group), inner_(std::move(inner)) {}
    void wait() override {
      group_.explained([&] { inner_->wait(); });
    }
    void finish() override {
      group_.explained([&] { inner_->finish(); });
    }
    bool is_done() const override { return inner_->is_done(); }
    std::uint64_t number() const override { return inner_->number(); }

   private:
    WatchedGroup& group_;
    const CollectivePtr inner_;
  };

  // One that the host waits for.
  class Outstanding {
   public:
    Outstanding(WatchedGroup& group, const std::string& what) : group_(group), number_(group.note(what)) {}
    ~Outstanding() {
      const std::lock_guard lock(group_.mutex_);
      std::erase_if(group_.under_way_, [&](const UnderWay& one) { return one.number == number_; });
    }
    Outstanding(const Outstanding&) = delete;  // it is a stretch of time
    Outstanding& operator=(const Outstanding&) = delete;

   private:
    WatchedGroup& group_;
    const std::uint64_t number_;
  };

  std::uint64_t note(const std::string& what, CollectivePtr collective = nullptr) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back({++asked_, what, Clock::now(), std::move(collective)});
    return asked_;
  }

  template <class Ask>
  CollectivePtr asked(const std::string& what, const Ask& ask) {
    return explained([&]() -> CollectivePtr {
      CollectivePtr inner = ask();
      if (!inner) return nullptr;
      note(what, inner);
      return std::make_shared<Explained>(*this, std::move(inner));
    });
  }

  // What failed here may have failed because of another rank.
  template <class Call>
  std::invoke_result_t<Call> explained(const Call& call) {
    try {
      return call();
    } catch (const RankFailure& error) {
      fail_with(error.what());
      throw_failure();
    }
  }

  [[noreturn]] void throw_failure() {
    const std::lock_guard lock(mutex_);
    throw RankFailure(failure_->text, failure_->is_mine);
  }

  // The first to say so is right, and says it.
  void fail_with(const std::string& text) {
    if (failed()) return;
    Failure failure{text, options_.speaks_without_store};
    try {
      const Asking asking(*this);
      failure = note_failure(*store_, rank(), text, rank());
    } catch (const std::exception&) {  // it is gone
    }
    set_failure(failure);
  }

  void set_failure(const Failure& failure) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      failed_since_ = Clock::now();
    }
    group_->abort(std::make_exception_ptr(RankFailure(failure.text, failure.is_mine)));
  }

  std::string store_is_silent() const {
    return concat(options_.is_store_of_rank_0 ? concat("rank 0 of ", size()) : "whoever started the ranks",
                  " does not answer rank ", rank(),
                  " any more: it was stopped, has ended, or its machine is gone");
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      lock.unlock();
      look();
      lock.lock();
      changed_.wait_for(lock, interval_, [this] { return ending_; });
    }
  }

  // Asks the store nothing.
  void guard() {
    std::unique_lock lock(mutex_);
    while (!has_left_) {
      const bool is_stuck = asking_ > 0 && Clock::now() - asking_since_ > options_.timeout / 2;
      const bool is_over = failure_ && Clock::now() - failed_since_ > options_.timeout / 5;
      const std::string text = failure_ && failure_->is_mine ? failure_->text : "";
      lock.unlock();
      if (is_over) options_.end ? options_.end(text) : end_process(text);
      if (is_stuck) set_failure({store_is_silent(), options_.speaks_without_store});
      lock.lock();
      changed_.wait_for(lock, interval_, [this] { return has_left_; });
    }
  }

  void look() {
    if (failed()) return;
    try {
      const Asking asking(*this);
      beat();
      if (const auto failure = find_failure(*store_, rank())) {
        set_failure(*failure);
        return store_->set(left_of(rank()), "1");
      }
      if (const std::string silent = find_silent(); !silent.empty()) return fail_with(silent);
      if (const std::string overdue = find_overdue(); !overdue.empty()) return fail_with(overdue);
    } catch (const std::exception&) {
      fail_with(store_is_silent());
    }
  }

  std::optional<Failure> failed() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void beat() {
    std::uint64_t asked = 0;
    {
      const std::lock_guard lock(mutex_);
      asked = asked_;
    }
    store_->set(beat_of(rank()), concat(asked, " ", ++beats_));
  }

  // Collectives that a rank asked for; none: it is not there yet, or has left.
  std::optional<std::uint64_t> asked_by(int other) {
    if (!store_->check({beat_of(other)})) return std::nullopt;
    const std::string text = store_->get_to_str(beat_of(other));
    Seen& seen = seen_[static_cast<std::size_t>(other)];
    if (seen.beat != text) seen = {text, Clock::now()};
    std::uint64_t asked = 0;
    std::from_chars(text.data(), text.data() + text.size(), asked);
    return asked;
  }
  bool has_left(int other) { return store_->check({left_of(other)}); }

  std::string find_silent() {
    for (int other = 0; other < size(); ++other) {
      if (other == rank() || (rank() != 0 && other != 0) || !asked_by(other)) continue;
      const auto silence = Clock::now() - seen_[static_cast<std::size_t>(other)].since;
      if (silence > options_.timeout / 2 && !has_left(other))
        return concat("rank ", other, " of ", size(), " has been silent for ", seconds(silence),
                      " s: it was stopped, or its machine is gone", waiting());
    }
    return "";
  }

  // What this rank waits for.
  std::string waiting() {
    const std::lock_guard lock(mutex_);
    return under_way_.empty() ? "" : concat("; rank ", rank(), " is in the ", under_way_.front().what);
  }

  std::string find_overdue() {
    std::string what;
    {
      const std::lock_guard lock(mutex_);
      while (!under_way_.empty() && under_way_.front().collective &&
             under_way_.front().collective->is_done()) {
        under_way_.pop_front();
        if (!under_way_.empty()) under_way_.front().since = Clock::now();  // its turn has come
      }
      if (under_way_.empty() || Clock::now() - under_way_.front().since < options_.timeout * 3 / 4) return "";
      what = under_way_.front().what;
    }
    const std::uint64_t mine = *asked_by(rank());
    std::uint64_t fewest = mine;
    int last = rank();
    for (int other = 0; other < size(); ++other)
      if (const auto asked = asked_by(other); asked && *asked < fewest) {
        fewest = *asked;
        last = other;
      }
    const double limit = seconds(options_.timeout);
    if (last == rank()) return concat("the ", what, " takes longer than ", limit, " s on rank ", rank());
    return concat("rank ", last, " of ", size(), has_left(last) ? " has ended" : " has not come",
                  " while rank ", rank(), " waits for it in the ", what, " for nearly ", limit, " s");
  }

  // Rank 0 may hold the store: it stays until all have ended, or know of a failure, of which they may be.
  void leave() {
    try {
      const Asking asking(*this);
      store_->set(left_of(rank()), "1");
      if (rank() != 0 || !options_.is_store_of_rank_0) return;
      std::vector<std::string> all;
      for (int other = 0; other < size(); ++other) all.push_back(left_of(other));
      store_->wait(all, failed() ? options_.timeout / 5 : options_.timeout);
    } catch (const std::exception&) {  // they may be gone by now
    }
  }

  struct Seen {
    std::string beat;
    Clock::time_point since = Clock::now();
  };

  const std::shared_ptr<Group> group_;
  const StorePtr store_;  // a connection of our own
  const WatchOptions options_;
  const milliseconds interval_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<Seen> seen_;  // by rank; the thread's
  std::uint64_t beats_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UnderWay> under_way_;
  std::uint64_t asked_ = 0;
  std::optional<Failure> failure_;
  Clock::time_point failed_since_, asking_since_;
  int asking_ = 0;
  bool ending_ = false, has_left_ = false;
  std::thread thread_, guard_;
};

}  // namespace

std::shared_ptr<Group> watched(std::shared_ptr<Group> group, const StorePtr& store,
                               const WatchOptions& options) {
  return std::make_shared<WatchedGroup>(std::move(group), store, options);
}

}  // namespace snug::zero
