// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/read_window.h"

namespace termfs::tlib::server {

TieringIo::ReadWindow::ReadWindow(const Parts& parts, const Bounce& zeros)
    : p_(parts), zeros_(zeros), may_admit_(parts.frames.limit() > 0) {}

uint32_t TieringIo::ReadWindow::CountAbsent(std::span<const Part> parts) const {
  uint32_t count = 0;
  for (const Part& part : parts) {
    const PageEntry entry = p_.states.Peek(part.page);
    count += !entry.present() && entry.on_ssd() ? 1 : 0;
  }
  return count;
}

Status TieringIo::ReadWindow::Run(std::span<const Part> parts, std::span<const uint32_t> at, PieceSink& sink) {
  bounce_ = p_.bounce.Take(CountAbsent(parts));
  if (!AcquireAll(parts, at)) {  // pages were evicted in between
    bounce_ = Bounce();          // before waiting for more
    bounce_ = p_.bounce.Take(static_cast<uint32_t>(parts.size()));
    TERMFS_CHECK(AcquireAll(parts, at));
  }
  if (!runs_.empty()) {
    p_.device.Run(runs_.ios());
    RETURN_IF_ERROR(runs_.FirstError());
  }
  RETURN_IF_ERROR(sink.Take(pieces_));
  Admit();
  return Status::Ok();
}

bool TieringIo::ReadWindow::AcquireAll(std::span<const Part> parts, std::span<const uint32_t> at) {
  for (size_t i = 0; i < parts.size(); i++) {
    const Part& part = parts[i];
    const PageEntry entry = p_.states.AcquireShared(part.page);
    held_.Push(part.page);
    if (entry.present()) {
      pieces_.Push({.data = p_.frames.data(entry.frame()) + part.begin,
                    .length = static_cast<uint32_t>(part.length()),
                    .at = at[i],
                    .lkey = p_.term.frames_lkey(),
                    .from_frame = true});
      p_.policy.Access(part.page, 1, AccessKind::kHit);
      p_.metrics.frame_read_pages.Add();
    } else if (!entry.on_ssd()) {
      zero_.Push(part.page);
      pieces_.Push({.data = zeros_.page(0),
                    .length = static_cast<uint32_t>(part.length()),
                    .at = at[i],
                    .lkey = zeros_.lkey(),
                    .from_frame = false});
      p_.policy.Access(part.page, 1, AccessKind::kMiss);
    } else if (runs_.pages() == bounce_.count()) {
      ReleaseAll();
      return false;
    } else {
      AddFromDevice(part, at[i]);
    }
  }
  return true;
}

void TieringIo::ReadWindow::AddFromDevice(const Part& part, uint32_t at) {
  const uint32_t index = runs_.pages();
  std::byte* const buffer = bounce_.page(index);
  read_.Push(part.page);
  if (p_.device.alignment() == 1 && !may_admit_) {  // into a frame goes a whole page
    runs_.Add(part.page, buffer, part.begin, part.end);
  } else {
    runs_.Add(part.page, buffer);
  }
  pieces_.Push({.data = buffer + part.begin,
                .length = static_cast<uint32_t>(part.length()),
                .at = at,
                .lkey = bounce_.lkey(),
                .from_frame = false});
  p_.policy.Access(part.page, 1, AccessKind::kMiss);
}

// The bytes are here already, under the holds: a page that is worth a frame gets it for the price of a copy.
void TieringIo::ReadWindow::Admit() {
  if (!may_admit_) {
    return;
  }
  for (uint32_t i = 0; i < read_.size(); i++) {
    p_.pager.Admit(read_[i], bounce_.page(i));
  }
  for (const PageIndex page : zero_) {
    p_.pager.Admit(page, zeros_.page(0));
  }
}

void TieringIo::ReadWindow::ReleaseAll() {
  for (const PageIndex page : held_) {
    p_.states.ReleaseShared(page);
  }
  held_.Clear();
  read_.Clear();
  zero_.Clear();
  pieces_.Clear();
  runs_.Clear();
}

}  // namespace termfs::tlib::server
