// SPDX-License-Identifier: Apache-2.0
//
// What a client believes of its server. The first byte chooses: any answers on the control channel, from Welcome on;
// the magic pattern in any bytes, beside a search byte by byte; what is known of frames and of the page table, beside a
// model. A region that was taken in is one that the rest of the client can index: no size wraps, no key is of a chunk
// that was revoked.
//
// Answers: a byte with the kind of the answer, a byte with a length, so many bytes.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "driver/softnic/softnic.h"
#include "tlib/client/frame_chunks.h"
#include "tlib/client/page_table_view.h"
#include "tlib/client/pattern_matcher.h"
#include "tlib/client/session_core.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"

namespace termfs::tlib::client {
namespace {

using Bytes = std::vector<std::byte>;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Takes numbers from the front of the input; zeros, when it is at its end.
class Source {
 public:
  explicit Source(std::span<const uint8_t> input) : input_(input) {}
  template <typename Number>
  Number Take() {
    Number number = 0;
    const size_t count = std::min(sizeof(number), input_.size());
    std::copy_n(input_.begin(), count, reinterpret_cast<uint8_t*>(&number));
    input_ = input_.subspan(count);
    return number;
  }
  std::span<const uint8_t> TakeBytes(size_t most) {
    const auto taken = input_.first(std::min(most, input_.size()));
    input_ = input_.subspan(taken.size());
    return taken;
  }
  bool empty() const { return input_.empty(); }

 private:
  std::span<const uint8_t> input_;
};

// Answers the next client with what it is given, whatever that one asks, and hangs up.
class AnyServer {
 public:
  AnyServer() {
    std::string name = "/tmp/termfs-fuzz-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", name.c_str());
    TERMFS_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                 listen(listener_.get(), 4) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~AnyServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    std::filesystem::remove_all(directory_);
  }
  AnyServer(const AnyServer&) = delete;
  AnyServer& operator=(const AnyServer&) = delete;

  const std::string& directory() const { return directory_; }
  void Give(std::vector<Bytes> answers) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    answers_ = std::move(answers);
  }

 private:
  void Run() {
    UniqueFd client;  // until the next one comes
    while (true) {
      UniqueFd next(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!next.valid()) {
        return;
      }
      client = std::move(next);
      std::vector<Bytes> answers;
      {
        MutexLock lock(mutex_);
        answers = std::move(answers_);
      }
      for (const Bytes& answer : answers) {
        [[maybe_unused]] const bool sent = SendFrame(client.get(), answer, {}, steady_clock::now() + seconds(5)).ok();
      }
      shutdown(client.get(), SHUT_WR);
    }
  }

  std::string directory_;
  UniqueFd listener_;
  std::thread thread_;
  Mutex mutex_;
  std::vector<Bytes> answers_ GUARDED_BY(mutex_);
};

wire::RegionInfoT RegionFrom(Source& source) {
  wire::RegionInfoT info;
  info.kind = source.Take<uint8_t>();
  info.way = static_cast<wire::ReadWay>(source.Take<uint8_t>());
  info.pattern.resize(64 + (source.Take<uint8_t>() == 1 ? 1 : 0));
  info.former_pattern.resize(source.Take<uint8_t>());
  info.pages = source.Take<uint64_t>();
  info.max_pages = source.Take<uint64_t>();
  info.bitmap_bytes = source.Take<uint64_t>();
  info.entries_offset = source.Take<uint64_t>();
  info.table_rkey = source.Take<uint32_t>();
  info.chunk_frames = source.Take<uint32_t>();
  info.chunk_epoch = source.Take<uint64_t>();
  while (!source.empty() && info.frame_chunks.size() < 64) {
    info.frame_chunks.push_back(source.Take<uint32_t>());
  }
  return info;
}

Bytes AnswerFrom(uint8_t kind, std::span<const uint8_t> bytes) {
  Source source(bytes);
  wire::ControlMessageT message;
  switch (kind % 5) {
    case 0: {
      wire::WelcomeT welcome;
      welcome.version = kControlVersion + (source.Take<uint8_t>() == 1 ? 1 : 0);
      welcome.session = 1;
      welcome.region = std::make_unique<wire::RegionInfoT>(RegionFrom(source));
      message.body.Set(std::move(welcome));
      break;
    }
    case 1:
      message.body.Set(RegionFrom(source));
      break;
    case 2: {
      wire::ErrorT error;
      error.code = source.Take<int>();
      error.text = "refused";
      message.body.Set(std::move(error));
      break;
    }
    case 3:
      message.body.Set(wire::DoneT());
      break;
    default: {
      const auto raw = std::as_bytes(bytes);
      return {raw.begin(), raw.end()};
    }
  }
  return EncodeControl(message);
}

void CheckRegion(SessionCore& core) {
  const RegionFacts& region = core.region();
  TERMFS_CHECK(region.kind <= driver::RegionKind::kTerm && region.way <= driver::ReadWay::kValidated);
  TERMFS_CHECK(region.pages > 0 && region.pages <= region.max_pages && region.max_pages <= UINT32_MAX);
  TERMFS_CHECK(region.bitmap_bytes / sizeof(uint64_t) >= (region.pages + 63) / 64);
  TERMFS_CHECK(driver::AllowsOneSidedRead(region.kind) || region.way == driver::ReadWay::kRpcOnly);
  const bool validated = region.way == driver::ReadWay::kValidated;
  TERMFS_CHECK((core.table() != nullptr) == validated);
  if (validated) {
    const uint64_t covered = core.table()->covered();
    TERMFS_CHECK(covered >= core.region_bytes() >> kPageBits && covered <= region.max_pages);
    const driver::SendWorkRequest read =
        core.table()->ReadOf(covered - 1, 1, region.entries_offset, nullptr, driver::LKey{});
    TERMFS_CHECK(read.rkey.value != 0 && read.remote_offset % sizeof(uint64_t) == 0);
    TERMFS_CHECK(read.remote_offset >= region.entries_offset && read.local.length == sizeof(uint64_t));
  }
  TERMFS_CHECK(core.region_bytes() <= region.max_pages << kPageBits && core.region_bytes() % kPageSize == 0);
  uint64_t version = 0;
  const size_t patterns = core.patterns().Get(&version).size();
  TERMFS_CHECK(patterns == 1 || patterns == 2);
  const auto keys = core.chunks().Get(&version);
  TERMFS_CHECK(std::has_single_bit(keys->chunk_frames));
  const uint64_t frames = uint64_t{keys->chunk_frames} * keys->chunks.size();
  for (const uint64_t frame : {uint64_t{0}, frames - 1, frames, driver::kFrameMask}) {
    const driver::RKey key = keys->Of(static_cast<uint32_t>(frame));
    TERMFS_CHECK(key.value == 0 || static_cast<uint32_t>(frame) < frames);
  }
}

void TryAnswers(std::span<const uint8_t> input) {
  static AnyServer server;
  static const auto kNic = driver::CreateSoftNic().value();
  std::vector<Bytes> answers;
  while (input.size() >= 2 && answers.size() < 8) {
    const size_t length = std::min<size_t>(input[1], input.size() - 2);
    answers.push_back(AnswerFrom(input[0], input.subspan(2, length)));
    input = input.subspan(2 + length);
  }
  const size_t given = answers.size();
  server.Give(std::move(answers));
  SessionOptions options;
  options.bitmap = BitmapMode::kLive;
  const auto core = SessionCore::Connect(*kNic, server.directory(), options);
  if (!core.ok()) {
    TERMFS_CHECK(core.status().code() != 0);
    return;
  }
  CheckRegion(**core);
  for (size_t i = 1; i < given; i++) {
    if (i % 2 == 0) {
      [[maybe_unused]] const bool fresh = (*core)->RefreshRegion().ok();
    } else {
      const RegionOffset offset{(*core)->region_bytes() - (i & 2) * kPageSize / 2};
      const bool in_region = (*core)->CheckInRegion(offset, kPageSize).ok();
      TERMFS_CHECK(!in_region || offset.value + kPageSize <= (*core)->region_bytes());
      TERMFS_CHECK(!(*core)->CheckInRegion({UINT64_MAX - 1}, kPageSize).ok());
    }
    CheckRegion(**core);
  }
}

// The pattern of the first eight bytes, repeated; what arrived; where in its page.
void TryPattern(std::span<const uint8_t> input) {
  Source source(input);
  driver::Pattern pattern;
  const auto word = source.Take<uint64_t>();
  for (size_t at = 0; at < pattern.line.size(); at += sizeof(word)) {
    std::memcpy(pattern.line.data() + at, &word, sizeof(word));
  }
  pattern.line.back() = std::byte{source.Take<uint8_t>()};  // so that one word does not stand for the line
  const uint32_t in_page = source.Take<uint16_t>() % kPageSize;
  const uint32_t length = 1 + source.Take<uint16_t>() % std::min<uint32_t>(512, kPageSize - in_page);
  Bytes data(length);
  while (!source.empty()) {
    const uint8_t what = source.Take<uint8_t>();
    const uint32_t from = source.Take<uint16_t>() % length;
    const uint32_t count = std::min<uint32_t>(source.Take<uint8_t>(), length - from);
    for (uint32_t i = from; i < from + count; i++) {
      data[i] = what % 2 == 0 ? pattern.line[(in_page + i) % 64] : std::byte{what};
    }
  }
  const auto is_pattern = [&](uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
      if (data[i] != pattern.line[(in_page + i) % 64]) {
        return false;
      }
    }
    return true;
  };
  bool touches = false;
  uint32_t first_end = 0;
  for (uint32_t from = 0; from < length;) {
    const uint32_t to = std::min(length, from + 64 - (in_page + from) % 64);
    touches = touches || is_pattern(from, to);
    first_end = first_end == 0 ? to : first_end;
    from = to;
  }
  const PatternMatcher matcher(pattern);
  TERMFS_CHECK(matcher.Touches(data.data(), in_page, length) == touches);
  TERMFS_CHECK(matcher.IsPattern(data.data(), in_page, length) == is_pattern(0, first_end));
}

void TryFrames(std::span<const uint8_t> input) {
  constexpr uint64_t kPages = 3000;
  Source source(input);
  FrameChunks chunks;
  const auto reader = chunks.AddReader();
  const auto table = PageTableView::Create(kPages).value();
  std::map<uint64_t, uint64_t> entries;
  std::array<bool, kPages / PageTableView::kBlockPages + 1> used{};
  uint64_t epoch = 0;
  uint64_t covered = 0;
  while (!source.empty()) {
    uint64_t version = 0;
    const uint8_t what = source.Take<uint8_t>();
    const uint64_t page = source.Take<uint16_t>() % kPages;
    switch (what % 6) {
      case 0: {
        const auto of = source.Take<uint8_t>();
        chunks.Learn({.chunk_frames = 8, .epoch = of, .chunks = {driver::RKey{1}, driver::RKey{uint32_t{of}}}});
        epoch = std::max<uint64_t>(epoch, of);
        break;
      }
      case 1:
        epoch = std::max<uint64_t>(epoch, source.Take<uint8_t>());
        TERMFS_CHECK(chunks.Revoke(epoch, steady_clock::now()).ok());
        break;
      case 2: {
        const auto keys = chunks.Get(&version);
        TERMFS_CHECK(keys->epoch == epoch && reader->Enter(version));
        const bool old = chunks.Revoke(epoch + 1, steady_clock::now()).ok();
        TERMFS_CHECK(!old);  // what was posted before is still under way
        epoch++;
        reader->Leave();
        TERMFS_CHECK(!reader->Enter(version) && chunks.Get(&version)->Of(0).value == 0);
        break;
      }
      case 3:
        table->Cover(page, driver::RKey{7});
        covered = std::max(covered, page);
        TERMFS_CHECK(table->covered() == covered && table->blocks() == (covered + 511) / 512);
        break;
      case 4: {
        const auto entry = source.Take<uint64_t>();
        table->Set(page, entry);
        TERMFS_CHECK(PageTableView::NamesFrame(entry) ==
                     (entry >> driver::kFrameBits != 0 && (entry & driver::kFrameMask) < driver::kWritingFrame));
        table->Learn(page, (what & 8) != 0);
        entries[page] = (what & 8) == 0                    ? uint64_t{driver::kMagicFrame}
                        : PageTableView::NamesFrame(entry) ? entry
                                                           : PageTableView::kUnknown;
        break;
      }
      default: {
        table->Use(page / PageTableView::kBlockPages);
        used[page / PageTableView::kBlockPages] = true;
        std::optional<uint64_t> next = table->NextUsed(0);
        for (size_t block = 0; block < used.size(); block++) {
          if (used[block]) {
            TERMFS_CHECK(next == block);
            next = table->NextUsed(block + 1);
          }
        }
        TERMFS_CHECK(!next.has_value());
      }
    }
  }
  for (const auto& [page, entry] : entries) {
    TERMFS_CHECK(table->entry(page) == entry);
  }
  chunks.RemoveReader(reader);
}

constexpr std::array kTries = {TryAnswers, TryPattern, TryFrames};

}  // namespace
}  // namespace termfs::tlib::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool quiet = termfs::StartLog(termfs::LogLevel::kError).ok();
  if (size > 0) {
    termfs::tlib::client::kTries[data[0] % termfs::tlib::client::kTries.size()]({data + 1, size - 1});
  }
  return 0;
}
