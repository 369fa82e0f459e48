// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

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
    Status status = device->Examine();
    if (address && (!status.ok() || device->link() != roce::LinkLayer::kEthernet || !device->Find(*address).ok())) {
      continue;
    }
    if (!status.ok()) {
      return status;
    }
    return device;
  }
  return Status::Error(ENODEV, (address ? "no RDMA device has the address " : "there is no RDMA device ") + wanted +
                                   "; there " + (names.empty() ? "are none" : "is " + names));
}

Status Device::Examine() {
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(context(), &attributes); error != 0) {
    return Status::Errno(error, "ask the RDMA device " + name() + " for what it can do");
  }
  max_reads_ = static_cast<uint32_t>(std::clamp(attributes.max_qp_rd_atom, 1, kMostReads));
  max_asked_reads_ = static_cast<uint32_t>(std::clamp(attributes.max_qp_init_rd_atom, 1, kMostReads));
  max_completions_ = static_cast<uint32_t>(std::max(attributes.max_cqe, 1));
  link_ = roce::LinkLayer::kInfiniBand;
  for (uint32_t number = 1; number <= attributes.phys_port_cnt; number++) {
    ASSIGN_OR_RETURN(const ibv_port_attr port, AskPort(number));
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
      link_ = roce::LinkLayer::kEthernet;
    }
  }
  return Status::Ok();
}

Result<ibv_port_attr> Device::AskPort(uint32_t port) const {
  ibv_port_attr attributes{};
  if (const int error = ibv_query_port(context(), static_cast<uint8_t>(port), &attributes); error != 0) {
    return Status::Errno(error, "ask for port " + std::to_string(port) + " of " + name());
  }
  return attributes;
}

// Those for RoCE v2; on InfiniBand the first one of each port.
Result<std::vector<ibv_gid_entry>> Device::Addresses() const {
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = ibv_query_gid_table(context(), entries.data(), entries.size(), 0);
  if (count < 0) {
    return Status::Errno(static_cast<int>(-count), "ask " + name() + " for its addresses");
  }
  entries.resize(static_cast<size_t>(count));
  std::erase_if(entries, [&](const ibv_gid_entry& entry) {
    return link_ == roce::LinkLayer::kEthernet ? entry.gid_type != IBV_GID_TYPE_ROCE_V2
                                               : entry.gid_type != IBV_GID_TYPE_IB || entry.gid_index != 0;
  });
  return entries;
}

Result<PortAddress> Device::Use(const ibv_gid_entry& entry) const {
  ASSIGN_OR_RETURN(const ibv_port_attr port, AskPort(entry.port_num));
  if (port.state != IBV_PORT_ACTIVE) {
    return Status::Error(ENETDOWN, "port " + std::to_string(entry.port_num) + " of " + name() + " is down" +
                                       (port.state == IBV_PORT_INIT ? " (does a subnet manager run?)" : ""));
  }
  PortAddress found{.port = static_cast<uint8_t>(entry.port_num),
                    .index = static_cast<uint8_t>(entry.gid_index),
                    .lid = link_ == roce::LinkLayer::kInfiniBand ? port.lid : uint16_t{0},
                    .mtu = 128U << static_cast<uint32_t>(port.active_mtu)};
  std::memcpy(found.gid.data(), entry.gid.raw, found.gid.size());
  return found;
}

Status Device::CheckPorts() const {
  ASSIGN_OR_RETURN(const std::vector<ibv_gid_entry> entries, Addresses());
  Status status =
      Status::Error(EADDRNOTAVAIL, "use " + name() +
                                       (link_ == roce::LinkLayer::kEthernet
                                            ? ": it has no address for RoCE v2 (has its interface an IP address?)"
                                            : ": none of its ports has an address"));
  for (const ibv_gid_entry& entry : entries) {
    status = Use(entry).status();
    if (status.ok()) {
      break;
    }
  }
  return status;
}

Result<PortAddress> Device::Find(const Gid& address) const {
  ASSIGN_OR_RETURN(const std::vector<ibv_gid_entry> entries, Addresses());
  Status status = Status::Error(EADDRNOTAVAIL, "use " + name() + ": it does not have the address " + ToString(address));
  for (const ibv_gid_entry& entry : entries) {
    if (link_ == roce::LinkLayer::kEthernet && std::memcmp(entry.gid.raw, address.data(), address.size()) != 0) {
      continue;
    }
    Result<PortAddress> found = Use(entry);
    if (found.ok()) {
      return found;
    }
    status = found.status();
  }
  return status;
}

}  // namespace termfs::driver::verbs
