#include "snug/zero/join.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "snug/base/error.h"
#include "snug/zero/failure.h"
#include "snug/zero/gloo_group.h"
#include "snug/zero/meeting.h"
#include "snug/zero/nccl_group.h"
#include "snug/zero/watched_group.h"

namespace snug::zero {

namespace {

std::string here(int rank) {
  return concat("here/", rank);
}

std::string missing_of(c10d::Store& store, int size) {
  std::string missing;
  for (int rank = 0; rank < size; ++rank)
    if (!store.check({here(rank)})) missing += concat(missing.empty() ? "" : ", ", rank);
  return missing;
}

constexpr auto kPause = std::chrono::milliseconds(20);

// Rank 0 may hold the store: all others look there once more before it goes.
void let_others_look() {
  std::this_thread::sleep_for(10 * kPause);
}

// Until all of these are in the store, or somebody has failed.
template <class IsHopeless>
void wait_for(c10d::Store& store, const Place& place, const std::vector<std::string>& keys,
              std::chrono::milliseconds timeout, const IsHopeless& is_hopeless) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!store.check(keys)) {
    if (const auto failure = find_failure(store, place.rank)) {
      if (place.rank == 0) let_others_look();
      throw RankFailure(failure->text, failure->is_mine);
    }
    is_hopeless(std::chrono::steady_clock::now() > until);
    std::this_thread::sleep_for(kPause);
  }
}

void wait_for_all(c10d::Store& store, const Place& place, std::chrono::milliseconds timeout) {
  constexpr const char* kTwice = "twice";
  if (store.add(here(place.rank), 1) > 1) {
    store.set(kTwice, std::to_string(place.rank));
    fail("rank ", place.rank, " of ", place.size, " is there twice: every process needs a RANK of its own");
  }
  const std::string size = store.compareSet("size", "", std::to_string(place.size));
  check(size == std::to_string(place.size), "rank ", place.rank, " was told of ", place.size,
        " ranks, another one of ", size, ": all need the same WORLD_SIZE");
  std::vector<std::string> all;
  for (int rank = 0; rank < place.size; ++rank) all.push_back(here(rank));
  wait_for(store, place, all, timeout, [&](bool is_late) {
    if (store.check({kTwice})) {
      const std::string twice = store.get_to_str(kTwice);
      if (place.rank == 0) let_others_look();
      throw RankFailure(concat("rank ", twice, " is there twice"), /*is_to_be_said=*/false);
    }
    if (is_late)
      throw RankFailure(concat("of ", place.size, " ranks, ", missing_of(store, place.size),
                               " did not come within ", timeout.count() / 1000.0, " s"),
                        /*is_to_be_said=*/place.rank == 0);
  });
}

// Of each machine the first rank that does not hold the store.
bool speaks_for_machine(const Place& place) {
  if (place.is_met_elsewhere) return place.local_rank == 0;
  return place.rank == 1 || (place.local_rank == 0 && place.rank > 1);
}

// Why NCCL cannot carry what ranks with these GPUs do together; empty if it can.
std::string why_no_nccl(const std::vector<std::string>& gpus) {
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    if (gpus[rank].empty()) return concat("rank ", rank, " has no GPU, or a build without NCCL");
    const auto first = static_cast<std::size_t>(std::ranges::find(gpus, gpus[rank]) - gpus.begin());
    if (first < rank) return concat("ranks ", first, " and ", rank, " have the same GPU");
  }
  return "";
}

// What all ranks find, the first says.
[[noreturn]] void refuse(const Place& place, const std::string& text) {
  if (place.rank != 0) throw RankFailure(text, /*is_to_be_said=*/false);
  let_others_look();
  fail(text);
}

bool takes_nccl(const Place& place, const std::vector<std::string>& gpus, Backend backend) {
  if (backend == Backend::Gloo) return false;
  const std::string why_not = why_no_nccl(gpus);
  if (backend == Backend::Nccl && !why_not.empty())
    refuse(place,
           concat("NCCL needs a GPU of its own for each rank: ", why_not, "; gloo carries what it cannot"));
  return why_not.empty();
}

// Where this rank fails, the others wait for it: it writes down why.
template <class Call>
auto told(c10d::Store& store, const Place& place, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const Failure failure =
        note_failure(store, place.rank,
                     concat("rank ", place.rank, " of ", place.size,
                            " cannot connect to the others: ", text.substr(0, text.find('\n'))),
                     place.rank);
    throw RankFailure(failure.text, failure.is_mine);
  }
}

bool takes_nccl_for_all(c10d::Store& store, const Place& place, c10::Device device,
                        const JoinOptions& options) {
  const std::string gpu = told(store, place, [&] { return nccl_name_of(device); });
  std::vector<std::string> keys;
  for (int rank = 0; rank < place.size; ++rank) keys.push_back(concat("backend/", rank));
  store.set(keys[static_cast<std::size_t>(place.rank)],
            Json{{"backend", name(options.backend)}, {"gpu", gpu}}.dump());
  wait_for(store, place, keys, options.timeout, [&](bool is_late) {
    if (is_late)
      throw RankFailure(concat("not all of ", place.size, " ranks have said within ",
                               options.timeout.count() / 1000.0, " s which GPU they have"),
                        /*is_to_be_said=*/place.rank == 0);
  });
  std::vector<std::string> backends, gpus;
  for (const std::vector<std::uint8_t>& text : store.multiGet(keys)) {
    const Json theirs = Json::parse(text);
    backends.push_back(theirs["backend"]);
    gpus.push_back(theirs["gpu"]);
  }
  const auto other = std::ranges::find_if(backends, [&](const auto& one) { return one != backends[0]; });
  if (other != backends.end())
    refuse(place, concat("ranks do not train the same: backend ", backends[0], " and ", *other,
                         " on ranks 0 and ", other - backends.begin()));
  return takes_nccl(place, gpus, options.backend);
}

std::shared_ptr<Group> connect(const Place& place, c10::Device device, const JoinOptions& options,
                               const StorePtr& store) {
  const bool over_nccl = takes_nccl_for_all(*store, place, device, options);
  return told(*store, place, [&] {
    const std::string address = address_towards(place.address, place.port);
    const auto gloo = connect_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), place.rank,
                                   place.size, over_nccl ? at::kCPU : device,
                                   {.address = address, .timeout = options.timeout, .delay = options.delay});
    return over_nccl ? connect_nccl(gloo, device, {.address = address, .timeout = options.timeout}) : gloo;
  });
}

// The first place where two of them differ.
std::string difference(const Json& one, const Json& other, const std::string& within) {
  if (one == other) return "";
  if (one.is_object() && other.is_object()) {
    for (const auto& [key, value] : one.items()) {
      const Json none;
      const Json& there = other.contains(key) ? other[key] : none;
      if (const auto found = difference(value, there, within.empty() ? key : within + "." + key);
          !found.empty())
        return found;
    }
    for (const auto& [key, value] : other.items())
      if (!one.contains(key)) return difference(Json(), value, within.empty() ? key : within + "." + key);
  }
  return concat(within, " ", one.dump(), " and ", other.dump());
}

}  // namespace

Backend parse_backend(std::string_view text) {
  using enum Backend;
  for (const Backend backend : {Auto, Nccl, Gloo})
    if (text == name(backend)) return backend;
  fail("`backend` must be auto, nccl or gloo, got \"", text, "\"");
}

std::string_view name(Backend backend) {
  return backend == Backend::Auto ? "auto" : backend == Backend::Nccl ? "nccl" : "gloo";
}

std::shared_ptr<Group> join(const Place& place, c10::Device device, const JoinOptions& options) {
  if (place.size == 1) {
    const auto alone = imagined_group(0, 1);
    const bool over_nccl =
        options.backend == Backend::Nccl && takes_nccl(place, {nccl_name_of(device)}, options.backend);
    return over_nccl ? connect_nccl(alone, device, {.timeout = options.timeout}) : alone;
  }
  const StorePtr store = meet(place, options.timeout);
  wait_for_all(*store, place, options.timeout);
  return watched(connect(place, device, options, store), store,
                 {.timeout = options.timeout,
                  .is_store_of_rank_0 = !place.is_met_elsewhere,
                  .speaks_without_store = speaks_for_machine(place),
                  .end = options.end});
}

void check_agree(Group& group, const Json& facts) {
  const std::vector<std::string> all = group.exchange(facts.dump(), "comparison of the ranks");
  const Json first = Json::parse(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string found = difference(first, Json::parse(all[rank]), "");
    check(found.empty(), "ranks do not train the same: ", found, " on ranks 0 and ", rank);
  }
}

}  // namespace snug::zero
