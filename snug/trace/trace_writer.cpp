// Encodes events into chunks. See Note [Trace file] in trace.h.
#include <algorithm>
#include <array>
#include <cstddef>

#include "snug/base/error.h"
#include "snug/base/output_file.h"
#include "snug/trace/crc32.h"
#include "snug/trace/tape_codec.h"
#include "snug/trace/trace.h"
#include "snug/trace/trace_format.h"

namespace snug::trace {
namespace {

// One record being put together; an event needs two bytes and at most five varints.
class Record {
 public:
  void byte(std::uint8_t value) { bytes_[size_++] = static_cast<char>(value); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  std::string_view view() const { return {bytes_.data(), size_}; }

 private:
  std::array<char, 64> bytes_;
  std::size_t size_ = 0;
};

std::string header_json(const TraceInfo& info) {
  ensure(info.about.is_object(), "TraceInfo::about must be a JSON object");
  Json header = {{"device", info.device}, {"about", info.about}};
  // A command line may hold bytes that are not UTF-8.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  check(text.size() <= format::kMaxHeader, "the description of a trace must be at most ", format::kMaxHeader,
        " bytes of JSON, got ", text.size());
  return text;
}

}  // namespace

class TraceWriter::Impl {
 public:
  Impl(const std::filesystem::path& path, const TraceInfo& info) : file_(path) {
    pending_ = header_json(info);
    flush(format::kMagic);
  }

  void write(const Event& event, const NameTable& names) {
    refuse_if_over();
    for (const NameId last = std::max(event.region, event.name); names_written_ <= last; ++names_written_) {
      write_name(names[names_written_]);
    }
    pending_ += encode(event).view();
    ++events_;
    flush_when_full();
  }

  void write(const RegionTape& tape) {
    refuse_if_over();
    const std::string bytes = trace::encode(tape);
    check(bytes.size() <= format::kMaxTape, "a tape in a trace must be at most ", format::kMaxTape,
          " bytes long, got ", bytes.size());
    for (std::size_t first = 0; first < bytes.size(); first += format::kTapePiece) {
      const auto piece = std::string_view(bytes).substr(first, format::kTapePiece);
      Record record;
      record.byte(format::kTapeRecord);
      record.byte(first + piece.size() == bytes.size() ? 1 : 0);
      record.varint(piece.size());
      pending_ += record.view();
      pending_ += piece;
      flush_when_full();
    }
  }

  void finish() {
    refuse_if_over();
    if (!pending_.empty()) flush();
    Record end;
    end.byte(format::kEndRecord);
    end.varint(events_);
    pending_ = end.view();
    flush();
    finished_ = true;
    file_.close();
  }

  std::uint64_t events() const { return events_; }

 private:
  Record encode(const Event& event) {
    const auto kind = static_cast<std::uint8_t>(event.kind);
    const auto category = static_cast<std::uint8_t>(event.category);
    ensure(kind < kEventKinds && category < kCategories, "an event of kind ", +kind, ", category ",
           +category);
    const auto time = static_cast<std::uint64_t>(event.time_ns);
    std::uint8_t fields = 0;
    if (event.region != region_) fields |= format::kRegion;
    if (event.name != 0) fields |= format::kName;
    if (event.block != 0) fields |= format::kBlock;
    if (event.bytes != 0) fields |= format::kBytes;
    if (time != time_) fields |= format::kTime;

    Record record;
    record.byte(static_cast<std::uint8_t>(kind | category << 4));
    record.byte(fields);
    if (fields & format::kRegion) record.varint(region_ = event.region);
    if (fields & format::kName) record.varint(event.name);
    if (fields & format::kBlock) {
      record.varint(format::zigzag(event.block - block_));
      block_ = event.block;
    }
    if (fields & format::kBytes) record.varint(event.bytes);
    if (fields & format::kTime) {
      record.varint(format::zigzag(time - time_));
      time_ = time;
    }
    return record;
  }

  void write_name(const std::string& name) {
    check(name.size() <= format::kMaxName, "a name in a trace must be at most ", format::kMaxName,
          " bytes long, got ", name.size());
    Record record;
    record.byte(format::kNameRecord);
    record.varint(name.size());
    pending_ += record.view();
    pending_ += name;
    flush_when_full();
  }

  void flush_when_full() {
    if (pending_.size() >= format::kChunkBytes) flush();
  }

  // After a failed write the file ends anywhere; going on would damage it.
  void flush(std::string_view before = {}) {
    framed_ = before;
    format::put_u32(framed_, static_cast<std::uint32_t>(pending_.size()));
    format::put_u32(framed_, crc32(pending_));
    framed_ += pending_;
    pending_.clear();
    try {
      file_.write(framed_);
    } catch (const RunError& error) {
      failure_ = error.what();
      throw;
    }
  }

  void refuse_if_over() const {
    ensure(!finished_, "the trace was finished before");
    if (!failure_.empty()) [[unlikely]]
      throw RunError(failure_);
  }

  OutputFile file_;
  std::string pending_;  // records of the chunk being filled
  std::string framed_;   // a chunk as it goes to the file, kept for its capacity
  std::string failure_;
  bool finished_ = false;
  std::uint64_t events_ = 0;
  NameId names_written_ = 1;
  NameId region_ = 0;
  BlockId block_ = 0;
  std::uint64_t time_ = 0;
};

TraceWriter::TraceWriter(const std::filesystem::path& path, const TraceInfo& info)
    : impl_(std::make_unique<Impl>(path, info)) {}
TraceWriter::~TraceWriter() = default;
void TraceWriter::write(const Event& event, const NameTable& names) {
  impl_->write(event, names);
}
void TraceWriter::write(const RegionTape& tape) {
  impl_->write(tape);
}
void TraceWriter::finish() {
  impl_->finish();
}
std::uint64_t TraceWriter::events() const {
  return impl_->events();
}

}  // namespace snug::trace
