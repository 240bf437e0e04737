// Decodes a trace, trusting nothing: every length, number and code is checked before it is used. See Note
// [Trace file] in trace.h.
#include <array>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "snug/base/error.h"
#include "snug/trace/crc32.h"
#include "snug/trace/tape_codec.h"
#include "snug/trace/trace.h"
#include "snug/trace/trace_format.h"

namespace snug::trace {

class TraceReader::Impl {
 public:
  explicit Impl(const std::filesystem::path& path) : path_(path.string()) {
    std::error_code ignored;
    check(!std::filesystem::is_directory(path, ignored), path_, ": is a folder, expected a trace");
    check(!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored), path_,
          ": is not a regular file");
    file_.open(path, std::ios::binary);
    if (!file_) fail(path_, ": cannot open: ", std::generic_category().message(errno));
    read_magic();
    read_header();
  }

  bool next(Event& event) {
    while (!done_) {
      if (cursor_ == payload_.size() && !read_chunk()) return false;
      const std::uint8_t code = byte();
      if (code == format::kNameRecord) {
        read_name();
      } else if (code == format::kTapeRecord) {
        read_tape();
      } else if (code == format::kEndRecord) {
        read_end();
      } else {
        read_event(code, event);
        return true;
      }
    }
    return false;
  }

  TraceInfo info_;
  NameTable names_;
  std::vector<RegionTape> tapes_;
  bool cut_short_ = false;

 private:
  [[noreturn]] void damaged(const std::string& what) {
    done_ = true;
    fail(path_, ": damaged trace: ", what, " in ", chunks_ == 0 ? "the header" : concat("chunk ", chunks_));
  }

  // The bytes that were there, at most `size`.
  std::size_t read(char* to, std::size_t size) {
    file_.read(to, static_cast<std::streamsize>(size));
    if (file_.bad()) throw RunError(concat(path_, ": cannot read: ", std::generic_category().message(errno)));
    return static_cast<std::size_t>(file_.gcount());
  }

  void read_magic() {
    std::array<char, format::kMagic.size()> magic{};
    const std::string_view came(magic.data(), read(magic.data(), magic.size()));
    const std::string_view family = format::kMagic.substr(0, format::kMagic.size() - 1);
    const bool ours =
        came.size() == magic.size() && came.starts_with(family) && came.back() >= '0' && came.back() <= '9';
    check(ours, path_, ": not a snug trace");
    check(came == format::kMagic, path_, ": a snug trace of version ", came.back(),
          ", this snug reads version ", format::kMagic.back());
  }

  void read_header() {
    const bool whole = read_frame(format::kMaxHeader);
    check(whole, path_, ": damaged trace: the file ends inside its header");
    const JsonReader header(parse_json(payload_, path_ + " (header)"), path_ + " (header)");
    info_.device = header.required<std::string>("device");
    info_.about = header.required<Json>("about");
    check(info_.about.is_object(), path_, " (header): \"about\" must be an object");
    header.refuse_unread();
    cursor_ = payload_.size();
  }

  bool read_chunk() {
    ++chunks_;
    cursor_ = 0;
    if (read_frame(format::kMaxPayload)) return true;
    done_ = cut_short_ = true;
    return false;
  }

  // [bytes u32][crc32 u32][payload] into payload_. False when the file ends before the payload does.
  bool read_frame(std::size_t longest) {
    std::array<char, 8> frame{};
    if (read(frame.data(), frame.size()) < frame.size()) return false;
    const std::size_t size = format::get_u32(frame.data());
    if (size == 0 || size > longest) damaged(concat("an impossible length of ", size, " bytes"));
    payload_.resize(size);
    if (read(payload_.data(), size) < size) return false;
    if (crc32(payload_) != format::get_u32(frame.data() + 4)) damaged("wrong checksum");
    return true;
  }

  std::uint8_t byte() {
    if (cursor_ == payload_.size()) damaged("a record without its end");
    return static_cast<std::uint8_t>(payload_[cursor_++]);
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint64_t part = byte();
      if (shift == 63 && part > 1) break;
      value |= (part & 0x7F) << shift;
      if (part < 0x80) return value;
    }
    damaged("a number past 64 bits");
  }

  NameId name_id() {
    const std::uint64_t id = varint();
    if (id >= names_.size()) damaged(concat("name ", id, " of ", names_.size()));
    return static_cast<NameId>(id);
  }

  void read_name() {
    const std::uint64_t size = varint();
    if (size > payload_.size() - cursor_) damaged("a name without its end");
    const std::size_t expected = names_.size();
    if (names_.intern({payload_.data() + cursor_, size}) != expected) damaged("a name given twice");
    cursor_ += size;
  }

  void read_tape() {
    const bool is_last = byte() == 1;
    const std::uint64_t size = varint();
    if (size > payload_.size() - cursor_ || tape_.size() + size > format::kMaxTape)
      damaged("a tape without its end");
    tape_.append(payload_, cursor_, size);
    cursor_ += size;
    if (!is_last) return;
    auto tape = decode(std::exchange(tape_, {}));
    if (!tape) damaged("a tape that contradicts itself");
    tapes_.push_back(std::move(*tape));
  }

  void read_end() {
    const std::uint64_t events = varint();
    if (events != events_) damaged(concat("an end after ", events, " events, but there are ", events_));
    if (cursor_ != payload_.size() || file_.peek() != std::ifstream::traits_type::eof()) {
      damaged("data after the end");
    }
    done_ = true;
  }

  void read_event(std::uint8_t code, Event& event) {
    const std::uint8_t kind = code & 0x0F;
    const std::uint8_t category = code >> 4;
    const std::uint8_t fields = byte();
    if (kind >= kEventKinds || category >= kCategories || fields > format::kAllFields) {
      damaged(concat("an unknown record ", +code));
    }
    event = {};
    event.kind = static_cast<EventKind>(kind);
    event.category = static_cast<Category>(category);
    if (fields & format::kRegion) region_ = name_id();
    event.region = region_;
    if (fields & format::kName) event.name = name_id();
    if (fields & format::kBlock) event.block = block_ += format::unzigzag(varint());
    if (fields & format::kBytes) event.bytes = varint();
    if (fields & format::kTime) time_ += format::unzigzag(varint());
    event.time_ns = static_cast<std::int64_t>(time_);
    ++events_;
  }

  std::string path_;
  std::ifstream file_;
  std::string payload_;
  std::string tape_;  // the pieces so far
  std::size_t cursor_ = 0;
  std::uint64_t chunks_ = 0;  // 0: the header
  std::uint64_t events_ = 0;
  bool done_ = false;
  NameId region_ = 0;
  BlockId block_ = 0;
  std::uint64_t time_ = 0;
};

TraceReader::TraceReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
TraceReader::~TraceReader() = default;
bool TraceReader::next(Event& event) {
  return impl_->next(event);
}
const TraceInfo& TraceReader::info() const {
  return impl_->info_;
}
const NameTable& TraceReader::names() const {
  return impl_->names_;
}
const std::vector<RegionTape>& TraceReader::tapes() const {
  return impl_->tapes_;
}
bool TraceReader::cut_short() const {
  return impl_->cut_short_;
}

Trace load(const std::filesystem::path& path) {
  TraceReader reader(path);
  Trace trace;
  for (Event event; reader.next(event);) trace.events.push_back(event);
  trace.info = reader.info();
  trace.names = reader.names();
  trace.tapes = reader.tapes();
  trace.cut_short = reader.cut_short();
  return trace;
}

}  // namespace snug::trace
