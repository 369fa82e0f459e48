// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_store.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/log.h"
#include "base/page.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "base/unnamed_file.h"
#include "tlib/server/page_entry.h"
#include "tlib/server/small_file.h"
#include "tlib/server/tier_owner.h"

namespace termfs::tlib::server {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'F', 'S', 'T', 'I', 'E', 'R', '\0'};
// Of the header, of page_entry.h and of the RNIC's page table. Sparse frames are a version of their own, which programs
// that know no such refuse.
constexpr uint32_t kVersion = 2;
constexpr uint32_t kSparseVersion = 3;
constexpr uint64_t kSlack = uint64_t{1} << 20;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

Result<std::string> BootId() {
  ASSIGN_OR_RETURN(std::string id, ReadSmall("/proc/sys/kernel/random/boot_id", 64));
  id.erase(std::find(id.begin(), id.end(), '\n'), id.end());
  return id;
}

bool IsDirty(PageEntry entry) {
  return entry.state() >= PageState::kDirty && entry.state() <= PageState::kWritingBackRedirtied;
}

// Of the first `pages`, by the words in the file.
Result<uint64_t> CountDirty(const std::string& path, uint64_t pages) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + path);
  }
  std::vector<uint64_t> words(size_t{64} << 10);
  uint64_t dirty = 0;
  for (uint64_t at = 0; at < pages;) {
    const size_t count = std::min<uint64_t>(words.size(), pages - at);
    const ssize_t got =
        pread(fd.get(), words.data(), count * sizeof(uint64_t), static_cast<off_t>(at * sizeof(uint64_t)));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < static_cast<ssize_t>(sizeof(uint64_t))) {
      return got < 0 ? ErrnoStatus("read " + path) : Status::Error(EUCLEAN, path + " is too short");
    }
    const size_t read = static_cast<size_t>(got) / sizeof(uint64_t);
    dirty += static_cast<uint64_t>(std::count_if(words.begin(), words.begin() + static_cast<ptrdiff_t>(read),
                                                 [](uint64_t word) { return IsDirty(PageEntry(word)); }));
    at += read;
  }
  return dirty;
}

// What a tmpfs of one's own may hold: a chunk of frames more, as growths are rounded up to such, too; and tables begin
// with a huge page, as their files are long.
uint64_t MostBytes(uint64_t pages, uint64_t max_pages) {
  return TierBytes(pages, pages + driver::ChunkFramesOf(max_pages), max_pages) + 2 * kHugePage + kSlack;
}

}  // namespace

struct TierStore::Header {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t crc = 0;  // CRC-32C of the header with this field 0
  uint64_t layout = 0;
  uint64_t unused = 0;
  uint64_t max_pages = 0;
  std::array<char, 48> volume{};
  std::array<char, 48> boot{};

  uint32_t Crc() const {
    Header copy = *this;
    copy.crc = 0;
    return ~crc32_iscsi(reinterpret_cast<unsigned char*>(&copy), sizeof(copy), ~0U);
  }
};

Result<std::unique_ptr<TierStore>> TierStore::Open(const TierOptions& options, uint64_t pages, uint64_t max_pages,
                                                   uint32_t frames) {
  std::unique_ptr<TierStore> store(new TierStore(options, pages, std::max(pages, max_pages)));
  if (!options.directory.empty()) {
    RETURN_IF_ERROR(store->OpenPlace(frames));
  } else {
    RETURN_IF_ERROR(store->CheckRoomToOpen(frames));
    RETURN_IF_ERROR(store->EndRecord());
    RETURN_IF_ERROR(SecureRandom(&store->layout_, sizeof(store->layout_)));
  }
  RETURN_IF_ERROR(store->MapCells());
  return store;
}

TierStore::~TierStore() {
  if (cells_ != nullptr) {
    munmap(cells_, CellBytes());
  }
  if (!place_.has_value() || committed_ || resumed_) {
    return;
  }
  if (!cleared_) {
    place_->Leave();
  } else if (const Status removed = recorded_ ? Remove() : place_->Remove(); !removed.ok()) {
    LOG_WARNING("of a start that failed: {}", removed.ToString());
  }
}

// Without a place: what the last server kept would be taken over by a later one, as if this one had written nothing.
Status TierStore::EndRecord() {
  ASSIGN_OR_RETURN(boot_, BootId());
  ASSIGN_OR_RETURN(const std::optional<Record> record, ReadRecord());
  if (!record.has_value()) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(CheckElsewhere(*record));
  TellOfLoss(*record);
  return RemoveSmall(options_.record);
}

// That nothing is kept where this server would not look for it.
Status TierStore::CheckElsewhere(const Record& record) const {
  if (record.boot != boot_ || record.directory == options_.directory) {
    return Status::Ok();
  }
  const int error = access((record.directory + "/header").c_str(), F_OK) == 0 ? 0 : errno;
  if (error == ENOENT) {
    return Status::Ok();
  }
  return Status::Error(EUCLEAN, "the last server was killed, and writes that are nowhere else may be in " +
                                    record.directory + (error != 0 ? " (" + std::string(strerror(error)) + ")" : "") +
                                    ": start it once with memory-directory " +
                                    record.directory.substr(0, record.directory.rfind('/')) +
                                    " and stop it cleanly; or give them up by removing " + options_.record);
}

void TierStore::TellOfLoss(const Record& record) const {
  if (record.boot == boot_) {
    LOG_WARNING("the last server was killed, and what it kept in {} is gone: writes that were not synced are lost",
                record.directory);
  } else {
    LOG_INFO("the machine was restarted since the last server was killed: what was synced is there");
  }
}

Status TierStore::OpenPlace(uint32_t frames) {
  ASSIGN_OR_RETURN(boot_, BootId());
  ASSIGN_OR_RETURN(const std::optional<Record> record, ReadRecord());
  if (record.has_value()) {
    RETURN_IF_ERROR(CheckElsewhere(*record));
  }
  ASSIGN_OR_RETURN(place_,
                   TierPlace::Open(options_.directory, options_.own_tmpfs, !options_.sparse_frames,
                                   TierBytes(pages_, frames, max_pages_) + kSlack, MostBytes(pages_, max_pages_)));
  directory_ = place_->path();
  ASSIGN_OR_RETURN(resumed_, Examine(record));
  RETURN_IF_ERROR(CheckRoomToOpen(frames));
  if (resumed_) {
    return Status::Ok();
  }
  if (record.has_value()) {
    TellOfLoss(*record);
  }
  cleared_ = true;
  RETURN_IF_ERROR(place_->Clear());
  return SecureRandom(&layout_, sizeof(layout_));
}

// What is in the directory is taken over, or makes room. With a tier that is taken over as it is nothing is lacking, be
// the tmpfs full of others' files.
Status TierStore::CheckRoomToOpen(uint32_t frames) const {
  TierDemand demand{.pages = pages_,
                    .frames = frames,
                    .max_pages = max_pages_,
                    .by_ratio = options_.by_ratio,
                    .spare = options_.spare_bytes};
  if (!place_.has_value()) {
    return CheckTierFits(demand, TightestMemory(MemoryBounds()));
  }
  ASSIGN_OR_RETURN(const TierPlace::Room room, place_->room());
  demand.has = room.held_bytes;
  if (resumed_) {
    demand.spare = 0;
    demand.beside = false;
  }
  RETURN_IF_ERROR(CheckPlace(demand, room.free_bytes));
  return CheckTierFits(demand, TightestMemory(MemoryBounds()));
}

Status TierStore::CheckPlace(const TierDemand& demand, uint64_t free_bytes) const {
  TierDemand files = demand;
  files.spare = resumed_ ? 0 : kSlack;
  files.beside = false;
  Status fits = CheckTierFits(files, {.of = "the tmpfs of " + directory_, .available = free_bytes});
  return fits.ok() ? fits
                   : Status::Error(ENOSPC, std::string(fits.message()) +
                                               "; or enlarge that (mount -o remount,size=...), or set memory-directory "
                                               "in termfs.toml to a directory on another");
}

Result<TierStore::Header> TierStore::DecodeHeader(const std::string& bytes) {
  Header header;
  if (bytes.size() != sizeof(header)) {
    return Status::Error(EUCLEAN, "the header is of another length");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  const bool texts_end = header.volume.back() == 0 && header.boot.back() == 0;
  if (header.magic != kMagic || header.crc != header.Crc() || !texts_end || header.max_pages > PageEntry::kMaxFrames) {
    return Status::Error(EUCLEAN, "the header is damaged");
  }
  if (header.version != kVersion && header.version != kSparseVersion) {
    return Status::Error(EUCLEAN, "it is of version " + std::to_string(header.version) + ", this program reads " +
                                      std::to_string(kVersion) + " and " + std::to_string(kSparseVersion));
  }
  return header;
}

Result<bool> TierStore::Examine(const std::optional<Record>& record) {
  const Result<std::string> bytes = ReadSmall(place_->File("header"), sizeof(Header) + 1);
  if (bytes.status().code() == ENOENT) {
    return false;  // new, or a server died before it was complete
  }
  RETURN_IF_ERROR(bytes.status());
  const bool dirty = record.has_value() && record->boot == boot_ && record->directory == options_.directory;
  const Result<Header> decoded = DecodeHeader(*bytes);
  if (!decoded.ok() || boot_ == decoded->boot.data()) {
    RETURN_IF_ERROR(CheckOwner(/*takeable=*/dirty && decoded.ok() && decoded->layout == record->layout));
  }
  if (!dirty) {
    return false;  // stopped cleanly, or of an earlier boot
  }
  if (!decoded.ok()) {
    return Refusal(decoded.status());
  }
  const Header& header = *decoded;
  if (boot_ != header.boot.data()) {
    LOG_INFO("what is in {} is of an earlier boot and is discarded", directory_);
    return false;
  }
  if (header.layout != record->layout) {
    LOG_WARNING("what is in {} is older than the last start and is discarded", directory_);
    return false;
  }
  if (header.max_pages < pages_ || options_.volume != header.volume.data()) {
    return Refusal(Status::Error(EUCLEAN, "it is of a smaller volume, or of another one"));
  }
  if (const bool sparse = header.version == kSparseVersion; sparse != options_.sparse_frames) {
    return Refusal(Status::Error(
        EUCLEAN, sparse
                     ? "it was served with an RDMA device that has TeRM memory regions, and now would not be"
                     : "it was served without an RDMA device that has TeRM memory regions, and now would be with one"));
  }
  if (access(place_->File("frames").c_str(), F_OK) != 0 && errno == ENOENT) {
    return false;  // a server died just before it had written anything into it
  }
  max_pages_ = header.max_pages;
  layout_ = header.layout;
  return true;
}

// A copy of the volume, which has its uuid, would take the tier over or clear it.
Status TierStore::CheckOwner(bool takeable) const {
  ASSIGN_OR_RETURN(const std::optional<TierOwner> other, OtherOwner(directory_, options_.record));
  if (!other.has_value()) {
    return Status::Ok();
  }
  const std::string moved = takeable ? "; or, if it was moved to " + FolderOf(options_.record) + ", remove " +
                                           place_->File("owner") + " to take its memory over"
                                     : "";
  return Status::Error(EUCLEAN, "the memory in " + directory_ + " is that of the volume in " + FolderOf(other->record) +
                                    ", whose server was killed, and writes that are nowhere else may be in it; this " +
                                    "is another folder, such as a copy: start that volume once and stop it cleanly" +
                                    moved + "; or give those writes up by removing " + place_->File("header"));
}

Result<std::optional<KeptTier>> TierStore::LookAtKept(const TierOptions& options, uint64_t pages) {
  ASSIGN_OR_RETURN(const std::string boot, BootId());
  ASSIGN_OR_RETURN(const std::optional<Record> record, TierStore(options, pages, pages).ReadRecord());
  const bool recorded = record.has_value() && record->boot == boot;
  KeptTier kept{.directory = recorded ? record->directory : options.directory, .dirty_pages = std::nullopt};
  if (kept.directory.empty()) {
    return std::optional<KeptTier>();
  }
  const Result<std::string> bytes = ReadSmall(kept.directory + "/header", sizeof(Header) + 1);
  if (bytes.status().code() == ENOENT) {
    return std::optional<KeptTier>();
  }
  const auto other = OtherOwner(kept.directory, options.record);
  const bool foreign = other.ok() ? other->has_value() : recorded;
  if (!recorded && foreign && TierPlace::InUse(kept.directory)) {
    return std::optional<KeptTier>();  // its server runs
  }
  if (!recorded && !foreign) {
    return std::optional<KeptTier>();
  }
  const Result<Header> header = bytes.ok() ? DecodeHeader(*bytes) : bytes.status();
  if (!header.ok() || foreign || record->directory != options.directory || options.volume != header->volume.data()) {
    return std::optional(std::move(kept));
  }
  if (boot != header->boot.data() || header->layout != record->layout) {
    return std::optional<KeptTier>();
  }
  if (const Result<uint64_t> dirty = CountDirty(kept.directory + "/states", pages); dirty.ok()) {
    kept.dirty_pages = *dirty;
  }
  return std::optional(std::move(kept));
}

Status TierStore::Refusal(const Status& status) const {
  return Status::Error(EUCLEAN, "the last server was killed, and writes that are nowhere else may be in " + directory_ +
                                    ", which this one cannot take over (" + status.ToString() +
                                    "): start the program that wrote it and stop it cleanly; or give those writes up " +
                                    "by removing " + options_.record);
}

Status TierStore::OpenCells(const std::string& path) {
  states_ = UniqueFd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!states_.valid()) {
    return Refusal(ErrnoStatus("open " + path));
  }
  struct stat found {};
  return fstat(states_.get(), &found) == 0 && static_cast<size_t>(found.st_size) == CellBytes()
             ? Status::Ok()
             : Refusal(Status::Error(EUCLEAN, path + " is of another length"));
}

Status TierStore::MakeCells(const std::string& path) {
  ASSIGN_OR_RETURN(states_, OpenUnnamed(path, 0600));
  return ftruncate(states_.get(), static_cast<off_t>(CellBytes())) == 0 ? Status::Ok() : ErrnoStatus("make " + path);
}

Status TierStore::MapCells() {
  if (place_.has_value()) {
    RETURN_IF_ERROR(resumed_ ? OpenCells(place_->File("states")) : MakeCells(place_->File("states")));
  }
  const int flags = states_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const mapped = mmap(nullptr, CellBytes(), PROT_READ | PROT_WRITE, flags, states_.get(), 0);
  if (mapped == MAP_FAILED) {
    return ErrnoStatus("map the states of " + std::to_string(max_pages_) + " pages");
  }
  cells_ = static_cast<std::atomic<uint64_t>*>(mapped);
  RETURN_IF_ERROR(AllocateCells(pages_));
  return resumed_ ? ForgetCellsBeyond(pages_) : Status::Ok();
}

// Before use: a full tmpfs is an error here and not a SIGBUS later.
Status TierStore::AllocateCells(uint64_t pages) {
  if (!states_.valid()) {
    return Status::Ok();
  }
  const size_t bytes = pages * sizeof(uint64_t);
  while (fallocate(states_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) {
      return ErrnoStatus("allocate " + place_->File("states"));
    }
  }
  if (mlock(cells_, bytes) != 0) {
    LOG_DEBUG("page states stay unlocked: {}", strerror(errno));  // the RNIC warns of the limit
  }
  return Status::Ok();
}

// What a server that died while the region became smaller or larger left there is of pages that the region has not.
Status TierStore::ForgetCellsBeyond(uint64_t pages) {
  const size_t begin = pages * sizeof(uint64_t);
  const size_t whole = std::min<size_t>(RoundUpToPage(begin), CellBytes());
  std::memset(reinterpret_cast<std::byte*>(cells_) + begin, 0, whole - begin);
  if (whole < CellBytes() && fallocate(states_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                       static_cast<off_t>(whole), static_cast<off_t>(CellBytes() - whole)) != 0) {
    return ErrnoStatus("cut " + place_->File("states"));
  }
  return Status::Ok();
}

Status TierStore::CheckRoom(uint64_t pages, uint32_t frames, uint32_t frames_now) {
  const TierDemand now{.pages = pages_, .frames = frames_now, .max_pages = max_pages_, .by_ratio = options_.by_ratio};
  TierDemand demand = now;
  demand.pages = std::max(pages, pages_);
  demand.frames = std::max(frames, frames_now);
  demand.has = BytesOf(now);
  demand.spare = options_.spare_now ? options_.spare_now() : options_.spare_bytes;
  Status fits = CheckTierFits(demand, TightestMemory(MemoryBounds()));
  if (!place_.has_value()) {
    return fits;
  }
  if (options_.own_tmpfs) {
    if (!fits.ok()) {
      return fits;  // with the limit as it is
    }
    RETURN_IF_ERROR(place_->RaiseLimitTo(MostBytes(pages, max_pages_)));
  }
  ASSIGN_OR_RETURN(const TierPlace::Room room, place_->room());
  demand.has = TierBytes(pages_, frames_now, max_pages_);
  RETURN_IF_ERROR(CheckPlace(demand, room.free_bytes));
  return fits;
}

Status TierStore::MakeRoom(uint64_t pages) {
  RETURN_IF_ERROR(AllocateCells(pages));
  pages_ = std::max(pages_, pages);
  return Status::Ok();
}

void TierStore::GiveRoomBack(uint64_t pages) {
  if (place_.has_value() && options_.own_tmpfs) {
    place_->LimitTo(MostBytes(pages, max_pages_));
  }
}

Status TierStore::Commit(const std::function<Status()>& keep_frames) {
  if (!place_.has_value()) {
    return Status::Ok();
  }
  // Whose it is before it counts. A resumed tier is complete, and its tmpfs may be full.
  ASSIGN_OR_RETURN(const TierOwner owner, TierOwner::Of(options_.record));
  ASSIGN_OR_RETURN(const std::optional<TierOwner> former, TierOwner::Read(directory_));
  if (!former.has_value() || former->folder != owner.folder || former->record != owner.record) {
    RETURN_IF_ERROR(owner.Write(directory_));
  }
  if (!resumed_) {
    RETURN_IF_ERROR(WriteHeader());
    RETURN_IF_ERROR(NameFile(states_, place_->File("states")));
    recorded_ = true;
    RETURN_IF_ERROR(WriteRecord());
    RETURN_IF_ERROR(keep_frames());
  }
  committed_ = true;
  return Status::Ok();
}

Status TierStore::WriteHeader() const {
  Header header;
  header.magic = kMagic;
  header.version = options_.sparse_frames ? kSparseVersion : kVersion;
  header.layout = layout_;
  header.max_pages = max_pages_;
  options_.volume.copy(header.volume.data(), header.volume.size() - 1);
  boot_.copy(header.boot.data(), header.boot.size() - 1);
  header.crc = header.Crc();
  return ReplaceSmall(place_->File("header"), {reinterpret_cast<const char*>(&header), sizeof(header)});
}

Status TierStore::WriteRecord() const {
  std::ostringstream text;
  text << "boot " << boot_ << "\nlayout " << layout_ << "\ndirectory " << directory_ << "\n";
  return ReplaceSmall(options_.record, text.str());
}

Result<std::optional<TierStore::Record>> TierStore::ReadRecord() const {
  constexpr size_t kMost = 8192;
  const Result<std::string> text = ReadSmall(options_.record, kMost);
  if (text.status().code() == ENOENT) {
    return std::optional<Record>();
  }
  RETURN_IF_ERROR(text.status());
  std::istringstream in(*text);
  Record record;
  std::string boot, layout, directory;
  in >> boot >> record.boot >> layout >> record.layout >> directory >> std::ws;
  if (!in || boot != "boot" || layout != "layout" || directory != "directory" || !std::getline(in, record.directory)) {
    return Status::Error(EUCLEAN,
                         options_.record + " is damaged; remove it to start without what a killed server kept");
  }
  return std::optional(std::move(record));
}

Status TierStore::Remove() {
  if (!place_.has_value()) {
    return Status::Ok();
  }
  // From here on nobody takes the directory over, whatever is in it.
  RETURN_IF_ERROR(RemoveSmall(options_.record));
  RETURN_IF_ERROR(place_->Remove());
  place_.reset();
  return Status::Ok();
}

}  // namespace termfs::tlib::server
