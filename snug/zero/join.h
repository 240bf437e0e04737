// Ranks come together.
//
//   const auto place = place_from_environment();
//   const auto group = join(place.value_or(Place()), device);
//   check_agree(*group, facts);                                // all train the same
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "snug/base/json.h"
#include "snug/zero/group.h"
#include "snug/zero/place.h"

namespace snug::zero {

// What carries collectives.
enum class Backend {
  Auto,  // NCCL where each rank has a GPU of its own, else Gloo
  Nccl,
  Gloo
};

SNUG_API Backend parse_backend(std::string_view text);
SNUG_API std::string_view name(Backend backend);

struct JoinOptions {
  Backend backend = Backend::Auto;
  // Of every collective, and until all are there: a rank that is lost, stopped or failed ends all others
  // within it.
  std::chrono::milliseconds timeout{120'000};
  std::chrono::milliseconds delay{0};                         // of each collective: see GlooOptions
  std::function<void(const std::string& why)> end = nullptr;  // see WatchOptions
};

// Waits for all ranks. Throws Error for a rank that is there twice and for a back end that cannot carry
// theirs, RankFailure for ranks that do not come.
SNUG_API std::shared_ptr<Group> join(const Place& place, c10::Device device, const JoinOptions& options = {});

// Throws Error, the same on all ranks, that names the first key whose values differ, and who has which.
SNUG_API void check_agree(Group& group, const Json& facts);

}  // namespace snug::zero
