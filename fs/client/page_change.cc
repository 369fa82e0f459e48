// SPDX-License-Identifier: Apache-2.0
#include "fs/client/page_change.h"

#include "base/log.h"

namespace termfs::fs::client {

namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

Status VolumeClient::PageChange::Begin(uint64_t offset, uint64_t length) { return Prepare(offset, length, nullptr); }

Status VolumeClient::PageChange::BeginWrite(uint64_t offset, std::span<const std::byte>& data, bool append) {
  return append ? Prepare(file_->cache->known_size(), StoreMerge::kToEnd, &data) : Prepare(offset, data.size(), &data);
}

Status VolumeClient::PageChange::Prepare(uint64_t offset, uint64_t length, std::span<const std::byte>* data) {
  if (client_.kernel_cache_ == nullptr) {
    return Status::Ok();
  }
  offset_ = RoundDownToPage(offset);
  length_ = length == StoreMerge::kToEnd ? length : length + (offset - offset_);
  StoreMerge& stores = file_->cache->stores();
  const StoreMerge::Pages pages = StoreMerge::PagesOf(offset_, length_);
  const bool may_be_stored_to = client_.MayBeMapped(file_);
  if (may_be_stored_to && stores.CountRead(pages) > kMostBases) {
    const std::vector<uint64_t> forgotten = stores.Forget(pages);
    if (!Drop()) {
      stores.Remember(forgotten);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<uint64_t> unknown,
                   change_.Begin(stores, pages, std::chrono::steady_clock::now() + kPatience));
  if (unknown.empty()) {
    return Status::Ok();
  }
  // A handle that may map is opened before the kernel drops all pages and maps the file; so what is found here is as
  // old as it seems, or nothing is stored to it.
  if (may_be_stored_to) {
    if (data != nullptr) {
      aside_.assign(data->begin(), data->end());
      *data = aside_;
    }
    for (const uint64_t page : unknown) {
      RETURN_IF_ERROR(ReadBase(page));
    }
  }
  change_.Prepared();
  return Status::Ok();
}

Status VolumeClient::PageChange::ReadBase(uint64_t page) {
  ASSIGN_OR_RETURN(const auto bytes, client_.ReadOwn(lane_, file_, page << kPageBits, kPageSize));
  change_.SetBase(page, bytes);
  return Status::Ok();
}

bool VolumeClient::PageChange::Drop() {
  // Another thread serves meanwhile: the pages may be locked by reads that are still to be received.
  ServerWait* const wait = lane_.wait();
  if (wait != nullptr) {
    wait->Begin();
  }
  const bool dropped =
      client_.kernel_cache_->InvalidateInode(file_->ino, offset_, length_ == StoreMerge::kToEnd ? 0 : length_);
  if (wait != nullptr) {
    wait->End();
  }
  return dropped;
}

VolumeClient::PageChange::~PageChange() {
  if (change_.MayBeStale()) {
    change_.End(Drop());
  }
}

}  // namespace termfs::fs::client
