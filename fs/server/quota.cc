// SPDX-License-Identifier: Apache-2.0
//
// Quotas of directory trees. They are kept and enforced in metadata; here they are set, and shown.
#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr size_t kMaxFailure = 512;  // bytes of a text, in the value of an attribute

}  // namespace

// Whoever asks again sets the same again. The mount has looked at its caller, this looks at the mount.
Status FileService::SetQuota(const Request& request, uint64_t ino, std::string_view value) {
  if (!request.session.may_name_owners) {
    return Status::Error(EPERM, "only root sets quotas");
  }
  const auto change = Decode<wire::QuotaChange>(std::as_bytes(std::span(value)));
  if (!change.ok()) {
    return Status::Error(EINVAL, "not a change of a quota; termfs quota makes one");
  }
  const auto bytes = change->sets_bytes ? std::optional(change->bytes) : std::nullopt;
  const auto inodes = change->sets_inodes ? std::optional(change->inodes) : std::nullopt;
  // Of space, which a quota may not have; not before all is counted that it is for.
  auto none = std::make_shared<const NoPromises>(no_promises_);
  RETURN_IF_ERROR(AwaitAllFirst(request));
  ASSIGN_OR_RETURN(const bool counts, request.Blocking([&] { return names_.BeginQuota(ino, bytes, inodes); }));
  if (counts) {  // which may take longer than a call may
    reclaimer_.AddCount(ino, std::move(none));
  }
  return Status::Ok();
}

Result<std::string> FileService::GetQuota(const Request& request, uint64_t ino) {
  ASSIGN_OR_RETURN(const auto quota, request.Blocking([&] { return names_.FindQuota(ino); }));
  if (!quota.has_value()) {
    return Status::Error(ENODATA, "no quota");
  }
  const std::vector<std::byte> bytes = Encode<wire::Quota>(Describe(*quota));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<Bytes> FileService::DescribeQuotas() {
  ASSIGN_OR_RETURN(const auto trees, names_.ListQuotas());
  wire::QuotasT reply;
  for (const metadata::QuotaTree& tree : trees) {
    auto quota = std::make_unique<wire::QuotaT>(Describe(tree.quota));
    quota->path = tree.path;
    reply.quotas.push_back(std::move(quota));
  }
  return Encode<wire::Quotas>(reply);
}

wire::QuotaT FileService::Describe(const metadata::Quota& quota) {
  wire::QuotaT body;
  body.root = quota.project;
  body.bytes = quota.limits.bytes;
  body.inodes = quota.limits.inodes;
  const metadata::Quota used = WithoutReplaced(quota);
  body.used_bytes = used.pages << kPageBits;
  body.used_inodes = used.inodes;
  body.counting = quota.counting;
  body.failure = quota.counting ? reclaimer_.CountFailure(quota.project).substr(0, kMaxFailure) : "";
  return body;
}

metadata::Quota FileService::WithoutReplaced(metadata::Quota quota) const {
  const ReplacedInodes::Use replaced = replaced_.UseOf(quota.project);
  quota.pages -= std::min(quota.pages, replaced.pages);
  quota.inodes -= std::min(quota.inodes, replaced.inodes);
  return quota;
}

FileSystemStatus FileService::WithinQuota(const Request& request, uint64_t ino, const FileSystemStatus& space) {
  FileSystemStatus left = space;
  const auto quota = request.Blocking([&] { return names_.FindQuota(ino); });
  if (!quota.ok() || !quota->has_value()) {
    return left;
  }
  const metadata::QuotaLimits& limits = (*quota)->limits;
  const metadata::Quota used = WithoutReplaced(**quota);
  const uint64_t used_bytes = used.pages << kPageBits;
  const uint64_t used_inodes = used.inodes;
  if (limits.bytes != 0) {
    left.capacity_bytes = std::min(space.capacity_bytes, std::max(limits.bytes, used_bytes));
    left.free_bytes = std::min(space.free_bytes, limits.bytes - std::min(limits.bytes, used_bytes));
  }
  if (limits.inodes != 0) {
    left.inodes_used = used_inodes;
    left.inodes_free = std::min(space.inodes_free, limits.inodes - std::min(limits.inodes, used_inodes));
  }
  return left;
}

}  // namespace termfs::fs::server
