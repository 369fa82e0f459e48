// SPDX-License-Identifier: Apache-2.0
#include "fs/client/quota.h"

#include <algorithm>

#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

QuotaStatus FromWire(const wire::QuotaT& quota) {
  return {.root = quota.root,
          .bytes = quota.bytes,
          .inodes = quota.inodes,
          .used_bytes = quota.used_bytes,
          .used_inodes = quota.used_inodes,
          .counting = quota.counting,
          .failure = quota.failure,
          .path = quota.path};
}

}  // namespace

std::vector<std::byte> QuotaValue(std::optional<uint64_t> bytes, std::optional<uint64_t> inodes) {
  wire::QuotaChangeT change;
  change.sets_bytes = bytes.has_value();
  change.bytes = bytes.value_or(0);
  change.sets_inodes = inodes.has_value();
  change.inodes = inodes.value_or(0);
  return Encode<wire::QuotaChange>(change);
}

Result<QuotaStatus> ParseQuota(std::span<const std::byte> value) {
  ASSIGN_OR_RETURN(const auto quota, Decode<wire::Quota>(value));
  return FromWire(quota);
}

Result<std::vector<QuotaStatus>> ParseQuotas(std::span<const std::byte> list) {
  ASSIGN_OR_RETURN(const auto decoded, Decode<wire::Quotas>(list));
  std::vector<QuotaStatus> quotas;
  for (const auto& quota : decoded.quotas) {
    quotas.push_back(FromWire(*quota));
  }
  std::sort(quotas.begin(), quotas.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return quotas;
}

}  // namespace termfs::fs::client
