#include "snug/zero/place.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "snug/base/error.h"

namespace snug::zero {

namespace {

constexpr int kUsualPort = 29500;  // torchrun's

// How one kind of launcher calls things.
struct Launcher {
  const char *name, *rank, *size, *local_rank, *local_size;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

class Variables {
 public:
  explicit Variables(const Environment& variable) : variable_(variable) {}

  std::optional<std::string> text(const char* name) const {
    const char* const value = variable_ ? variable_(name) : std::getenv(name);
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
  }
  std::optional<int> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    check(error == std::errc() && end == value->data() + value->size(), name,
          " must be a whole number, got \"", *value, "\"");
    return number;
  }
  // Of "4(x2)" 4.
  std::optional<int> first_number(const char* name) const {
    const auto value = text(name);
    int number = 0;
    if (!value || std::from_chars(value->data(), value->data() + value->size(), number).ec != std::errc())
      return std::nullopt;
    return number;
  }

 private:
  const Environment& variable_;
};

// "node[03-07,12],other": node03.
std::string first_of(std::string_view nodes) {
  const std::size_t bracket = nodes.find('['), comma = nodes.find(',');
  if (bracket > comma || bracket == nodes.npos) return std::string(nodes.substr(0, comma));
  const std::size_t end = nodes.find_first_of("-,]", bracket);
  return std::string(nodes.substr(0, bracket)) + std::string(nodes.substr(bracket + 1, end - bracket - 1));
}

// Where all ranks are on one machine they meet there.
std::string address_of(const Variables& variables, const Launcher& launcher, int size) {
  if (const auto given = variables.text("MASTER_ADDR")) return *given;
  if (std::string_view(launcher.name) == "srun")
    if (const auto nodes = variables.text("SLURM_STEP_NODELIST")) return first_of(*nodes);
  if (std::string_view(launcher.name) != "torchrun")
    if (const auto local = variables.text(launcher.local_size); local && *local == std::to_string(size))
      return "127.0.0.1";
  fail(launcher.size, " is ", size,
       " and MASTER_ADDR is not set: set it to the address of rank 0, and MASTER_PORT to a free port there");
}

}  // namespace

std::optional<Place> place_from_environment(const Environment& variable) {
  const Variables variables(variable);
  for (const Launcher& launcher : kLaunchers) {
    const auto size = variables.number(launcher.size);
    const auto rank = variables.number(launcher.rank);
    if (!size && !rank) continue;
    if (!size && std::string_view(launcher.name) == "srun") continue;  // a batch script, outside a step
    check(size.has_value(), launcher.rank, " is set and ", launcher.size, " is not: set both, or none");
    check(*size >= 1, launcher.size, " must be at least 1, got ", *size);
    check(rank.has_value(), launcher.size, " is set and ", launcher.rank, " is not: set both, or none");
    check(*rank >= 0 && *rank < *size, launcher.rank, " must be from 0 to ", *size - 1, ", got ", *rank);
    Place place{.rank = *rank, .size = *size};
    place.local_rank = variables.number(launcher.local_rank).value_or(*rank);
    place.local_size = std::clamp(variables.first_number(launcher.local_size).value_or(*size), 1, *size);
    if (*size == 1) return place;
    place.address = address_of(variables, launcher, *size);
    place.port = variables.number("MASTER_PORT").value_or(kUsualPort);
    check(place.port >= 1 && place.port <= 65535, "MASTER_PORT must be from 1 to 65535, got ", place.port);
    place.is_met_elsewhere = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    place.meeting = variables.text("TORCHELASTIC_RUN_ID").value_or("") + "/" +
                    variables.text("TORCHELASTIC_RESTART_COUNT").value_or("");
    return place;
  }
  return std::nullopt;
}

}  // namespace snug::zero
