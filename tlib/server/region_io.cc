// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/region_io.h"

#include <algorithm>

#include "base/check.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib::server {
namespace {

// Sends what the region finds to the client, and notes which pages had frames.
class ClientSink final : public PieceSink {
 public:
  ClientSink(CallImpl& call, uint32_t base, uint64_t offset, ReadBitmap* present)
      : call_(call), base_(base), offset_(offset), present_(present) {}

  Status Take(std::span<const Piece> pieces) override {
    if (present_ != nullptr) {
      for (const Piece& piece : pieces) {
        Note(piece);
      }
    }
    return call_.Push(base_, pieces);
  }

 private:
  void Note(const Piece& piece) {
    if (!piece.from_frame) {
      return;
    }
    const uint64_t first = (offset_ + piece.at) >> kPageBits;
    const uint64_t last = (offset_ + piece.at + piece.length - 1) >> kPageBits;
    for (uint64_t page = first; page <= last; page++) {
      const uint64_t i = page - (offset_ >> kPageBits);
      (*present_)[i / 64] |= uint64_t{1} << (i % 64);
    }
  }

  CallImpl& call_;
  const uint32_t base_;
  const uint64_t offset_;
  ReadBitmap* const present_;
};

// tlib makes every Call that a Service sees.
CallImpl& ImplOf(Call& call) {
  auto* const impl = dynamic_cast<CallImpl*>(&call);
  TERMFS_CHECK(impl != nullptr);
  return *impl;
}

}  // namespace

Status RegionIoImpl::WriteFrom(Call& call, RegionOffset offset, uint32_t in_offset, uint32_t length,
                               const std::function<Status()>& check) {
  CallImpl& impl = ImplOf(call);
  if (const auto here = impl.inline_in(); !here.empty()) {
    if (in_offset > here.size() || length > here.size() - in_offset) {
      return Status::Error(ERANGE, "more bytes than the client offered");
    }
    return region_.Write(offset, here.subspan(in_offset, length), check);
  }
  const BulkPool::Buffer buffer(impl.bulk());
  for (uint32_t done = 0; done < length;) {
    // Parts end at page boundaries, so that no page is written in two steps.
    const uint64_t at = offset.value + done;
    const uint64_t end = RoundDownToPage(at + impl.most_pulled());
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(length - done, end - at));
    ASSIGN_OR_RETURN(const auto pulled, impl.Pull(in_offset + done, part, buffer));
    RETURN_IF_ERROR(region_.Write({at}, pulled, check));
    done += part;
  }
  return Status::Ok();
}

Status RegionIoImpl::ReadTo(Call& call, RegionOffset offset, uint32_t out_offset, uint32_t length) {
  if (length == 0) {
    return Status::Ok();
  }
  ClientSink sink(ImplOf(call), out_offset, offset.value, nullptr);
  return region_.ReadPages(offset, length, {}, sink);
}

Status RegionIoImpl::ReadMissing(CallImpl& call, const DecodedRead& read, ReadBitmap& present) {
  ClientSink sink(call, 0, read.offset, &present);
  return region_.ReadPages({read.offset}, read.length, {read.missing.data(), read.words}, sink);
}

}  // namespace termfs::tlib::server
