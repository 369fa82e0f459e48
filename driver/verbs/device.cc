// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "driver/roce/endpoint.h"

namespace termfs::driver::verbs {
namespace {

constexpr size_t kMostGids = 256;
constexpr int kMostReads = 16;

std::optional<Gid> ParseAddress(const std::string& text) {
  const std::string mapped = text.find(':') == std::string::npos ? "::ffff:" + text : text;
  Gid gid;
  return inet_pton(AF_INET6, mapped.c_str(), gid.data()) == 1 ? std::optional(gid) : std::nullopt;
}

}  // namespace

Result<std::shared_ptr<Device>> Device::Open(const std::string& wanted) {
  int count = 0;
  const std::unique_ptr<ibv_device*, Ender<ibv_free_device_list>> list(ibv_get_device_list(&count));
  if (list == nullptr) {
    return errno == ENOSYS ? Status::Error(ENODEV, "use " + wanted + ": this kernel has no RDMA (is ib_uverbs loaded?)")
                           : ErrnoStatus("list the RDMA devices");
  }
  const std::optional<Gid> address = ParseAddress(wanted);
  std::string names;
  for (ibv_device* const candidate : std::span(list.get(), static_cast<size_t>(count))) {
    const std::string name = ibv_get_device_name(candidate);
    names += (names.empty() ? "" : ", ") + name;
    if (!address && name != wanted) {
      continue;
    }
    ContextPtr context(ibv_open_device(candidate));
    if (context == nullptr) {
      return ErrnoStatus("open the RDMA device " + name);
    }
    std::shared_ptr<Device> device(new Device(std::move(context)));
    if (address && !device->Find(*address).ok()) {
      continue;
    }
    ibv_device_attr attributes{};
    if (const int error = ibv_query_device(device->context(), &attributes); error != 0) {
      return Status::Error(error, "ask the RDMA device " + name + " for what it can do");
    }
    device->max_reads_ = static_cast<uint32_t>(std::clamp(attributes.max_qp_rd_atom, 1, kMostReads));
    device->max_asked_reads_ = static_cast<uint32_t>(std::clamp(attributes.max_qp_init_rd_atom, 1, kMostReads));
    device->max_completions_ = static_cast<uint32_t>(std::max(attributes.max_cqe, 1));
    return device;
  }
  return Status::Error(ENODEV, (address ? "no RDMA device has the address " : "there is no RDMA device ") + wanted +
                                   "; there " + (names.empty() ? "are none" : "is " + names));
}

// Those for RoCE v2.
Result<std::vector<ibv_gid_entry>> Device::Addresses() const {
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = ibv_query_gid_table(context(), entries.data(), entries.size(), 0);
  if (count < 0) {
    return Status::Error(static_cast<int>(-count), "ask " + name() + " for its addresses");
  }
  entries.resize(static_cast<size_t>(count));
  std::erase_if(entries, [](const ibv_gid_entry& entry) { return entry.gid_type != IBV_GID_TYPE_ROCE_V2; });
  return entries;
}

Status Device::CheckPorts() const {
  ASSIGN_OR_RETURN(const std::vector<ibv_gid_entry> entries, Addresses());
  Status status = Status::Error(
      EADDRNOTAVAIL, "use " + name() + ": it has no address for RoCE v2 (has its interface an " + "IP address?)");
  for (const ibv_gid_entry& entry : entries) {
    ibv_port_attr port{};
    if (ibv_query_port(context(), static_cast<uint8_t>(entry.port_num), &port) == 0 && port.state == IBV_PORT_ACTIVE) {
      return Status::Ok();
    }
    status = Status::Error(ENETDOWN, "port " + std::to_string(entry.port_num) + " of " + name() + " is down");
  }
  return status;
}

Result<GidPlace> Device::Find(const Gid& address) const {
  ASSIGN_OR_RETURN(const std::vector<ibv_gid_entry> entries, Addresses());
  for (const ibv_gid_entry& entry : entries) {
    if (std::memcmp(entry.gid.raw, address.data(), address.size()) != 0) {
      continue;
    }
    ibv_port_attr port{};
    if (const int error = ibv_query_port(context(), static_cast<uint8_t>(entry.port_num), &port); error != 0) {
      return Status::Error(error, "ask for port " + std::to_string(entry.port_num) + " of " + name());
    }
    if (port.state != IBV_PORT_ACTIVE) {
      return Status::Error(ENETDOWN, "port " + std::to_string(entry.port_num) + " of " + name() + " is down");
    }
    return GidPlace{.port = static_cast<uint8_t>(entry.port_num),
                    .index = static_cast<uint8_t>(entry.gid_index),
                    .mtu = 128U << static_cast<uint32_t>(port.active_mtu),
                    .active_mtu = port.active_mtu};
  }
  return Status::Error(EADDRNOTAVAIL, "use " + name() + ": it does not have the address " + ToString(address));
}

}  // namespace termfs::driver::verbs
