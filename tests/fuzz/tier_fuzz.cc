// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as what a killed server has left: the record beside the SSD, the header and the page states of the DRAM
// tier. The first byte chooses: the files, or the words alone. What is resumed is the tier of this volume, as the files
// have it, and each page of it has a frame of its own.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "driver/checksum.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tests/unit/tlib/server_storage/test_tier.h"
#include "tlib/server/tier_recovery.h"
#include "tlib/server/tier_store.h"

namespace termfs::tlib::server {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint64_t kPages = 128;
constexpr uint32_t kFrames = 32;
constexpr size_t kCrcAt = 12;  // in the header
constexpr size_t kLayoutAt = 16;
constexpr size_t kMaxPagesAt = 32;

// A directory on a tmpfs with a whole tier, of which each input changes something.
class LeftTier {
 public:
  LeftTier() {
    std::string name = "/dev/shm/termfs-fuzz-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    options_ = {.directory = folder_ + "/one", .own_tmpfs = false, .record = folder_ + "/tier", .volume = "v"};
    const auto store = TierStore::Open(options_, kPages, 2 * kPages, kFrames);
    TERMFS_CHECK(store.ok());
    TERMFS_CHECK((*store)
                     ->Commit([this] {
                       Write("frames", "frames");
                       return Status::Ok();
                     })
                     .ok());
    header_ = Read(File("header"));
    owner_ = Read(File("owner"));
    record_ = Read(options_.record);
  }
  ~LeftTier() { std::filesystem::remove_all(folder_); }

  // The first byte of the input: 1: the header's CRC is right; 2: the header's bytes change the real one; 4: the
  // record's do. Then a byte with the header's length, one with the record's, the bytes of both, and the states.
  void Try(Bytes input) {
    if (input.size() < 3) {
      return;
    }
    const uint8_t flags = input[0];
    const size_t header_bytes = std::min<size_t>(input[1], input.size() - 3);
    const size_t record_bytes = std::min<size_t>(input[2], input.size() - 3 - header_bytes);
    std::string header = Changed(header_, input.subspan(3, header_bytes), (flags & 2) != 0);
    if ((flags & 1) != 0 && header.size() == header_.size()) {
      std::memset(header.data() + kCrcAt, 0, sizeof(uint32_t));
      const uint32_t crc = driver::Crc32c(std::as_bytes(std::span(header)));
      std::memcpy(header.data() + kCrcAt, &crc, sizeof(crc));
    }
    const std::string record = Changed(record_, input.subspan(3 + header_bytes, record_bytes), (flags & 4) != 0);
    std::string states(2 * kPages * sizeof(uint64_t), '\0');
    const Bytes words = input.subspan(3 + header_bytes + record_bytes);
    std::memcpy(states.data(), words.data(), std::min(states.size(), words.size()));

    std::filesystem::create_directory(options_.directory);
    Write("owner", owner_);
    Write("header", header);
    Write("states", states);
    Write("frames", "frames");
    std::ofstream(options_.record, std::ios::trunc) << record;
    Check(header, record, states);
    std::filesystem::remove_all(options_.directory);
  }

 private:
  std::string File(const char* name) const { return options_.directory + "/" + name; }
  void Write(const char* name, const std::string& bytes) { std::ofstream(File(name), std::ios::trunc) << bytes; }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string Changed(const std::string& real, Bytes bytes, bool changes) {
    if (!changes) {
      return {bytes.begin(), bytes.end()};
    }
    std::string changed = real;
    for (size_t i = 0; i < std::min(changed.size(), bytes.size()); i++) {
      changed[i] = static_cast<char>(changed[i] ^ bytes[i]);
    }
    return changed;
  }

  void Check(const std::string& header, const std::string& record, const std::string& states) {
    const auto kept = TierStore::LookAtKept(options_, kPages);
    const bool counted = kept.ok() && kept->has_value() && (*kept)->dirty_pages.has_value();
    TERMFS_CHECK(kept.ok() || kept.status().code() == EUCLEAN || kept.status().code() == EFBIG);
    TERMFS_CHECK(!counted || *(*kept)->dirty_pages <= kPages);
    const auto store = TierStore::Open(options_, kPages, kPages, kFrames);
    if (!store.ok() || !(*store)->resumed()) {
      // A refusal changes nothing; what is discarded was not a tier that this server would have to take over.
      TERMFS_CHECK(store.ok() || Read(File("states")) == states);
      TERMFS_CHECK(!counted || !store.ok());
      return;
    }
    // Only a whole header is resumed, with the layout that the record names, which was not changed.
    uint64_t max_pages = 0;
    uint64_t layout = 0;
    TERMFS_CHECK(header.size() == header_.size());
    std::memcpy(&max_pages, header.data() + kMaxPagesAt, sizeof(max_pages));
    std::memcpy(&layout, header.data() + kLayoutAt, sizeof(layout));
    TERMFS_CHECK((*store)->max_pages() == max_pages && max_pages == states.size() / sizeof(uint64_t));
    TERMFS_CHECK((*store)->layout() == layout && record.find(std::to_string(layout)) != std::string::npos);
    TERMFS_CHECK(header.substr(kMaxPagesAt + sizeof(uint64_t), 2) == std::string("v\0", 2));
    TERMFS_CHECK(counted);
    for (uint64_t page = 0; page < max_pages; page++) {
      uint64_t word = 0;
      std::memcpy(&word, states.data() + page * sizeof(word), sizeof(word));
      TERMFS_CHECK((*store)->cells()[page].load() == (page < kPages ? word : 0));
    }
  }

  std::string folder_;
  TierOptions options_;
  std::string header_, owner_, record_;
};

// The words of the page states, of which every ninth byte says whether the log has the page.
void TryRecovery(TaskRunner& runner, Bytes input) {
  TestTier tier(kPages, kFrames);
  for (uint64_t page = 0; page < kPages && input.size() >= 9; page++, input = input.subspan(9)) {
    uint64_t word = 0;
    std::memcpy(&word, input.data(), sizeof(word));
    tier.cells[page].store(word);
    if ((input[8] & 1) != 0) {
      tier.log->Set({page});
    }
  }
  std::optional<Result<RecoveredTier>> found;
  runner.Run([&] {
    found = RecoverTier({.term = *tier.term,
                         .log = *tier.log,
                         .states = tier.states,
                         .frames = tier.frames,
                         .supply = tier.supply,
                         .policy = tier.policy,
                         .cleaner = tier.cleaner},
                        kFrames);
  });
  if (!found->ok()) {
    TERMFS_CHECK(found->status().code() == EUCLEAN);
    return;
  }
  std::set<uint32_t> frames;
  uint64_t dirty = 0;
  for (uint64_t i = 0; i < kPages; i++) {
    const PageIndex page{i};
    const PageEntry entry = tier.states.Peek(page);
    TERMFS_CHECK(!entry.held() && !entry.exclusive_wanted() && !entry.waiters() && !entry.mark_committing());
    TERMFS_CHECK(entry.state() == PageState::kAbsent || entry.state() == PageState::kClean ||
                 entry.state() == PageState::kDirty);
    TERMFS_CHECK(tier.present_bit(page) == entry.present());
    TERMFS_CHECK(entry.on_ssd() ? entry.marked() == tier.log->IsSet(page) && entry.marked() != entry.mark_pending()
                                : !entry.marked() && !entry.mark_pending() && !tier.log->IsSet(page));
    if (entry.present()) {
      const driver::FrameIndex frame = entry.frame();
      TERMFS_CHECK(frame.value < tier.term->max_frames() && frames.insert(frame.value).second);
      TERMFS_CHECK(tier.frames.taken(frame) && tier.supply.Owner(frame) == page);
    }
    dirty += entry.state() == PageState::kDirty ? 1 : 0;
  }
  TERMFS_CHECK(found->value().pages == frames.size() && found->value().dirty == dirty);
  TERMFS_CHECK(tier.states.present() == frames.size() && tier.states.dirty() == dirty);
}

}  // namespace
}  // namespace termfs::tlib::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace server = termfs::tlib::server;
  [[maybe_unused]] static const bool quiet = termfs::StartLog(termfs::LogLevel::kError).ok();
  static server::LeftTier left;
  static auto* const runner = new server::TaskRunner(1);
  if (size == 0) {
    return 0;
  }
  const server::Bytes input(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    left.Try(input);
  } else {
    server::TryRecovery(*runner, input);
  }
  return 0;
}
