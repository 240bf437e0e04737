#include "snug/tape/proof.h"

#include <algorithm>
#include <utility>

#include "snug/base/error.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

constexpr std::uint64_t kTheEnd = ~std::uint64_t{0};
constexpr std::uint64_t kGiven = 0x6177617920746f21;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t what) {
  hash = (hash ^ what) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace

Proof::Proof(Tape& tape, std::shared_ptr<Site> site, bool prove, bool verify)
    : tape_(tape),
      site_(std::move(site)),
      known_(site_->known()),
      proves_(prove && site_->wants_proof()),
      verify_(verify),
      from_the_start_(proves_) {}

bool Proof::goes_on(std::uint64_t what) {
  structure_ = mixed(structure_, what);
  if (from_the_start_) prefixes_.push_back(structure_);
  if (has_ended_ || !tape_.options().prove || known_->prefixes.contains(structure_)) return false;
  if (!std::exchange(is_new_, true)) tape_.distrust_previous();
  if (proves_) return false;
  proves_ = true;
  site_->went_another_way();
  return true;
}

std::uint64_t Proof::name(std::uint32_t output) const {
  return mixed(structure_, output + 1);
}

Proof::Entry& Proof::entry(const ValuePtr& value, const c10::Storage& storage) {
  if (value->proof) return entries_[*value->proof];
  const auto reserve = [&] { return sums_.reserve(value->device); };
  entries_.push_back({.value = value,
                      .held_value = ProofsValue(proves_ ? value : nullptr),
                      .held = proves_ ? storage : c10::Storage(),
                      .storage = storage.getWeakStorageImpl(),
                      .made = reserve(),
                      .last = reserve()});
  value->proof = entries_.size() - 1;
  return entries_.back();
}

void Proof::made(const ValuePtr& value, const c10::Storage& storage) {
  if (!is_on() || value->device.is_meta()) return;
  Entry& made = entry(value, storage);
  if (value->is_scratch) return;
  sums_.take(made.made, storage);
  made.has_made = true;
}

std::size_t Proof::read(const ValuePtr& value, const c10::Storage& storage) {
  if (!is_on() || has_ended_ || value->device.is_meta()) return 0;
  Entry& read = entry(value, storage);
  if (value->is_scratch) return 0;
  read.reads.push_back(sums_.reserve(value->device));
  sums_.take(read.reads.back(), storage);
  return read.reads.size() - 1;
}

void Proof::made_of(const ValuePtr& value, std::size_t read, std::span<const ValuePtr> results) {
  if (!value->proof) return;
  for (const ValuePtr& result : results)
    entries_[*value->proof].results.push_back({result, result->origin.name, read});
}

void Proof::last(const ValuePtr& value) {
  if (!value->proof || has_ended_) return;
  Entry& entry = entries_[*value->proof];
  take_last(entry);
  entry.is_overwritten = true;
  entry.held = {};
}

void Proof::take_last(Entry& entry) {
  const ValuePtr value = entry.value.lock();
  if (!value || value->is_scratch || entry.is_overwritten) return;
  auto storage = entry.storage.lock();
  if (!storage) return;
  if (entry.has_last) entry.last = sums_.reserve(value->device);  // once more
  sums_.take(entry.last, c10::Storage(std::move(storage)));
  entry.has_last = true;
}

void Proof::judge() {
  if (has_ended_ || entries_.empty()) return;
  sums_.join();
  for (Entry& entry : entries_) take_last(entry);
  sums_.settle();
  for (Entry& entry : entries_) look_at(entry);
}

void Proof::look_at(Entry& entry) {
  const ValuePtr value = entry.value.lock();
  if (!value) return;
  const auto sum = [&](bool has, Checksums::Ticket ticket) {
    return has ? std::optional(sums_[ticket]) : std::nullopt;
  };
  const auto made = sum(entry.has_made, entry.made), last = sum(entry.has_last, entry.last);
  if (verify_) value->checksum = value->fate == Fate::Recompute ? made : last;
  if (proves_) value->at_its_end = last;
  const auto first = made ? made : entry.reads.empty() ? last : std::optional(sums_[entry.reads.front()]);
  const bool is_changed =
      (last && last != first) ||
      std::ranges::any_of(entry.reads, [&](Checksums::Ticket read) { return sums_[read] != first; });
  if (!is_changed) return;
  const std::vector<Result> others = made_of_something_else(entry);
  const auto is_recomputed = [](const Result& result) {
    const ValuePtr value = result.value.lock();
    return value && value->fate == Fate::Recompute;
  };
  if (proves_) {
    if (!value->is_external) keep(value);
    for (const Result& result : others) keep(result);
  } else if (value->fate == Fate::Recompute || std::ranges::any_of(others, is_recomputed)) {
    site_->suspect(value->origin.name);
    tape_.note_difference(concat(tape_.told(*value), " was ", kChanged));
  }
}

std::vector<Proof::Result> Proof::made_of_something_else(const Entry& entry) const {
  std::vector<Result> results;
  for (const Result& result : entry.results)
    if (entry.has_last && result.read < entry.reads.size() &&
        sums_[entry.reads[result.read]] != sums_[entry.last])
      results.push_back(result);
  return results;
}

// It is not recomputed, here or in later calls. If its contents are gone, what was made of it is not either.
void Proof::keep(const ValuePtr& value) {
  if (!value->proof) return;
  Entry& entry = entries_[*value->proof];
  if (std::exchange(entry.is_suspect, true)) return;
  site_->suspect(value->origin.name);
  const bool is_gone = !entry.held && !entry.is_overwritten;  // before this call went another way
  if (is_gone) tape_.note_difference(concat(tape_.told(*value), " was ", kChanged));
  if (value->fate == Fate::Recompute && !is_gone) {
    tape_.keep_after_all(value, entry.held, kChanged);
    value->checksum = verify_ && entry.has_last ? std::optional(sums_[entry.last]) : std::nullopt;
  }
  if (entry.is_overwritten) keep_what_was_made_of(entry);
}

void Proof::keep_what_was_made_of(const Entry& entry) {
  for (const Result& result : entry.results) keep(result);
}

void Proof::keep(const Result& result) {
  site_->suspect(result.name);
  if (const ValuePtr value = result.value.lock()) keep(value);
}

void Proof::check_operand(const Operation& operation, const Value& value) const {
  if (!value.at_its_end || !value.is_the_forwards() || *value.at_its_end == checksum(value.storage())) return;
  site_->suspect(value.origin.name);
  for (const auto& [place, result] : operation.outputs)
    if (const ValuePtr made = result.lock()) site_->suspect(made->origin.name);
  for (const auto& argument : operation.arguments)
    if (const ValuePtr made = argument.after.lock()) site_->suspect(made->origin.name);
  TORCH_CHECK(false, needs_it_as_it_was(value, &operation.handle.schema()));
}

std::string Proof::needs_it_as_it_was(const Value& value, const c10::FunctionSchema* reader) const {
  return concat(tape_.told(value), " was ", kChanged, ", and ", name_of(reader),
                " has to read it again as it was. Its result will be kept from now on: run the step again");
}

void Proof::end(bool is_whole) {
  is_whole_ = is_whole;
  if (is_whole && goes_on(kTheEnd)) tape_.distrust_all();
  judge();
  has_ended_ = true;
  std::erase_if(entries_, [this](Entry& entry) { return !lend(entry); });
  if (tape_.saved().empty()) entries_.clear();  // nobody will ask
  if (entries_.empty()) conclude();
}

void Proof::conclude() {
  if (proves_ && from_the_start_ && is_whole_) site_->proven(prefixes_);
}

// Others may still write it: a saved tensor sees that, and so would a replay that reads it. Nobody sees it in
// what nobody saved and a replay makes itself.
bool Proof::lend(Entry& entry) {
  const ValuePtr value = entry.value.lock();
  if (!value || !entry.held || !entry.has_last) return false;
  if (value->fate == Fate::Recompute && value->saves == 0) return false;
  const std::size_t ours = value->is_kept() && value->storage().is_alias_of(entry.held) ? 2 : 1;
  if (entry.held.use_count() <= ours) return false;
  if (value->fate == Fate::Recompute) tape_.keep_after_all(value, entry.held, "");
  if (value->fate == Fate::Offload) entry.held = {};  // until then the value has it: see may_leave()
  return true;
}

std::vector<Proof::Entry>::iterator Proof::lent(const Value& value) {
  return std::ranges::find_if(entries_,
                              [&](const Entry& entry) { return entry.value.lock().get() == &value; });
}

bool Proof::may_leave(const Value& value) {
  const auto lent = this->lent(value);
  if (lent == entries_.end()) return true;
  const bool is_held = value.storage().use_count() > 1;
  if (is_held || checksum(value.storage()) != sums_[lent->last]) return false;
  entries_.erase(lent);
  if (entries_.empty()) conclude();
  return true;
}

void Proof::before_unpack(bool is_in_backward) {
  if (!has_ended_ && !is_in_backward) judge();  // a backward within the forward
  if (!has_ended_ || entries_.empty()) return;
  std::vector<Entry> lent = std::exchange(entries_, {});
  for (Entry& entry : lent)
    if (!entry.held) entry.held = c10::Storage(entry.storage.lock());
  std::erase_if(lent, [](const Entry& entry) { return !entry.held; });
  Checksums now;
  std::vector<Checksums::Ticket> tickets;
  for (const Entry& entry : lent) {
    tickets.push_back(now.reserve(entry.held.device()));
    now.take(tickets.back(), entry.held);
  }
  now.settle();
  std::string wrong;
  for (std::size_t i = 0; i < lent.size(); ++i) {
    const ValuePtr value = lent[i].value.lock();
    if (!value || now[tickets[i]] == sums_[lent[i].last]) continue;
    site_->suspect(value->origin.name);
    for (const Result& made : lent[i].results) {
      site_->suspect(made.name);
      const ValuePtr result = made.value.lock();
      if (result && result->fate == Fate::Recompute && result->is_needed())
        wrong = needs_it_as_it_was(*value, result->origin.schema);
    }
  }
  conclude();
  TORCH_CHECK(wrong.empty(), wrong);
}

bool Proof::may_be_written(const Value& value) const {
  return proves_ ||
         (!known_->suspects.empty() && known_->suspects.contains(mixed(value.origin.name, kGiven)));
}

void Proof::gave(const Value& value, const c10::Storage& storage) {
  if (proves_)
    given_.push_back(
        {torch::autograd::get_current_node().get(), value.origin.name, storage, checksum(storage)});
}

void Proof::look_at_given() {
  const auto now = torch::autograd::get_current_node();
  std::erase_if(given_, [&](const Given& given) {
    if (given.node == now.get()) return false;
    if (checksum(given.storage) == given.before) return true;
    site_->suspect(given.name);
    site_->suspect(mixed(given.name, kGiven));
    return true;
  });
}

}  // namespace snug::tape
