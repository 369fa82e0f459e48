// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/term_region.h"

#include <algorithm>

namespace termfs::driver::softnic {
namespace {

const PageTableEntry& EntryIn(const SharedObject& table, PageIndex page) {
  return reinterpret_cast<const PageTableEntry*>(table.data() + kEntriesOffset)[page.value];
}

}  // namespace

void WaitingFaults::OnFault(PageIndex page, RKey rkey, const std::shared_ptr<Port>& from) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    std::vector<Waiter>& waiting = waiters_[page.value];
    first = waiting.empty();
    waiting.push_back({rkey, from});
    count_.store(waiters_.size(), std::memory_order_seq_cst);
  }
  const uint64_t seen = EntryIn(*table_, page).load(std::memory_order_seq_cst);
  if (FrameOf(seen) < kWritingFrame) {
    FinishSlow(page, true);  // published in the meantime
  } else if (first) {
    handler_(page);
  }
}

void WaitingFaults::FinishSlow(PageIndex page, bool ok) {
  std::vector<Waiter> finished;
  {
    MutexLock lock(mutex_);
    const auto found = waiters_.find(page.value);
    if (found == waiters_.end()) {
      return;
    }
    finished = std::move(found->second);
    waiters_.erase(found);
    count_.store(waiters_.size(), std::memory_order_seq_cst);
  }
  for (const Waiter& waiter : finished) {
    if (const std::shared_ptr<Port> port = waiter.port.lock()) {
      port->AnswerFault(waiter.rkey, page, ok);
    }
  }
}

void WaitingFaults::FailAll() {
  std::vector<uint64_t> pages;
  {
    MutexLock lock(mutex_);
    for (const auto& [page, waiters] : waiters_) {
      pages.push_back(page);
    }
  }
  for (const uint64_t page : pages) {
    FinishSlow(PageIndex{page}, false);
  }
}

Result<std::unique_ptr<TermRegion>> SoftTermRegion::Create(std::shared_ptr<Registry> registry,
                                                           std::shared_ptr<RnicThread> rnic, uint32_t domain,
                                                           const TermRegionOptions& options) {
  if (options.max_pages == 0 || options.pages > options.max_pages || options.max_pages > kMaxPages) {
    return Status::Error(EINVAL, "a region of " + std::to_string(options.pages) + " pages with room for " +
                                     std::to_string(options.max_pages) + "; the largest has " +
                                     std::to_string(kMaxPages));
  }
  if (options.kind == RegionKind::kOdp && !options.fault_handler) {
    return Status::Error(EINVAL, "an ODP region without a fault handler");
  }
  std::unique_ptr<SoftTermRegion> region(new SoftTermRegion(std::move(registry), std::move(rnic), options));
  RETURN_IF_ERROR(region->AllocateObjects(options));
  region->faults_ = std::make_shared<WaitingFaults>(region->table_, options.fault_handler);
  {
    MutexLock lock(region->room_mutex_);
    region->hidden_pages_ = options.resume ? options.pages : 0;
  }
  RETURN_IF_ERROR(region->MakeRoom(options.pages));
  region->header().pages.store(options.pages, std::memory_order_release);
  RETURN_IF_ERROR(region->SetPattern(options.pattern));
  RETURN_IF_ERROR(region->Register(domain));
  return std::unique_ptr<TermRegion>(std::move(region));
}

Status SoftTermRegion::AllocateObjects(const TermRegionOptions& options) {
  SharedObjectOptions bitmap;
  bitmap.name = "termfs-present-bitmap";
  bitmap.bytes = BitmapBytes(max_pages_);
  bitmap.allocate = false;
  ASSIGN_OR_RETURN(bitmap_object_, SharedObject::Create(bitmap));
  SharedObjectOptions table;
  table.name = "termfs-page-table";
  table.bytes = PageTableBytes(max_pages_);
  table.allocate = false;
  SharedObjectOptions frames;
  frames.name = "termfs-frames";
  frames.bytes = max_pages_ << kPageBits;
  frames.allocate = false;
  frames.punchable = true;
  frames.sparse = sparse_;
  if (!options.directory.empty()) {
    table.path = options.directory + "/page-table";
    frames.path = options.directory + "/frames";
    table.resume = frames.resume = options.resume;
  }
  ASSIGN_OR_RETURN(table_, SharedObject::Create(table));
  ASSIGN_OR_RETURN(frames_, SharedObject::Create(frames));
  return Status::Ok();
}

Status SoftTermRegion::Register(uint32_t domain) {
  ASSIGN_OR_RETURN(frames_lkey_, registry_->AddLocal({domain, frames_->data(), frames_->size(), Access::kLocalWrite}));
  Export bitmap;
  bitmap.domain = domain;
  bitmap.access = Access::kRemoteRead;
  bitmap.object = bitmap_object_;
  bitmap.size = BitmapBytes(max_pages_);
  ASSIGN_OR_RETURN(bitmap_rkey_, registry_->AddExport(std::move(bitmap)));
  Export pages;
  pages.domain = domain;
  pages.access = Access::kRemoteRead;
  pages.object = table_;
  pages.frames = frames_;
  pages.kind = kind_;
  pages.max_pages = max_pages_;
  if (kind_ == RegionKind::kOdp) {
    pages.faults = faults_;
  }
  ASSIGN_OR_RETURN(rkey_, registry_->AddExport(std::move(pages)));
  if (validated_) {
    chunks_ = std::make_unique<FrameChunks>(registry_, domain, frames_, max_frames());
    Export entries;
    entries.domain = domain;
    entries.access = Access::kRemoteRead;
    entries.object = table_;
    entries.size = PageTableBytes(max_pages_);
    entries.words = true;
    ASSIGN_OR_RETURN(table_rkey_, registry_->AddExport(std::move(entries)));
  }
  return Status::Ok();
}

SoftTermRegion::~SoftTermRegion() {
  registry_->RemoveExport(rkey_);
  registry_->RemoveExport(bitmap_rkey_);
  registry_->RemoveExport(table_rkey_);
  chunks_.reset();
  registry_->RemoveLocal(frames_lkey_);
  rnic_->Barrier();  // the fault handler runs no more
  if (faults_) {
    faults_->FailAll();
  }
}

RegionKeys SoftTermRegion::keys(bool network) const {
  if (!network || chunks_ == nullptr) {
    return TermRegion::keys(network);
  }
  RegionKeys keys{.way = ReadWay::kValidated, .table = table_rkey_, .entries_offset = kEntriesOffset};
  chunks_->Describe(keys);
  return keys;
}

PageTableEntry& SoftTermRegion::entry(PageIndex page) const {
  return const_cast<PageTableEntry&>(EntryIn(*table_, page));
}

std::byte* SoftTermRegion::frame(FrameIndex frame) {
  TERMFS_CHECK(frame.value < max_pages_);
  return frames_->data() + (uint64_t{frame.value} << kPageBits);
}

Status SoftTermRegion::Commit(FrameIndex first, uint32_t count) {
  if (first.value > max_pages_ || count > max_pages_ - first.value) {
    return Status::Error(EINVAL, "commit frames that do not exist");
  }
  const uint64_t at = uint64_t{first.value} << kPageBits;
  const uint64_t bytes = uint64_t{count} << kPageBits;
  if (sparse_) {
    return frames_->AllocateSparse(at, bytes);
  }
  RETURN_IF_ERROR(frames_->Allocate(at, bytes));
  Status registered = chunks_ != nullptr ? chunks_->Register(first, count) : Status::Ok();
  if (!registered.ok() && !resumed_) {
    frames_->Punch(at, bytes);
  }
  return registered;
}

void SoftTermRegion::Decommit(FrameIndex first, uint32_t count) {
  TERMFS_CHECK(first.value <= max_pages_ && count <= max_pages_ - first.value);
  if (chunks_ != nullptr) {
    chunks_->Deregister(first, count);  // what a READ that is being answered brings, its peer knows better than to use
  }
  frames_->Punch(uint64_t{first.value} << kPageBits, uint64_t{count} << kPageBits);
}

void SoftTermRegion::Revoke(FrameIndex first, uint32_t count) {
  if (chunks_ != nullptr) {
    chunks_->Revoke(first, count);
  }
}

void SoftTermRegion::Restore(FrameIndex first, uint32_t count) {
  if (chunks_ != nullptr) {
    chunks_->Restore(first, count);
  }
}

void SoftTermRegion::Publish(PageIndex page, FrameIndex frame) {
  TERMFS_CHECK(page.value < max_pages_ && frame.value < max_pages_);
  PublishEntry(entry(page), sparse_ ? static_cast<uint32_t>(page.value) : frame.value);
  std::atomic<uint64_t>& word = bitmap_words()[page.value / 64];
  const uint64_t bit = uint64_t{1} << (page.value % 64);
  // Relaxed: the bitmap is a hint, only the entry decides what a READ delivers.
  if ((word.load(std::memory_order_relaxed) & bit) == 0) {
    word.fetch_or(bit, std::memory_order_relaxed);
  }
  faults_->Finish(page, true);
}

void SoftTermRegion::BeginWrite(PageIndex page) {
  TERMFS_CHECK(page.value < max_pages_);
  BeginWriteEntry(entry(page));
}

void SoftTermRegion::Hide(PageIndex page) {
  TERMFS_CHECK(page.value < max_pages_);
  std::atomic<uint64_t>& word = bitmap_words()[page.value / 64];
  const uint64_t bit = uint64_t{1} << (page.value % 64);
  if ((word.load(std::memory_order_relaxed) & bit) != 0) {
    word.fetch_and(~bit, std::memory_order_relaxed);
  }
  HideEntry(entry(page));
}

TermRegionMemory SoftTermRegion::memory() {
  const auto all = [](SharedObject& object) { return std::span(object.data(), object.size()); };
  return {.frames = all(*frames_), .table = all(*table_).subspan(kEntriesOffset), .bitmap = all(*bitmap_object_)};
}

Pattern SoftTermRegion::pattern() const {
  Pattern pattern;
  uint64_t version = 0;
  MutexLock lock(pattern_mutex_);
  TERMFS_CHECK(LoadPattern(header(), &pattern, &version));  // nobody changes it while we hold the lock
  return pattern;
}

Status SoftTermRegion::SetPattern(const Pattern& pattern) {
  MutexLock lock(pattern_mutex_);
  StorePattern(header(), pattern);
  return Status::Ok();
}

Status SoftTermRegion::MakeRoom(uint64_t pages) {
  if (pages > max_pages_) {
    return Status::Error(
        EINVAL, "grow a region to " + std::to_string(pages) + " pages with room for " + std::to_string(max_pages_));
  }
  const auto extend = [](SharedObject& object, size_t& allocated, size_t bytes) -> Status {
    const size_t needed = RoundUpToPage(bytes);
    if (needed > allocated) {
      RETURN_IF_ERROR(object.Allocate(allocated, needed - allocated));
      allocated = needed;
    }
    return Status::Ok();
  };
  MutexLock lock(room_mutex_);
  RETURN_IF_ERROR(extend(*table_, table_allocated_, PageTableBytes(pages)));
  RETURN_IF_ERROR(extend(*bitmap_object_, bitmap_allocated_, BitmapBytes(pages)));
  // An entry that was never used is zeros, which would name a frame; one that an earlier process left names an old one.
  for (; hidden_pages_ < pages; hidden_pages_++) {
    PageTableEntry& entry = this->entry(PageIndex{hidden_pages_});
    entry.store(MakeEntry(GenerationOf(entry.load(std::memory_order_relaxed)), kMagicFrame), std::memory_order_relaxed);
  }
  return Status::Ok();
}

Status SoftTermRegion::Keep() {
  RETURN_IF_ERROR(table_->Keep());
  return frames_->Keep();
}

Status SoftTermRegion::Resize(uint64_t pages) {
  RETURN_IF_ERROR(MakeRoom(pages));
  header().pages.store(pages, std::memory_order_release);
  return Status::Ok();
}

}  // namespace termfs::driver::softnic
