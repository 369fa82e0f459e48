// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tiering_io.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/streaming_copy.h"
#include "tlib/server/page_runs.h"
#include "tlib/server/read_window.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPagesPerTurn = 1024;  // zeroed before other tasks get their turn
constexpr size_t kBigWrite = 64 << 10;    // bytes; from here on past the processor's caches

bool IsPageAligned(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % kPageSize == 0; }

}  // namespace

TieringIo::TieringIo(const Parts& parts) : p_(parts), zeros_(parts.bounce.Take(1)) {
  std::memset(zeros_.page(0), 0, kPageSize);
}

Status TieringIo::CheckRange(RegionOffset offset, uint64_t length) const {
  const uint64_t bytes = p_.states.pages() * kPageSize;
  if (offset.value > bytes || length > bytes - offset.value) {
    return Status::Error(EINVAL, "access beyond the region");
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Reading.

Status TieringIo::ReadPages(RegionOffset offset, uint64_t length, std::span<const uint64_t> missing, PieceSink& sink) {
  RETURN_IF_ERROR(CheckRange(offset, length));
  const uint64_t first = offset.page().value;
  const uint64_t end = length == 0 ? first : RegionOffset{offset.value + length - 1}.page().value + 1;
  if (!missing.empty() && missing.size() * 64 < end - first) {
    return Status::Error(EINVAL, "the bitmap of missing pages is shorter than the range");
  }
  for (uint64_t page = first; page < end;) {
    InlineVector<Part, Bounce::kWindowPages> parts;
    InlineVector<uint32_t, Bounce::kWindowPages> at;
    for (; page < end && !parts.full(); page++) {
      if (!missing.empty() && (missing[(page - first) / 64] >> ((page - first) % 64) & 1) == 0) {
        continue;
      }
      const uint64_t start = StartOf({page}).value;
      const uint64_t begin = std::max(offset.value, start);
      parts.Push(
          {.page = {page}, .begin = begin - start, .end = std::min(offset.value + length, start + kPageSize) - start});
      at.Push(static_cast<uint32_t>(begin - offset.value));
    }
    if (!parts.empty()) {
      ReadWindow window(p_, zeros_);
      RETURN_IF_ERROR(window.Run(parts, at, sink));
    }
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Writing.

Status TieringIo::Write(RegionOffset offset, std::span<const std::byte> from, const Region::Check& check) {
  RETURN_IF_ERROR(CheckRange(offset, from.size()));
  const bool big = from.size() >= kBigWrite;
  while (!from.empty()) {
    const uint64_t begin = offset.in_page();
    const Part part{
        .page = offset.page(), .begin = begin, .end = std::min(kPageSize, begin + from.size()), .of_big_write = big};
    const uint32_t run = part.whole() ? AbsentRun(part.page, from.size() / kPageSize) : 0;
    ASSIGN_OR_RETURN(const uint32_t in_frames, WriteRunIntoFrames(part.page, run, from.data(), check));
    uint64_t done = in_frames * kPageSize;
    bool written = done > 0;
    if (!written) {
      RETURN_IF_ERROR(WritePage(part, from.data(), run, check, written));
      done = written ? part.length() : 0;
    }
    if (!written && run > 0) {
      ASSIGN_OR_RETURN(const uint32_t pages, WriteRunThrough(part.page, run, from.data(), check));
      done = pages * kPageSize;
    } else if (!written) {
      RETURN_IF_ERROR(WritePartThrough(part, from.data(), check, written));
      done = written ? part.length() : 0;
    }
    offset.value += done;  // 0: the page came or went in between, look again
    from = from.subspan(done);
  }
  return Status::Ok();
}

uint32_t TieringIo::AbsentRun(PageIndex first, uint64_t count) const {
  uint32_t run = 0;
  while (run < std::min<uint64_t>(count, Bounce::kWindowPages) &&
         p_.states.Peek({first.value + run}).state() == PageState::kAbsent) {
    run++;
  }
  return run;
}

// Into the page's frame, or into one that is taken in for it. `written` stays false when there is none.
Status TieringIo::WritePage(const Part& part, const std::byte* from, uint32_t run, const Region::Check& check,
                            bool& written) {
  std::optional<driver::FrameIndex> frame;
  if (p_.states.Peek(part.page).state() == PageState::kAbsent) {
    frame = p_.supply.TakeForWrite(part.page, run);
    if (!frame.has_value()) {
      return Status::Ok();
    }
  }
  const PageEntry entry = p_.states.AcquireExclusive(part.page, PageStates::WriteBack::kMayRun);
  Status status;
  if (entry.present()) {
    status = WritePresent(part, entry.frame(), from, check);
    written = status.ok();
  } else if (frame.has_value()) {
    status = WriteIntoNew(part, *frame, entry.on_ssd(), from, check);
    written = status.ok();
    if (written) {
      frame.reset();
    }
  }
  p_.states.ReleaseExclusive(part.page);
  if (frame.has_value()) {
    p_.supply.Give(*frame);
  }
  if (written) {
    p_.policy.Access(part.page, 1, AccessKind::kWrite);
  }
  return status;
}

Result<uint32_t> TieringIo::WriteRunIntoFrames(PageIndex first, uint32_t count, const std::byte* from,
                                               const Region::Check& check) {
  std::array<driver::FrameIndex, Bounce::kWindowPages> frames;
  const uint32_t taken = p_.supply.TakeForRun(first, count, frames);
  InlineVector<PageIndex, Bounce::kWindowPages> to_queue;
  // Before the pages are held: until they are installed, no one reads the frames.
  OrderStreamingCopies();
  for (uint32_t i = 0; i < taken; i++) {
    CopyPageStreamingUnordered(p_.frames.data(frames[i]), from + i * kPageSize);
  }
  OrderStreamingCopies();
  Status checked;
  uint32_t written = 0;
  for (; written < taken; written++) {
    const PageIndex page{first.value + written};
    const PageStates::Installed installed = p_.states.TryInstall(page, frames[written], check);
    if (!installed.done) {
      checked = installed.checked;
      break;
    }
    if (installed.queue) {
      to_queue.Push(page);
    }
    p_.policy.Access(page, 1, AccessKind::kWrite);
  }
  for (uint32_t i = written; i < taken; i++) {
    p_.supply.ClearOwner(frames[i]);
    p_.supply.Give(frames[i]);
  }
  if (written > 0) {
    p_.cleaner.NoteDirty(to_queue);
  }
  RETURN_IF_ERROR(checked);
  return written;
}

void TieringIo::CopyInto(driver::FrameIndex frame, const Part& part, const std::byte* from) const {
  std::byte* const bytes = p_.frames.data(frame);
  if (part.of_big_write && part.whole()) {
    CopyPageStreaming(bytes, from);
  } else {
    std::memcpy(bytes + part.begin, from, part.length());
  }
}

Status TieringIo::WritePresent(const Part& part, driver::FrameIndex frame, const std::byte* from,
                               const Region::Check& check) {
  if (check) {
    RETURN_IF_ERROR(check());
  }
  if (p_.states.MarkDirty(part.page)) {  // before the first byte changes
    p_.cleaner.NoteDirty(part.page);
  }
  p_.term.BeginWrite(part.page);
  CopyInto(frame, part, from);
  p_.term.Publish(part.page, frame);
  return Status::Ok();
}

// The page is absent and `frame` nobody's: what the write does not cover comes from the device, or is zero.
Status TieringIo::WriteIntoNew(const Part& part, driver::FrameIndex frame, bool on_ssd, const std::byte* from,
                               const Region::Check& check) {
  std::byte* const bytes = p_.frames.data(frame);
  if (!part.whole() && on_ssd) {
    RETURN_IF_ERROR(p_.device.Read(StartOf(part.page).value, {bytes, kPageSize}));
  } else if (!part.whole()) {
    std::memset(bytes, 0, kPageSize);
  }
  if (check) {
    RETURN_IF_ERROR(check());
  }
  CopyInto(frame, part, from);
  p_.supply.SetOwner(frame, part.page);
  if (p_.states.Install(part.page, frame)) {
    p_.cleaner.NoteDirty(part.page);
  }
  return Status::Ok();
}

void TieringIo::NoteOnSsd(PageIndex page) {
  if (p_.states.MarkOnSsd(page)) {
    p_.cleaner.NotePendingMark(page);
  }
  p_.policy.Access(page, 1, AccessKind::kWrite);
}

// `written` stays false when the page has a frame by now.
Status TieringIo::WritePartThrough(const Part& part, const std::byte* from, const Region::Check& check, bool& written) {
  const Bounce bounce = p_.bounce.Take(1);
  const PageEntry entry = p_.states.AcquireExclusive(part.page, PageStates::WriteBack::kMayRun);
  Status status;
  if (!entry.present()) {
    status = ModifyOnDevice(part, entry.on_ssd(), bounce.page(0), from, check);
    written = status.ok();
    if (written) {
      NoteOnSsd(part.page);
    }
  }
  p_.states.ReleaseExclusive(part.page);
  return status;
}

Status TieringIo::ModifyOnDevice(const Part& part, bool on_ssd, std::byte* bounce, const std::byte* from,
                                 const Region::Check& check) {
  const uint64_t start = StartOf(part.page).value;
  const bool in_place = on_ssd && p_.device.alignment() == 1;
  if (!part.whole() && on_ssd && !in_place) {
    RETURN_IF_ERROR(p_.device.Read(start, {bounce, kPageSize}));
  } else if (!part.whole() && !on_ssd) {
    std::memset(bounce, 0, kPageSize);
  }
  if (check) {
    RETURN_IF_ERROR(check());
  }
  Status status;
  if (in_place) {
    status = p_.device.Write(start + part.begin, {from, part.length()});
  } else {
    std::memcpy(bounce + part.begin, from, part.length());
    status = p_.device.Write(start, {bounce, kPageSize});
  }
  p_.cleaner.NoteSsdWrite();
  return status;
}

Result<uint32_t> TieringIo::WriteRunThrough(PageIndex first, uint32_t count, const std::byte* from,
                                            const Region::Check& check) {
  Bounce bounce;
  if (p_.device.alignment() > 1 && !IsPageAligned(from)) {
    bounce = p_.bounce.Take(count);
  }
  PageRuns runs(BlockIo::Kind::kWrite);
  Status checked;
  uint32_t held = 0;
  while (held < count) {
    const PageIndex page{first.value + held};
    const PageEntry entry = p_.states.AcquireExclusive(page, PageStates::WriteBack::kMayRun);
    if (!entry.present() && check) {
      checked = check();
    }
    if (entry.present() || !checked.ok()) {
      p_.states.ReleaseExclusive(page);
      break;
    }
    // The device only reads from it.
    auto* bytes = const_cast<std::byte*>(from) + held * kPageSize;
    if (bounce.count() > 0) {
      bytes = bounce.page(held);
      std::memcpy(bytes, from + held * kPageSize, kPageSize);
    }
    runs.Add(page, bytes);
    held++;
  }
  if (!runs.empty()) {
    p_.device.Run(runs.ios());
    p_.cleaner.NoteSsdWrite();
  }
  const Status written = runs.FirstError();
  for (uint32_t i = 0; i < held; i++) {
    const PageIndex page{first.value + i};
    if (written.ok()) {
      NoteOnSsd(page);
    }
    p_.states.ReleaseExclusive(page);
  }
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(checked);
  return held;
}

// ---------------------------------------------------------------------------------------------------------------
// Zeroing.

void TieringIo::ZeroPage(PageIndex page) {
  p_.states.AcquireExclusive(page, PageStates::WriteBack::kMustEnd);
  const std::optional<driver::FrameIndex> frame = p_.states.Drop(page);
  p_.log.Clear(page);  // after Drop: see Cleaner::MarkAll
  if (frame.has_value()) {
    p_.supply.ClearOwner(*frame);
  }
  p_.states.ReleaseExclusive(page);
  if (frame.has_value()) {
    p_.supply.Give(*frame);
  }
}

Status TieringIo::Zero(std::span<const PageRange> ranges) {
  for (const PageRange& range : ranges) {
    if (range.first.value > p_.states.pages() || range.count > p_.states.pages() - range.first.value) {
      return Status::Error(EINVAL, "zero pages beyond the region");
    }
  }
  uint64_t in_turn = 0;
  for (const PageRange& range : ranges) {
    for (uint64_t i = 0; i < range.count; i++) {
      const PageIndex page{range.first.value + i};
      const PageEntry entry = p_.states.Peek(page);
      if (entry.state() != PageState::kAbsent || entry.held() || entry.on_ssd()) {  // else it reads as zeros already
        ZeroPage(page);
      }
      if (++in_turn % kPagesPerTurn == 0) {
        Task::Yield();
      }
    }
  }
  return p_.log.Sync();
}

}  // namespace termfs::tlib::server
