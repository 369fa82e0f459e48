// SPDX-License-Identifier: Apache-2.0
//
// SiwEnd: one end of an iWARP connection that the Linux kernel's siw carries, by librdmacm and libibverbs: a queue pair
// and one memory region. For tests: what does not work is a failure of the test.
//
// Thread-safety: one thread.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "driver/nic.h"
#include "driver/softnic/network/flow.h"

namespace termfs::driver {

class SiwEnd {
 public:
  static constexpr size_t kBytes = 2 << 20;
  static constexpr std::chrono::seconds kPatience{30};

  // `address` of a siw device. It queues `reads` READ requests.
  SiwEnd(const Gid& address, uint8_t reads) : address_(address), reads_(reads), memory_(kBytes) {
    TERMFS_CHECK(channel_ != nullptr);
    id_.reset(NewId());
  }

  // Returns the port.
  uint16_t Listen() {
    listener_ = std::move(id_);
    softnic::SocketAddress at(address_, 0, 0);
    EXPECT_EQ(rdma_bind_addr(listener_.get(), In(at)), 0) << strerror(errno);
    EXPECT_EQ(rdma_listen(listener_.get(), 1), 0) << strerror(errno);
    return ntohs(rdma_get_src_port(listener_.get()));
  }
  // Returns the private data of the peer's request.
  std::vector<std::byte> Accept() {
    std::vector<std::byte> private_data;
    const bool requested = Await(RDMA_CM_EVENT_CONNECT_REQUEST, [&](const rdma_cm_event& event) {
      id_.reset(event.id);
      const rdma_conn_param& param = event.param.conn;
      const auto* const data = static_cast<const std::byte*>(param.private_data);
      private_data.assign(data, data + param.private_data_len);
    });
    if (requested) {
      CreateQueuePair();
      rdma_conn_param param = Parameters();
      EXPECT_EQ(rdma_accept(id_.get(), &param), 0) << strerror(errno);
    }
    return private_data;
  }
  bool AwaitEstablished() {
    return Await(RDMA_CM_EVENT_ESTABLISHED, [](const rdma_cm_event&) {});
  }
  bool AwaitDisconnected() {
    return Await(RDMA_CM_EVENT_DISCONNECTED, [](const rdma_cm_event&) {});
  }
  bool Dial(const Gid& to, uint16_t port, std::span<const std::byte> private_data) {
    const auto nothing = [](const rdma_cm_event&) {};
    softnic::SocketAddress from(address_, 0, 0);
    softnic::SocketAddress peer(to, port, 0);
    constexpr int kMilliseconds = 10'000;
    EXPECT_EQ(rdma_resolve_addr(id_.get(), In(from), In(peer), kMilliseconds), 0) << strerror(errno);
    EXPECT_TRUE(Await(RDMA_CM_EVENT_ADDR_RESOLVED, nothing));
    EXPECT_EQ(rdma_resolve_route(id_.get(), kMilliseconds), 0) << strerror(errno);
    EXPECT_TRUE(Await(RDMA_CM_EVENT_ROUTE_RESOLVED, nothing));
    CreateQueuePair();
    rdma_conn_param param = Parameters();
    param.private_data = private_data.data();
    param.private_data_len = static_cast<uint8_t>(private_data.size());
    EXPECT_EQ(rdma_connect(id_.get(), &param), 0) << strerror(errno);
    return AwaitEstablished();
  }
  void Disconnect() { EXPECT_EQ(rdma_disconnect(id_.get()), 0) << strerror(errno); }

  std::byte* data() { return memory_.data(); }
  RKey rkey() const { return {region_->rkey}; }
  // Of a byte of its memory, as a peer names it.
  uint64_t OffsetOf(size_t at) const { return reinterpret_cast<uint64_t>(memory_.data() + at); }

  void PostReceive(size_t at, uint32_t length) {
    ibv_sge local = Local(at, length);
    ibv_recv_wr request{};
    request.sg_list = &local;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(id_->qp, &request, &bad), 0);
  }
  void Post(ibv_wr_opcode opcode, size_t at, uint32_t length, RKey rkey = {}, uint64_t remote_offset = 0) {
    ibv_sge local = Local(at, length);
    ibv_send_wr request{};
    request.sg_list = &local;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = remote_offset;
    request.wr.rdma.rkey = rkey.value;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(id_->qp, &request, &bad), 0);
  }
  std::optional<ibv_wc> WaitSent() { return Wait(*sends_); }
  std::optional<ibv_wc> WaitReceived() { return Wait(*receives_); }
  ibv_wc_status SentStatus() { return StatusOf(WaitSent()); }
  ibv_wc_status ReceivedStatus() { return StatusOf(WaitReceived()); }

 private:
  struct Release {
    void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
    void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
    void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
    void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
    void operator()(rdma_cm_id* id) const {
      if (id->qp != nullptr) {
        rdma_destroy_qp(id);
      }
      rdma_destroy_id(id);
    }
  };
  template <typename T>
  using Owned = std::unique_ptr<T, Release>;

  static sockaddr* In(softnic::SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
  rdma_cm_id* NewId() {
    rdma_cm_id* id = nullptr;
    TERMFS_CHECK(rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) == 0);
    return id;
  }
  rdma_conn_param Parameters() const {
    rdma_conn_param param{};
    param.responder_resources = reads_;
    param.initiator_depth = reads_;
    return param;
  }
  void CreateQueuePair() {
    constexpr int kEntries = 256;
    constexpr uint32_t kRequests = 128;
    domain_.reset(ibv_alloc_pd(id_->verbs));
    sends_.reset(ibv_create_cq(id_->verbs, kEntries, nullptr, nullptr, 0));
    receives_.reset(ibv_create_cq(id_->verbs, kEntries, nullptr, nullptr, 0));
    region_.reset(ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
    TERMFS_CHECK(domain_ != nullptr && sends_ != nullptr && receives_ != nullptr && region_ != nullptr);
    ibv_qp_init_attr options{};
    options.send_cq = sends_.get();
    options.recv_cq = receives_.get();
    options.cap = {
        .max_send_wr = kRequests, .max_recv_wr = kRequests, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    options.qp_type = IBV_QPT_RC;
    TERMFS_CHECK(rdma_create_qp(id_.get(), domain_.get(), &options) == 0);
  }
  ibv_sge Local(size_t at, uint32_t length) { return {.addr = OffsetOf(at), .length = length, .lkey = region_->lkey}; }

  // The next event, which has to be this one.
  template <typename Use>
  bool Await(rdma_cm_event_type type, Use use) {
    pollfd waiting{channel_->fd, POLLIN, 0};
    rdma_cm_event* event = nullptr;
    if (poll(&waiting, 1, std::chrono::milliseconds(kPatience).count()) != 1 ||
        rdma_get_cm_event(channel_.get(), &event) != 0) {
      ADD_FAILURE() << "no " << rdma_event_str(type);
      return false;
    }
    const bool right = event->event == type;
    EXPECT_TRUE(right) << rdma_event_str(event->event) << ", status " << event->status << ", instead of "
                       << rdma_event_str(type);
    if (right) {
      use(*event);
    }
    rdma_ack_cm_event(event);
    return right;
  }
  static std::optional<ibv_wc> Wait(ibv_cq& queue) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      ibv_wc completion{};
      if (ibv_poll_cq(&queue, 1, &completion) == 1) {
        return completion;
      }
      usleep(200);
    }
    ADD_FAILURE() << "siw: no completion";
    return std::nullopt;
  }
  static ibv_wc_status StatusOf(const std::optional<ibv_wc>& completion) {
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
  }

  const Gid address_;
  const uint8_t reads_;
  std::vector<std::byte> memory_;
  Owned<rdma_event_channel> channel_{rdma_create_event_channel()};
  Owned<rdma_cm_id> listener_;
  Owned<ibv_pd> domain_;  // after the next, which use it, as are the queues
  Owned<ibv_cq> sends_;
  Owned<ibv_cq> receives_;
  Owned<ibv_mr> region_;
  Owned<rdma_cm_id> id_;
};

}  // namespace termfs::driver
