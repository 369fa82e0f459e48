// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/one_sided_reader.h"

#include "tlib/rpc/page_span.h"

namespace termfs::tlib::client {

Result<std::unique_ptr<OneSidedReader>> OneSidedReader::Create(std::shared_ptr<SessionCore> core, RpcPort& port,
                                                               ChannelCounters& counters) {
  std::unique_ptr<OneSidedReader> reader(new OneSidedReader(std::move(core), port, counters));
  RETURN_IF_ERROR(reader->Init());
  return reader;
}

OneSidedReader::~OneSidedReader() {
  if (ring_ != nullptr) {
    core_->heat()->RemoveRing(ring_);
  }
}

Status OneSidedReader::Init() {
  const RegionFacts& region = core_->region();
  region_bytes_ = core_->region_bytes();
  for (driver::SendWorkRequest& request : requests_) {
    request.id = RpcPort::kReadId;
    request.opcode = driver::Opcode::kRdmaRead;
    request.signaled = false;
    request.rkey = rkey_;
  }
  RefreshPatterns(false);
  switch (core_->bitmap_mode()) {
    case BitmapMode::kLive: {
      ASSIGN_OR_RETURN(const auto view, pair_.SharedView(region.bitmap_rkey));
      if (view.size() < (region.pages + 63) / 64 * sizeof(uint64_t)) {
        return Status::Error(EPROTO, "the server's bitmap is shorter than its region");
      }
      bitmap_pages_ = std::min<uint64_t>(region.max_pages, view.size() * 8);
      bitmap_ = reinterpret_cast<const std::atomic<uint64_t>*>(view.data());
      break;
    }
    case BitmapMode::kPulled:
      bitmap_ = core_->pulled_bitmap().data();
      bitmap_pages_ = core_->pulled_bitmap().size() * 64;
      break;
    case BitmapMode::kOff:
      break;
  }
  if (core_->heat() != nullptr) {
    ring_ = core_->heat()->AddRing();
  }
  return Status::Ok();
}

Status OneSidedReader::Prepare() {
  if (core_->region().kind == driver::RegionKind::kOdp) {
    return Status::Ok();  // it would page in
  }
  requests_[0].local.addr = buffer_->bytes().data();
  requests_[0].local.length = 1;
  requests_[0].remote_offset = 0;
  requests_[0].signaled = true;
  const Status posted = pair_.PostSend({requests_.data(), 1});
  requests_[0].signaled = false;
  RETURN_IF_ERROR(posted);
  return port_.PollSends() != 0 ? Status::Ok() : WaitForRuns();
}

void OneSidedReader::RefreshPatterns(bool keep) {
  if (!keep) {
    matchers_.clear();
  }
  for (const driver::Pattern& pattern : core_->patterns().Get(&patterns_version_)) {
    matchers_.emplace_back(pattern);
  }
  kept_former_ = keep;
  quick_bytes_ = matchers_.size() == 1 && (patterns_version_ & Patterns::kLost) == 0 ? region_bytes_ : 0;
}

Status OneSidedReader::LearnRegionBytes(const ReadRequest& read) {
  RETURN_IF_ERROR(core_->CheckInRegion(read.offset, read.length));
  region_bytes_ = core_->region_bytes();
  quick_bytes_ = quick_bytes_ != 0 ? region_bytes_ : 0;
  return Status::Ok();
}

bool OneSidedReader::LooksAbsent(const std::byte* data, uint32_t in_page, uint32_t length) const {
  if (matchers_.front().Touches(data, in_page, length)) [[unlikely]] {
    return true;
  }
  for (size_t i = 1; i < matchers_.size(); i++) {
    if (matchers_[i].Touches(data, in_page, length)) {
      return true;
    }
  }
  return false;
}

Status OneSidedReader::Read(std::span<const ReadRequest> reads, std::vector<MissingPages>& missing) {
  missing_ = &missing;
  hits_ = 0;
  uint64_t pages = reads.size();
  count_ = 0;
  for (uint32_t i = 0; i < reads.size(); i++) {
    const ReadRequest& read = reads[i];
    if (read.length - 1 >= kMaxTransfer || !buffer_->Contains(read.destination, read.length)) [[unlikely]] {
      return Status::Error(EINVAL, "read too much, or outside of the channel's buffer");
    }
    if (!InRegion(read)) [[unlikely]] {
      RETURN_IF_ERROR(LearnRegionBytes(read));
    }
    if (read.offset.in_page() + read.length <= kPageSize) [[likely]] {
      if (CallsPresent(read.offset.page().value)) {
        AddRun(read, i, 0, {.offset = 0, .length = read.length});
        if (count_ == runs_.size()) [[unlikely]] {
          RETURN_IF_ERROR(PostRuns());
        }
      } else {
        counters_.absent_by_bitmap_pages.Add();
        AddMissing(i, 0);
      }
    } else {
      pages += PageSpan(read.offset.value, read.length).count() - 1;
      RETURN_IF_ERROR(PlanPages(read, i));
    }
  }
  if (count_ != 0) {
    RETURN_IF_ERROR(PostRuns());
  }
  counters_.read_pages.Add(pages);
  counters_.read_hit_pages.Add(hits_);
  return Status::Ok();
}

Status OneSidedReader::PlanPages(const ReadRequest& read, uint32_t index) {
  const PageSpan pages(read.offset.value, read.length);
  uint32_t absent = 0;
  for (uint32_t page = 0; page < pages.count();) {
    if (!CallsPresent(pages.first() + page)) {
      AddMissing(index, page++);
      absent++;
      continue;
    }
    const uint32_t first = page;
    while (page < pages.count() && CallsPresent(pages.first() + page)) {
      page++;
    }
    AddRun(read, index, first, pages.part(first, page - first));
    if (count_ == runs_.size()) {
      RETURN_IF_ERROR(PostRuns());
    }
  }
  counters_.absent_by_bitmap_pages.Add(absent);
  return Status::Ok();
}

void OneSidedReader::AddRun(const ReadRequest& read, uint32_t index, uint32_t first, PagePart part) {
  const uint64_t offset = read.offset.value + part.offset;
  std::byte* const data = read.destination + part.offset;
  driver::SendWorkRequest& request = requests_[count_];
  request.local.addr = data;
  request.local.length = part.length;
  request.remote_offset = offset;
  runs_[count_] = {.data = data, .offset = offset, .length = part.length, .read = index, .first = first};
  count_++;
}

Status OneSidedReader::PostRuns() {
  if (patterns_.version() != patterns_version_ || kept_former_) [[unlikely]] {
    RefreshPatterns(false);
  }
  if ((patterns_version_ & Patterns::kLost) != 0) [[unlikely]] {
    return core_->why_lost();
  }
  if (port_.broken()) [[unlikely]] {
    return port_.why_broken();
  }
  // One signaled completion suffices: those of a queue pair come in order.
  requests_[count_ - 1].signaled = true;
  const Status posted = pair_.PostSend({requests_.data(), count_});
  requests_[count_ - 1].signaled = false;
  if (!posted.ok()) [[unlikely]] {
    return port_.Break(posted);
  }
  if (port_.PollSends() == 0) [[unlikely]] {
    RETURN_IF_ERROR(WaitForRuns());
  }
  return DetectAbsent();
}

Status OneSidedReader::WaitForRuns() {
  // Not interrupted: a READ that is still to come may write to its destination at any time.
  Deadline deadline(core_->call_timeout());
  Status waited = port_.waiter().WaitUninterrupted(
      port_.send_queue(), [this] { return port_.PollSends() != 0 || port_.broken(); }, deadline);
  if (!waited.ok()) {
    // The RNIC may still write to the destinations: the queue pair has to go.
    [[maybe_unused]] const Status why = port_.Break(Status::Error(ENOTCONN, "a READ did not complete in time"));
    return waited;
  }
  return port_.broken() ? port_.why_broken() : Status::Ok();
}

Status OneSidedReader::DetectAbsent() {
  // Looked at after the bytes arrived: whatever pattern they may contain, it was announced before.
  if (patterns_.version() != patterns_version_) [[unlikely]] {
    RefreshPatterns(true);
    if ((patterns_version_ & Patterns::kLost) != 0) {
      return core_->why_lost();
    }
  }
  for (uint32_t i = 0; i < count_; i++) {
    const Run& run = runs_[i];
    const auto in_page = static_cast<uint32_t>(run.offset % kPageSize);
    if (in_page + run.length > kPageSize) {
      DetectInPages(run);
    } else if (LooksAbsent(run.data, in_page, run.length)) [[unlikely]] {
      counters_.absent_by_pattern_pages.Add();
      AddMissing(run.read, run.first);
    } else {
      Hit(run.offset >> kPageBits);
    }
  }
  count_ = 0;
  return Status::Ok();
}

void OneSidedReader::DetectInPages(const Run& run) {
  const PageSpan pages(run.offset, run.length);
  uint32_t absent = 0;
  for (uint32_t i = 0; i < pages.count(); i++) {
    const PagePart part = pages.part(i);
    const auto in_page = static_cast<uint32_t>((run.offset + part.offset) % kPageSize);
    if (LooksAbsent(run.data + part.offset, in_page, part.length)) {
      absent++;
      AddMissing(run.read, run.first + i);
    } else {
      Hit(pages.first() + i);
    }
  }
  counters_.absent_by_pattern_pages.Add(absent);
}

void OneSidedReader::SetBuffer(std::shared_ptr<RegisteredBuffer> buffer) {
  buffer_ = std::move(buffer);
  quick_begin_ = buffer_->bytes().data();
  quick_room_ = buffer_->bytes().size() - kPageSize;  // a Memory has whole pages
  for (driver::SendWorkRequest& request : requests_) {
    request.local.lkey = buffer_->lkey();
  }
}

void OneSidedReader::Learn(const ReadRequest& read, const ReadBitmap& asked, const ReadBitmap& present) {
  const std::span<std::atomic<uint64_t>> pulled = core_->pulled_bitmap();
  if (pulled.empty()) {
    return;
  }
  const PageSpan pages(read.offset.value, read.length);
  for (uint32_t i = 0; i < pages.count(); i++) {
    if (((asked[i / 64] >> (i % 64)) & 1) == 0) {
      continue;
    }
    const uint64_t page = pages.first() + i;
    if (page >= bitmap_pages_) {
      break;
    }
    const uint64_t bit = uint64_t{1} << (page % 64);
    if (((present[i / 64] >> (i % 64)) & 1) != 0) {
      pulled[page / 64].fetch_or(bit, std::memory_order_relaxed);
    } else {
      pulled[page / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
  }
}

}  // namespace termfs::tlib::client
