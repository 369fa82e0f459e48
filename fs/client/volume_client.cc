// SPDX-License-Identifier: Apache-2.0
#include "fs/client/volume_client.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

using tlib::client::CallRequest;

namespace {

constexpr std::chrono::seconds kFarewell{1};  // with a server that does not answer any more
constexpr size_t kExtraBuffer = 64 << 10;  // so that an attribute's value fits beside nothing else

MountOptions Checked(MountOptions options) {
  options.max_io_bytes =
      std::clamp<uint32_t>(static_cast<uint32_t>(RoundDownToPage(options.max_io_bytes)), kPageSize, tlib::kMaxTransfer);
  return options;
}

}  // namespace

bool GivenUp(const Status& status) { return status.code() == ETIMEDOUT || status.code() == EINTR; }

VolumeClient::VolumeClient(const MountOptions& options, KernelCache* cache)
    : options_(Checked(options)),
      kernel_cache_(cache),
      reads_(metrics_.counter("fs_reads_total")),
      read_bytes_(metrics_.counter("fs_read_bytes_total")),
      server_reads_(metrics_.counter("fs_server_reads_total")),
      writes_(metrics_.counter("fs_writes_total")),
      write_bytes_(metrics_.counter("fs_write_bytes_total")),
      metadata_(metrics_.counter("fs_metadata_total")),
      revocations_(metrics_.counter("fs_revocations_total")),
      kernel_recalls_(metrics_.counter("fs_recalls_total")),
      read_time_(metrics_.histogram("fs_read")),
      write_time_(metrics_.histogram("fs_write")) {}

Result<std::unique_ptr<FileSystem>> VolumeClient::Create(const Connector& connect, const MountOptions& options,
                                                         KernelCache* cache) {
  std::unique_ptr<VolumeClient> client(new VolumeClient(options, cache));
  ASSIGN_OR_RETURN(client->session_, connect(client.get()));
  if (cache != nullptr) {
    ASSIGN_OR_RETURN(auto pages, client->session_->OpenChannel({.buffer_bytes = kPageSize}));
    ASSIGN_OR_RETURN(auto names, client->session_->OpenChannel({.buffer_bytes = kPageSize}));
    {
      MutexLock lock(client->invalidator_mutex_);
      client->pages_ = std::make_unique<Invalidator>(std::move(pages));
      client->names_ = std::make_unique<Invalidator>(std::move(names));
    }
    if (options.grants) {
      ASSIGN_OR_RETURN(client->grants_channel_, client->session_->OpenChannel({.buffer_bytes = kPageSize}));
      RETURN_IF_ERROR(client->WantGrants(true));
    }
  }
  return std::unique_ptr<FileSystem>(std::move(client));
}

Status VolumeClient::WantGrants(bool wanted) {
  wire::GrantsT body;
  body.wanted = wanted;
  return grants_channel_->Call({.opcode = kFsGrants, .body = Encode<wire::Grants>(body), .in = {}, .out = {},
                                .timeout = wanted ? options_.session.call_timeout : kFarewell})
      .status();
}

VolumeClient::~VolumeClient() {
  if (grants_channel_ != nullptr) {
    // There is no mount any more. Otherwise others would wait until what it was granted ends.
    const Status said = WantGrants(false);
    if (!said.ok() && said.code() != ENOTCONN) {
      LOG_WARNING("giving back what was granted: {}", said.ToDebugString());
    }
    grants_channel_.reset();
  }
  std::unique_ptr<Invalidator> pages;
  std::unique_ptr<Invalidator> names;
  if (session_ != nullptr) {
    MutexLock lock(invalidator_mutex_);  // the callback thread is there until the session has ended
    pages = std::move(pages_);
    names = std::move(names_);
  }
  pages.reset();
  names.reset();
  session_.reset();
}

Result<std::unique_ptr<Lane>> VolumeClient::OpenLane() {
  ASSIGN_OR_RETURN(auto interruption, Interruption::Create());
  ASSIGN_OR_RETURN(auto channel, session_->OpenChannel({.buffer_bytes = options_.max_io_bytes + kExtraBuffer,
                                                        .interruption = interruption.get()}));
  return std::unique_ptr<Lane>(std::make_unique<VolumeLane>(std::move(interruption), std::move(channel), recalls_));
}

void VolumeLane::BeginRequest() {
  recalls_before_ = recalls_.load(std::memory_order_seq_cst);
  sent_ = Clock::System().Now();
  Granted(0, 0);
}

Keep VolumeLane::keep() const {
  if ((entry_ms_ | attributes_ms_) == 0 || recalls_.load(std::memory_order_seq_cst) != recalls_before_) {
    return {};
  }
  const double passed = std::chrono::duration<double>(Clock::System().Now() - sent_).count();
  const auto rest = [passed](uint32_t granted_ms) { return std::max(0.0, granted_ms / 1000.0 - passed); };
  return {.entry = rest(entry_ms_), .attributes = rest(attributes_ms_)};
}

Result<std::vector<std::byte>> VolumeClient::HandleCallback(uint16_t opcode, std::span<const std::byte> body) {
  switch (opcode) {
    case kFsRevoke: {
      ASSIGN_OR_RETURN(const RevokeBody revoke, DecodeFixed<RevokeBody>(body));
      revocations_.Add();
      if (const auto cache = inodes_.Find(revoke.ino)) {
        cache->Revoke(revoke.version);
      }
      return std::vector<std::byte>{};
    }
    case kFsInvalidate: {
      ASSIGN_OR_RETURN(const InvalidateBody invalidate, DecodeFixed<InvalidateBody>(body));
      MutexLock lock(invalidator_mutex_);
      if (pages_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      pages_->Push(invalidate.ticket, [this, invalidate] {
        kernel_cache_->InvalidateInode(invalidate.ino, invalidate.offset, invalidate.length);
      });
      return std::vector<std::byte>{};
    }
    case kFsRecall: {
      ASSIGN_OR_RETURN(wire::RecallT recall, Decode<wire::Recall>(body));
      recalls_.fetch_add(1, std::memory_order_seq_cst);
      kernel_recalls_.Add();
      MutexLock lock(invalidator_mutex_);
      if (names_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      names_->Push(recall.ticket, [this, recalled = std::make_shared<wire::RecallT>(std::move(recall))] {
        for (const uint64_t ino : recalled->inodes) {
          kernel_cache_->InvalidateAttributes(ino);
        }
        for (const auto& entry : recalled->entries) {
          kernel_cache_->InvalidateEntry(entry->parent, entry->name);
        }
      });
      return std::vector<std::byte>{};
    }
    default:
      return Status::Error(ENOSYS, "unknown callback");
  }
}

void VolumeClient::SessionLost(const Status& why) {
  LOG_WARNING("the server is lost: {}", why.ToString());
  recalls_.fetch_add(1, std::memory_order_seq_cst);
  if (kernel_cache_ != nullptr) {
    kernel_cache_->ServerLost();
  }
}

Result<VolumeClient::CallReply> VolumeClient::Call(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in, std::span<std::byte> out) {
  metadata_.Add();
  if (has_deferred_.load(std::memory_order_relaxed)) [[unlikely]] {
    PostDeferred(lane);
  }
  static_cast<VolumeLane&>(lane).BeginRequest();
  return ChannelOf(lane).Call({.opcode = opcode, .body = body, .in = in, .out = out});
}

Result<Attributes> VolumeClient::CallForAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in) {
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, opcode, body, in));
  ASSIGN_OR_RETURN(const auto decoded, Decode<wire::AttributesReply>(reply.body));
  if (decoded.attributes == nullptr && opcode != kFsLookup) {
    return Status::Error(EBADMSG, "a reply without attributes");
  }
  static_cast<VolumeLane&>(lane).Granted(decoded.entry_ms, decoded.attributes_ms);
  if (decoded.attributes == nullptr) {
    return Status::Error(ENOENT, "no such name");
  }
  return FromWire(*decoded.attributes);
}

Result<std::span<std::byte>> VolumeClient::ToBuffer(Lane& lane, std::span<const std::byte> value) {
  const std::span<std::byte> buffer = ChannelOf(lane).buffer();
  if (value.size() > buffer.size()) {
    return Status::Error(E2BIG, "too long a value");
  }
  if (!value.empty()) {
    std::memmove(buffer.data(), value.data(), value.size());
  }
  return buffer.first(value.size());
}

void VolumeClient::AfterFailure(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache) {
  if (cache == nullptr) {
    return;
  }
  if (status.code() == ENOTCONN) {
    cache->BeginDoubt();  // for good: no answer will come
  } else if (GivenUp(status)) {
    cache->BeginDoubt();
    ChannelOf(lane).AfterGivenUp([cache](const auto&) { cache->EndDoubt(); });
  }
}

void VolumeClient::Abandon(const std::string& why) { session_->Abandon(Status::Error(ENOTCONN, why)); }

Result<FileSystemStatus> VolumeClient::StatFs(Lane& lane) {
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsStat, Encode<wire::Inode>({})));
  ASSIGN_OR_RETURN(const auto space, Decode<wire::VolumeSpace>(reply.body));
  return FileSystemStatus{.capacity_bytes = space.capacity,
                          .free_bytes = space.free,
                          .inodes_used = space.inodes_used,
                          .inodes_free = space.inodes_free};
}

std::vector<MetricValue> VolumeClient::Metrics() const {
  std::vector<MetricValue> values = session_->Metrics();
  for (MetricValue& value : metrics_.Snapshot()) {
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace termfs::fs::client
