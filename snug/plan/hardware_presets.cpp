// Machines by name. Public figures, scaled by the shares of them that were measured on an H200 (torch 2.11).
#include <cctype>
#include <cmath>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/plan/hardware.h"

namespace snug::plan {
namespace {

constexpr double kMatmulShare = 0.73;  // median 725e12 of 989e12 over the matmuls of 1.3B and 7B models, bf16
constexpr double kMemoryShare = 0.875;  // 4.2e12 of 4.8e12
// Causal, heads of 128: torch's flash attention, which is written for Ampere, where its paper (Dao 2023)
// reports 50 to 73 %; on Hopper cuDNN's, forward and backward together 530e12 of 989e12 on an H200.
constexpr double kAttentionShareAmpere = 0.55;
constexpr double kAttentionShareHopper = 0.536;
constexpr double kPcie5 = 55e9;          // measured, of 63e9
constexpr double kPcie4 = 25e9;          // what pinned copies commonly reach of 31.5e9
constexpr double kLaunchSeconds = 5e-6;  // an eager operator's way through the dispatcher; not measured

// Of an H200's machine (16 cores, PCIe 5): both directions of the link together, of twice one; matrix
// products meanwhile took 6 to 8 % longer.
constexpr double kBothWaysShare = 101.0 / 110;
constexpr double kCopySlowdown = 0.07;
// AdamW in fp32 moves 28 bytes per parameter. Measured on that machine, 4.5e9 parameters; two channels of
// DDR5, half of that.
constexpr double kAdamServer = 4.5e9;
constexpr double kAdamDesktop = 2.2e9;
constexpr double kDisk = 1.4e9;  // measured on that machine

// Between GPUs. NVLink: 0.8 of a direction, as NCCL's all-gathers and reduce-scatters commonly reach in a
// machine of eight. PCI Express without access from GPU to GPU: through the host's memory, about half of the
// link. Networks: 0.9 of a card of 400 Gb/s per GPU, of 200 Gb/s with A100s; of one that up to 8
// GPUs of a machine share, of 100 Gb/s in clouds, of 10 Gb/s in an office. None of these was measured here.
constexpr double kNvlink4 = 0.8 * 450e9;
constexpr double kNvlink3 = 0.8 * 300e9;
constexpr double kPcie4Peer = 12e9;
constexpr double kNetwork400 = 0.9 * 50e9;
constexpr double kNetwork200 = 0.9 * 25e9;
constexpr double kNetwork100 = 0.9 * 12.5e9;
constexpr double kNetwork10 = 0.9 * 1.25e9;

constexpr std::uint64_t gib(double count) {
  return static_cast<std::uint64_t>(count * static_cast<double>(1_GiB));
}

struct DataSheet {
  const char* name;
  double memory_gib;  // the total that CUDA reports, rounded down: less than what is on the label
  double bf16;        // dense, sums in fp32
  double fp32;        // outside the tensor cores
  double memory_rate;
  double attention_share;
  double link;
  double host_gib;  // of a usual machine around it; the H200's was measured
  double adam;
  double peer, network;
  std::int64_t ranks_per_network = 1;
};

constexpr DataSheet kDataSheets[] = {
    // NVIDIA H200 data sheet, SXM: 141 GB, 4.8 TB/s, 989 and 67 TFLOP/s
    {"h200", 139.7, 989e12, 67e12, 4.8e12, kAttentionShareHopper, kPcie5, 125, kAdamServer, kNvlink4,
     kNetwork400},
    // NVIDIA H100 data sheet, SXM: 80 GB, 3.35 TB/s, 989 and 67 TFLOP/s
    {"h100", 79.1, 989e12, 67e12, 3.35e12, kAttentionShareHopper, kPcie5, 125, kAdamServer, kNvlink4,
     kNetwork400},
    // NVIDIA A100 data sheet: 40 GB, 1555 GB/s, 312 and 19.5 TFLOP/s
    {"a100-40", 39.3, 312e12, 19.5e12, 1.555e12, kAttentionShareAmpere, kPcie4, 125, kAdamServer, kNvlink3,
     kNetwork200},
    // NVIDIA A100 data sheet, SXM: 80 GB, 2039 GB/s, 312 and 19.5 TFLOP/s
    {"a100-80", 79.1, 312e12, 19.5e12, 2.039e12, kAttentionShareAmpere, kPcie4, 125, kAdamServer, kNvlink3,
     kNetwork200},
    // NVIDIA Ada whitepaper: 24 GB, 1008 GB/s, 165.2 and 82.6 TFLOP/s
    {"rtx4090", 23.6, 165.2e12, 82.6e12, 1.008e12, kAttentionShareAmpere, kPcie4, 62, kAdamDesktop,
     kPcie4Peer, kNetwork10, 8},
    // NVIDIA GA102 whitepaper: 24 GB, 936 GB/s, 71 and 35.6 TFLOP/s
    {"rtx3090", 23.6, 71e12, 35.6e12, 936e9, kAttentionShareAmpere, kPcie4, 62, kAdamDesktop, kPcie4Peer,
     kNetwork10, 8},
    // NVIDIA L4 data sheet: 24 GB, 300 GB/s, 242 (half of it without sparsity) and 30.3 TFLOP/s
    {"l4", 22.0, 121e12, 30.3e12, 300e9, kAttentionShareAmpere, kPcie4, 62, kAdamDesktop, kPcie4Peer,
     kNetwork100, 8},
};

Hardware from_data_sheet(const DataSheet& sheet) {
  return {
      .name = sheet.name,
      .is_gpu = true,
      .memory_bytes = gib(sheet.memory_gib),
      .outside_bytes = kUsualOutside,
      .host_bytes = gib(sheet.host_gib),
      .matmul_flops_fp32 = kMatmulShare * sheet.fp32,
      .matmul_flops_bf16 = kMatmulShare * sheet.bf16,
      .attention_flops = sheet.attention_share * sheet.bf16,
      .memory_rate = kMemoryShare * sheet.memory_rate,
      .to_host_rate = sheet.link,
      .to_device_rate = sheet.link,
      .both_ways_rate = kBothWaysShare * 2 * sheet.link,
      .copy_slowdown = kCopySlowdown,
      .operation_seconds = kLaunchSeconds,
      .adam_rate = sheet.adam,
      .peer_rate = sheet.peer,
      .network_rate = sheet.network,
      .ranks_per_network = sheet.ranks_per_network,
      .disk_rate = kDisk,
  };
}

// Two cores with AVX2 and no bf16 instructions: round figures for a first plan, no data sheet.
Hardware modest_cpu() {
  return {
      .name = "cpu",
      .memory_bytes = 8_GiB,
      .host_bytes = 8_GiB,
      .matmul_flops_fp32 = 60e9,
      .matmul_flops_bf16 = 30e9,
      .attention_flops = 30e9,
      .memory_rate = 8e9,
      .operation_seconds = kLaunchSeconds,
      .adam_rate = 0.28e9,
      .peer_rate = 1e9,
      .network_rate = kNetwork10,
      .ranks_per_network = 8,
      .disk_rate = 0.5e9,
  };
}

// "rtx4090" is in "GeForce RTX 4090", "h100" in "H100 80GB", "l4" not in "L40".
bool has_words(std::string_view text, std::string_view joined) {
  std::vector<std::string> words(1);
  for (const unsigned char letter : text) {
    if (std::isalnum(letter))
      words.back() += static_cast<char>(std::tolower(letter));
    else
      words.emplace_back();
  }
  for (std::size_t first = 0; first < words.size(); ++first) {
    std::string here;
    for (std::size_t i = first; i < words.size() && here.size() < joined.size(); ++i) here += words[i];
    if (here == joined) return true;
  }
  return false;
}

std::vector<Hardware> make_presets() {
  std::vector<Hardware> made;
  for (const DataSheet& sheet : kDataSheets) made.push_back(from_data_sheet(sheet));
  made.push_back(modest_cpu());
  return made;
}

}  // namespace

const std::vector<Hardware>& presets() {
  static const std::vector<Hardware> all = make_presets();
  return all;
}

Hardware preset(std::string_view name) {
  for (const Hardware& hardware : presets()) {
    if (hardware.name == name) return hardware;
  }
  fail("no hardware preset ", name, ": expected one of ", preset_names());
}

Hardware preset_like(std::string_view device_name, std::uint64_t memory_bytes) {
  const auto is_named = [&](const Hardware& hardware) {
    return hardware.is_gpu && has_words(device_name, hardware.name.substr(0, hardware.name.find('-')));
  };
  const auto off_by = [&](const Hardware& hardware) {
    return std::abs(static_cast<double>(hardware.memory_bytes) - static_cast<double>(memory_bytes));
  };
  const Hardware* found = nullptr;
  for (const Hardware& hardware : presets())
    if (is_named(hardware) && (!found || off_by(hardware) < off_by(*found))) found = &hardware;
  Hardware like = found ? *found : preset("h200");
  like.memory_bytes = memory_bytes;
  return like;
}

std::string preset_names() {
  std::string names;
  for (const Hardware& hardware : presets()) {
    if (!names.empty()) names += ", ";
    names += hardware.name;
  }
  return names;
}

}  // namespace snug::plan
