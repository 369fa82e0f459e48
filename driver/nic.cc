// SPDX-License-Identifier: Apache-2.0
#include "driver/nic.h"

#include <utility>

namespace termfs::driver {
namespace {

constexpr std::array<std::pair<RegionKind, std::string_view>, 7> kKindNames{{
    {RegionKind::kPin, "pin"},
    {RegionKind::kOdp, "odp"},
    {RegionKind::kRpc, "rpc"},
    {RegionKind::kRpcBuffer, "rpc_buffer"},
    {RegionKind::kRpcDirect, "rpc_direct"},
    {RegionKind::kRpcTiering, "rpc_tiering"},
    {RegionKind::kTerm, "term"},
}};

}  // namespace

std::string_view ToString(RegionKind kind) {
  for (const auto& [value, name] : kKindNames) {
    if (value == kind) {
      return name;
    }
  }
  return "unknown";
}

Result<RegionKind> ParseRegionKind(std::string_view name) {
  for (const auto& [value, known] : kKindNames) {
    if (known == name) {
      return value;
    }
  }
  std::string choices;
  for (const auto& [value, known] : kKindNames) {
    choices += choices.empty() ? "" : ", ";
    choices += known;
  }
  return Status::Error(EINVAL,
                       "memory-region kind \"" + std::string(name) + "\" is not known; choose one of " + choices);
}

std::string IwarpTransport(bool secure) { return secure ? "softnic (iWARP over TLS)" : "softnic (iWARP over TCP)"; }

std::string_view ToString(Wire wire) { return wire == Wire::kRoce ? "roce" : "iwarp"; }

Result<Wire> ParseWire(std::string_view name) {
  for (const Wire wire : {Wire::kRoce, Wire::kIwarp}) {
    if (ToString(wire) == name) {
      return wire;
    }
  }
  return Status::Error(EINVAL, "wire \"" + std::string(name) + "\" is not known; choose one of roce, iwarp");
}

std::string_view ToString(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess:
      return "IBV_WC_SUCCESS";
    case WcStatus::kLocLenErr:
      return "IBV_WC_LOC_LEN_ERR";
    case WcStatus::kLocProtErr:
      return "IBV_WC_LOC_PROT_ERR";
    case WcStatus::kWrFlushErr:
      return "IBV_WC_WR_FLUSH_ERR";
    case WcStatus::kRemInvReqErr:
      return "IBV_WC_REM_INV_REQ_ERR";
    case WcStatus::kRemAccessErr:
      return "IBV_WC_REM_ACCESS_ERR";
    case WcStatus::kRemOpErr:
      return "IBV_WC_REM_OP_ERR";
    case WcStatus::kRetryExcErr:
      return "IBV_WC_RETRY_EXC_ERR";
    case WcStatus::kRnrRetryExcErr:
      return "IBV_WC_RNR_RETRY_EXC_ERR";
    case WcStatus::kFatalErr:
      return "IBV_WC_FATAL_ERR";
  }
  return "unknown";
}

// Not in the header: a compiler that sees it guesses that calls end up here.
bool QueuePair::ReadNow(std::byte*, uint32_t, uint64_t, RKey) { return false; }

RegionKeys TermRegion::keys(bool) const {
  return {.way = AllowsOneSidedRead(kind()) ? ReadWay::kTranslated : ReadWay::kRpcOnly,
          .region = rkey(),
          .bitmap = bitmap_rkey()};
}

void TermRegion::Revoke(FrameIndex, uint32_t) {}
void TermRegion::Restore(FrameIndex, uint32_t) {}

Status CompletionQueue::Resize(uint32_t) { return Status::Error(ENOTSUP, "change the size of a completion queue"); }

Result<std::unique_ptr<SharedReceiveQueue>> ProtectionDomain::CreateSharedReceiveQueue(
    const SharedReceiveQueueOptions&) {
  return Status::Error(ENOTSUP, "create a shared receive queue");
}

std::string Nic::RegionTransport(RegionKind, bool network) const { return transport(network); }

Result<UniqueFd> TermRegion::FramesFd() const { return Status::Error(ENOTSUP, "map the frames once more"); }

}  // namespace termfs::driver
