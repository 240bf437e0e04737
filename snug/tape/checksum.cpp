#include "snug/tape/checksum.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "snug/tape/checksum_cuda.h"
#include "snug/tape/checksum_words.h"
#include "snug/tape/quiet.h"
#include "snug/tape/streams.h"

namespace snug::tape {

namespace {

constexpr std::int64_t kWordsPerTask = 1 << 15;

std::uint64_t of_words(const char* bytes, std::int64_t first, std::int64_t last) {
  std::uint64_t sum = 0;
  for (std::int64_t i = first; i < last; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * 8, sizeof word);
    sum += stirred(word, static_cast<std::uint64_t>(i));
  }
  return sum;
}

std::uint64_t on_cpu(const char* bytes, std::size_t count) {
  const auto words = static_cast<std::int64_t>(count / 8);
  std::atomic<std::uint64_t> sum{0};
  at::parallel_for(0, words, kWordsPerTask,
                   [&](std::int64_t first, std::int64_t last) { sum += of_words(bytes, first, last); });
  if (const std::size_t rest = count % 8; rest > 0) {  // filled up with zeros
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + words * 8, rest);
    sum += stirred(word, static_cast<std::uint64_t>(words));
  }
  return sum;
}

const char* begin_of(const c10::Storage& storage) {
  return static_cast<const char*>(storage.data());
}

}  // namespace

std::uint64_t checksum(const c10::Storage& storage) {
  return checksum(storage, {.begin = 0, .end = storage.nbytes()});
}

std::uint64_t checksum(const c10::Storage& storage, const Span& span) {
  if (storage.device().is_meta() || span.size() == 0) return 0;
  const char* const bytes = begin_of(storage) + span.begin;
  if (storage.device().is_cpu()) return on_cpu(bytes, span.size());
  Quiet work_of_our_own;
  const at::Tensor sum = at::zeros({}, at::TensorOptions(at::kLong).device(storage.device()));
  add_checksum_on_cuda(storage.device(), bytes, span.size(),
                       static_cast<std::uint64_t*>(sum.mutable_data_ptr()));
  return static_cast<std::uint64_t>(sum.item<std::int64_t>());
}

Checksums::Ticket Checksums::reserve(c10::Device device) {
  const auto ticket = static_cast<Ticket>(sums_.size());
  Place place{};
  if (device.is_cuda()) {
    auto chunk = std::ranges::find_if(chunks_, [&](const Chunk& some) {
      return some.slots.device() == device && some.tickets.size() < kChunk;
    });
    if (chunk == chunks_.end()) {
      Quiet work_of_our_own;
      chunks_.push_back({.slots = at::zeros({kChunk}, at::TensorOptions(at::kLong).device(device)),
                         .stream = *current_stream(device),
                         .tickets = {}});
      chunk = std::prev(chunks_.end());
    }
    place = {static_cast<std::size_t>(chunk - chunks_.begin()), chunk->tickets.size()};
    chunk->tickets.push_back(ticket);
  }
  sums_.push_back(0);
  places_.push_back(place);
  return ticket;
}

void Checksums::take(Ticket ticket, const c10::Storage& storage) {
  if (storage.device().is_cpu()) {
    sums_[ticket] = on_cpu(begin_of(storage), storage.nbytes());
    return;
  }
  const Place& place = places_[ticket];
  const Chunk& chunk = chunks_[place.chunk];
  wait_for(chunk.stream);
  const c10::Stream current = *current_stream(storage.device());
  if (std::ranges::find(streams_, current) == streams_.end()) streams_.push_back(current);
  auto* const slots = static_cast<std::uint64_t*>(chunk.slots.mutable_data_ptr());
  add_checksum_on_cuda(storage.device(), begin_of(storage), storage.nbytes(), slots + place.slot);
}

void Checksums::join() {
  for (const c10::Stream& stream : streams_) wait_for(stream);
}

void Checksums::settle() {
  Quiet work_of_our_own;
  join();
  for (const Chunk& chunk : chunks_) {
    const at::Tensor sums = chunk.slots.cpu();
    const auto* const first = sums.const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < chunk.tickets.size(); ++i)
      sums_[chunk.tickets[i]] = static_cast<std::uint64_t>(first[i]);
  }
}

}  // namespace snug::tape
