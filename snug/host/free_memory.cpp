#include "snug/host/free_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/base/parse.h"

namespace snug::host {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The number behind a key in lines of "key number ..."; a file that is not there has none.
std::optional<std::uint64_t> number_of(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (first == key) return parse_all<std::uint64_t>(second);
  }
  return std::nullopt;
}

// Nothing where the file is missing or says "max".
std::optional<std::uint64_t> only_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return parse_all<std::uint64_t>(word);
}

// The names of one version's files.
struct Version {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat: files in the cache that were not read lately
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Version kVersion2{"memory.max", "memory.current", "inactive_file"};

std::uint64_t free_in(const fs::path& group, const Version& version) {
  const auto limit = only_number(group / version.limit);
  const auto usage = only_number(group / version.usage);
  if (!limit || !usage) return kUnlimited;
  const std::uint64_t reclaimable = number_of(group / "memory.stat", version.reclaimable).value_or(0);
  const std::uint64_t held = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, held);
}

std::uint64_t limit_of(const fs::path& group, const Version& version) {
  return only_number(group / version.limit).value_or(kUnlimited);
}

using OfGroup = std::uint64_t (*)(const fs::path& group, const Version& version);

// Every level counts: a limit holds for all groups below it. In a container the mounted root may itself be
// the process's group while its path is told as the host sees it: levels that are not there are skipped.
std::uint64_t least_up_from(const fs::path& mount, const fs::path& group, const Version& version,
                            OfGroup of_group) {
  std::uint64_t least = of_group(mount, version);
  fs::path level = mount;
  for (const fs::path& name : group.relative_path().lexically_normal()) {
    if (name == "..") break;  // outside of what is mounted
    level /= name;
    least = std::min(least, of_group(level, version));
  }
  return least;
}

bool has_memory(std::string_view controllers) {
  std::istringstream names{std::string(controllers)};
  for (std::string name; std::getline(names, name, ',');)
    if (name == "memory") return true;
  return false;
}

std::uint64_t least_of_groups(const fs::path& root, OfGroup of_group) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::uint64_t least = kUnlimited;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:memory:/a/b" (version 1), "0::/a/b" (version 2)
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (has_memory(controllers))
      least = std::min(least, least_up_from(mount / "memory", group, kVersion1, of_group));
    if (controllers.empty()) least = std::min(least, least_up_from(mount, group, kVersion2, of_group));
  }
  return least;
}

}  // namespace

std::uint64_t free_host_bytes_below(const fs::path& root) {
  const auto available = number_of(root / "proc/meminfo", "MemAvailable:");
  check(available.has_value(), (root / "proc/meminfo").string(), ": has no line MemAvailable");
  return std::min(*available * 1_KiB, least_of_groups(root, free_in));
}

std::uint64_t host_limit_bytes_below(const fs::path& root) {
  return least_of_groups(root, limit_of);
}

}  // namespace snug::host
