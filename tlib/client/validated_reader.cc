// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/validated_reader.h"

#include <algorithm>

#include "base/log.h"

namespace termfs::tlib::client {
namespace {

constexpr uint64_t kEntryBytes = sizeof(uint64_t);
constexpr size_t kEntriesBuffer = 16 * PageTableView::kBlockPages;

driver::SendWorkRequest ReadRequestOf(void* to, size_t bytes, driver::LKey lkey, driver::RKey rkey, uint64_t offset) {
  driver::SendWorkRequest request;
  request.id = RpcPort::kReadId;
  request.opcode = driver::Opcode::kRdmaRead;
  request.signaled = false;
  request.local = {.addr = to, .length = static_cast<uint32_t>(bytes), .lkey = lkey};
  request.remote_offset = offset;
  request.rkey = rkey;
  return request;
}

}  // namespace

Result<std::unique_ptr<ValidatedReader>> ValidatedReader::Create(std::shared_ptr<SessionCore> core, RpcPort& port,
                                                                 ChannelCounters& counters) {
  std::unique_ptr<ValidatedReader> reader(new ValidatedReader(std::move(core), port, counters));
  RETURN_IF_ERROR(reader->Init());
  return reader;
}

ValidatedReader::~ValidatedReader() {
  if (entered_ != nullptr) {
    chunks_.RemoveReader(entered_);
  }
  if (ring_ != nullptr) {
    core_->heat()->RemoveRing(ring_);
  }
}

Status ValidatedReader::Init() {
  static_assert(kMostBlocks * PageTableView::kBlockPages == kEntriesBuffer && kMostChecks <= kEntriesBuffer);
  entries_ = std::make_unique<uint64_t[]>(kEntriesBuffer);
  ASSIGN_OR_RETURN(entries_region_,
                   core_->domain().RegisterMemory(reinterpret_cast<std::byte*>(entries_.get()),
                                                  kEntriesBuffer * kEntryBytes, driver::Access::kLocalWrite));
  entered_ = chunks_.AddReader();
  if (core_->heat() != nullptr) {
    ring_ = core_->heat()->AddRing();
  }
  return Status::Ok();
}

Status ValidatedReader::Read(std::span<const ReadRequest> reads, std::vector<MissingPages>& missing) {
  missing_ = &missing;
  hits_ = 0;
  uint64_t pages = 0;
  request_count_ = entry_request_count_ = check_count_ = 0;
  for (const ReadRequest& read : reads) {
    if (read.length - 1 >= kMaxTransfer || !buffer_->Contains(read.destination, read.length)) {
      return Status::Error(EINVAL, "read too much, or outside of the channel's buffer");
    }
    RETURN_IF_ERROR(core_->CheckInRegion(read.offset, read.length));
    pages += PageSpan(read.offset.value, read.length).count();
  }
  RETURN_IF_ERROR(LearnEntries(reads));
  if (chunks_.version() != keys_version_) {
    RefreshKeys();
  }
  met_unknown_chunk_ = false;
  for (uint32_t i = 0; i < reads.size(); i++) {
    RETURN_IF_ERROR(PlanPages(reads[i], i));
  }
  if (check_count_ != 0) {
    RETURN_IF_ERROR(PostPlanned());
  }
  counters_.read_pages.Add(pages);
  counters_.read_hit_pages.Add(hits_);
  if (met_unknown_chunk_) {
    AskForChunks();
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Entries that are not known.

Status ValidatedReader::LearnEntries(std::span<const ReadRequest> reads) {
  block_count_ = 0;
  for (const ReadRequest& read : reads) {
    const PageSpan pages(read.offset.value, read.length);
    for (uint64_t page = pages.first(); page < pages.first() + pages.count(); page++) {
      if (view_.entry(page) != PageTableView::kUnknown) {
        continue;
      }
      const uint64_t block = page / PageTableView::kBlockPages;
      RETURN_IF_ERROR(AddBlock(block));
      page = (block + 1) * PageTableView::kBlockPages - 1;
    }
  }
  return block_count_ != 0 ? ReadBlocks() : Status::Ok();
}

Status ValidatedReader::AddBlock(uint64_t block) {
  if (std::find(blocks_.begin(), blocks_.begin() + block_count_, block) != blocks_.begin() + block_count_) {
    return Status::Ok();
  }
  if (block_count_ == blocks_.size()) {
    RETURN_IF_ERROR(ReadBlocks());
  }
  blocks_[block_count_++] = block;
  return Status::Ok();
}

driver::SendWorkRequest ValidatedReader::EntriesRequest(uint64_t first, uint64_t count, uint64_t* to) const {
  driver::SendWorkRequest request =
      view_.ReadOf(first, count, core_->region().entries_offset, to, entries_region_->lkey());
  request.id = RpcPort::kReadId;
  request.signaled = false;
  return request;
}

Status ValidatedReader::ReadBlocks() {
  std::array<uint64_t, kMostBlocks> counts;
  for (uint32_t i = 0; i < block_count_; i++) {
    counts[i] = view_.CoveredOf(blocks_[i]);
    requests_[i] = EntriesRequest(blocks_[i] * PageTableView::kBlockPages, counts[i],
                                  entries_.get() + i * PageTableView::kBlockPages);
  }
  RETURN_IF_ERROR(Post({requests_.data(), block_count_}));
  for (uint32_t i = 0; i < block_count_; i++) {
    const uint64_t first = blocks_[i] * PageTableView::kBlockPages;
    view_.Use(blocks_[i]);
    for (uint64_t j = 0; j < counts[i]; j++) {
      view_.Set(first + j, entries_[i * PageTableView::kBlockPages + j]);
    }
  }
  block_count_ = 0;
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Planning.

Status ValidatedReader::PlanPages(const ReadRequest& read, uint32_t index) {
  const PageSpan pages(read.offset.value, read.length);
  uint64_t absent = 0;
  for (uint32_t i = 0; i < pages.count(); i++) {
    const Check check{.page = pages.first() + i, .expected = view_.entry(pages.first() + i), .read = index, .index = i};
    driver::RKey rkey;
    uint64_t offset = 0;
    if (!Locate(check.expected, &rkey, &offset)) {
      AddMissing(*missing_, index, i);
      absent++;
      continue;
    }
    RETURN_IF_ERROR(AddPage(read, check, pages.part(i), rkey, offset));
  }
  counters_.absent_by_bitmap_pages.Add(absent);
  return Status::Ok();
}

bool ValidatedReader::Locate(uint64_t entry, driver::RKey* rkey, uint64_t* offset) {
  if (!PageTableView::NamesFrame(entry)) {
    return false;
  }
  const uint32_t frame = driver::FrameOf(entry);
  *rkey = keys_->Of(frame);
  *offset = uint64_t{frame % keys_->chunk_frames} << kPageBits;
  if (*rkey == driver::RKey{}) {
    met_unknown_chunk_ = true;
    return false;
  }
  return true;
}

// Whether the page continues what the last READ of a frame brings.
bool ValidatedReader::Extends(const Check& check, driver::RKey rkey, uint64_t offset) const {
  if (check_count_ == 0) {
    return false;
  }
  const Check& last = checks_[check_count_ - 1];
  const driver::SendWorkRequest& request = requests_[request_count_ - 1];
  return last.read == check.read && last.page + 1 == check.page && request.rkey == rkey &&
         request.remote_offset + request.local.length == offset;
}

Status ValidatedReader::AddPage(const ReadRequest& read, const Check& check, PagePart part, driver::RKey rkey,
                                uint64_t offset) {
  const uint64_t in_page = (read.offset.value + part.offset) % kPageSize;
  if (check_count_ == checks_.size() || request_count_ + entry_request_count_ + 2 > requests_.size()) {
    const uint64_t version = keys_version_;
    RETURN_IF_ERROR(PostPlanned());
    if (keys_version_ != version) {  // the key that this page was to be READ with may be refused
      AddMissing(*missing_, check.read, check.index);
      return Status::Ok();
    }
  }
  if (Extends(check, rkey, offset)) {
    requests_[request_count_ - 1].local.length += part.length;
  } else {
    requests_[request_count_++] =
        ReadRequestOf(read.destination + part.offset, part.length, buffer_->lkey(), rkey, offset + in_page);
  }
  if (check_count_ != 0 && checks_[check_count_ - 1].page + 1 == check.page) {
    entry_requests_[entry_request_count_ - 1].local.length += kEntryBytes;
  } else {
    entry_requests_[entry_request_count_++] = EntriesRequest(check.page, 1, entries_.get() + check_count_);
  }
  checks_[check_count_++] = check;
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// READs.

Status ValidatedReader::PostPlanned() {
  if (!entered_->Enter(keys_version_)) {  // the keys are not good any more
    GiveUpPlanned();
    RefreshKeys();
    return Status::Ok();
  }
  // All entries after all frames: one fence serves them, as what is behind it starts after it.
  entry_requests_[0].send_fence = true;
  std::copy_n(entry_requests_.begin(), entry_request_count_, requests_.begin() + request_count_);
  const Status posted = Post({requests_.data(), request_count_ + entry_request_count_});
  entered_->Leave();
  RETURN_IF_ERROR(posted);
  Validate();
  return Status::Ok();
}

void ValidatedReader::Validate() {
  uint64_t stale = 0;
  for (uint32_t i = 0; i < check_count_; i++) {
    const Check& check = checks_[i];
    if (entries_[i] == check.expected) [[likely]] {
      hits_++;
      if (ring_ != nullptr) {
        ring_->Push(static_cast<uint32_t>(check.page));
      }
      continue;
    }
    view_.Set(check.page, entries_[i]);
    AddMissing(*missing_, check.read, check.index);
    stale++;
  }
  counters_.validation_misses.Add(stale);
  request_count_ = entry_request_count_ = check_count_ = 0;
}

void ValidatedReader::GiveUpPlanned() {
  for (uint32_t i = 0; i < check_count_; i++) {
    AddMissing(*missing_, checks_[i].read, checks_[i].index);
  }
  counters_.validation_misses.Add(check_count_);
  request_count_ = entry_request_count_ = check_count_ = 0;
}

Status ValidatedReader::WhyNot() const {
  if (core_->patterns().lost()) {
    return core_->why_lost();
  }
  return port_.broken() ? port_.why_broken() : Status::Ok();
}

Status ValidatedReader::Post(std::span<driver::SendWorkRequest> requests) {
  RETURN_IF_ERROR(WhyNot());
  requests.back().signaled = true;  // completions come in order
  if (const Status posted = port_.pair().PostSend(requests); !posted.ok()) {
    return port_.Break(posted);
  }
  if (port_.PollSends() == 0) {
    // Not interrupted: a READ that is still to come may write to its destination at any time.
    Deadline deadline(core_->call_timeout());
    Status waited = port_.waiter().WaitUninterrupted(
        port_.send_queue(), [this] { return port_.PollSends() != 0 || port_.broken(); }, deadline);
    if (!waited.ok()) {
      [[maybe_unused]] const Status why = port_.Break(Status::Error(ENOTCONN, "a READ did not complete in time"));
      return waited;
    }
  }
  return WhyNot();  // also when the session was lost meanwhile
}

// ---------------------------------------------------------------------------------------------------------------
// What others say.

void ValidatedReader::AskForChunks() {
  if (!chunks_.BeginAsking()) {
    return;
  }
  const Status asked = core_->RefreshRegion();
  chunks_.EndAsking();
  if (!asked.ok()) {  // whoever reads hears of it from the RPC that follows
    LOG_DEBUG("ask for the server's chunks of frames: {}", asked.ToString());
  }
}

void ValidatedReader::Learn(const ReadRequest& read, const ReadBitmap& asked, const ReadBitmap& present) {
  const PageSpan pages(read.offset.value, read.length);
  for (uint32_t i = 0; i < pages.count(); i++) {
    if (((asked[i / 64] >> (i % 64)) & 1) != 0) {
      view_.Learn(pages.first() + i, ((present[i / 64] >> (i % 64)) & 1) != 0);
    }
  }
}

}  // namespace termfs::tlib::client
