// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/udp_port.h"

#include <linux/filter.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "driver/big_endian.h"

namespace termfs::driver::softnic {
namespace {

constexpr size_t kIpv4HeaderBytes = 20;
constexpr size_t kUdpHeaderBytes = 8;
constexpr size_t kMessagesAtOnce = 64;
constexpr size_t kLargestIpv4 = 6 << 10;   // a packet of the largest MTU, headers included
constexpr size_t kLargestIpv6 = 64 << 10;  // many of them, put together
constexpr size_t kIpv6AtOnce = 16;
constexpr size_t kReceiveBytes = std::max(kMessagesAtOnce * kLargestIpv4, kIpv6AtOnce* kLargestIpv6);
constexpr size_t kMostSegments = 64;  // of one send
constexpr size_t kMostSegmentBytes = 60000;
constexpr int kSocketBytes = 16 << 20;
constexpr int kPatienceMs = 2;  // for room in the socket

// As much as is allowed.
void SetBuffers(int socket) {
  const int bytes = kSocketBytes;
  for (const auto& [forced, plain] : {std::pair(SO_RCVBUFFORCE, SO_RCVBUF), std::pair(SO_SNDBUFFORCE, SO_SNDBUF)}) {
    if (setsockopt(socket, SOL_SOCKET, forced, &bytes, sizeof(bytes)) != 0) {
      setsockopt(socket, SOL_SOCKET, plain, &bytes, sizeof(bytes));
    }
  }
}

Status SetOption(int socket, int level, int name, int value, const char* what) {
  return setsockopt(socket, level, name, &value, sizeof(value)) == 0 ? Status::Ok() : ErrnoStatus(what);
}

// Accepts IPv4 datagrams without options to UDP port `port`.
Status FilterPort(int socket, uint16_t port) {
  std::array<sock_filter, 6> program = {{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 3),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kIpv4HeaderBytes + 2),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0x40000),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0
             ? Status::Ok()
             : ErrnoStatus("filter what a raw socket receives");
}

Status DropAll(int socket) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog filter{.len = 1, .filter = &nothing};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0
             ? Status::Ok()
             : ErrnoStatus("filter what a socket receives");
}

// Message `index` of the system call that sends the batch.
msghdr& PrepareMessage(const Flow& flow, UdpPort::Batch& batch, size_t index, std::span<const std::byte> bytes) {
  batch.vectors[index] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  mmsghdr& message = batch.messages[index];
  message = {};
  message.msg_hdr.msg_name = const_cast<sockaddr*>(flow.destination().get());
  message.msg_hdr.msg_namelen = flow.destination().length;
  message.msg_hdr.msg_iov = &batch.vectors[index];
  message.msg_hdr.msg_iovlen = 1;
  return message.msg_hdr;
}

}  // namespace

struct UdpPort::ReceiveBuffers {
  // The kernel changes them with every call.
  void Prepare(size_t messages, size_t bytes_each) {
    for (size_t i = 0; i < messages; i++) {
      vectors[i] = {bytes.get() + i * bytes_each, bytes_each};
      msghdr& header = headers[i].msg_hdr;
      header = {};
      header.msg_name = &from[i];
      header.msg_namelen = sizeof(from[i]);
      header.msg_iov = &vectors[i];
      header.msg_iovlen = 1;
      header.msg_control = control[i].data();
      header.msg_controllen = control[i].size();
    }
  }

  const std::unique_ptr<std::byte[]> bytes = std::make_unique_for_overwrite<std::byte[]>(kReceiveBytes);
  std::array<iovec, kMessagesAtOnce> vectors{};
  std::array<mmsghdr, kMessagesAtOnce> headers{};
  std::array<sockaddr_storage, kMessagesAtOnce> from{};
  struct alignas(cmsghdr) Control : std::array<char, CMSG_SPACE(sizeof(int))> {};
  std::array<Control, kMessagesAtOnce> control{};
};

UdpPort::UdpPort(const Gid& local, NetworkCounters& counters, FaultInjection* faults)
    : local_(local), counters_(counters), faults_(faults), sends_runs_(!IsIpv4(local)) {}

UdpPort::~UdpPort() = default;

UdpPort::ReceiveBuffers& UdpPort::BuffersOfThisThread() {
  thread_local const auto buffers = std::make_unique<ReceiveBuffers>();
  return *buffers;
}

Result<std::unique_ptr<UdpPort>> UdpPort::Open(const Gid& local, uint32_t interface, Use use, NetworkCounters& counters,
                                               FaultInjection* faults) {
  std::unique_ptr<UdpPort> port(new UdpPort(local, counters, faults));
  const bool ipv4 = IsIpv4(local);
  port->sending_ = UniqueFd(socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  if (!port->sending_.valid()) {
    return ErrnoStatus("create a UDP socket");
  }
  SetBuffers(port->sending_.get());
  RETURN_IF_ERROR(ipv4 ? port->OpenIpv4(interface, use) : port->OpenIpv6(interface, use));
  return port;
}

Status UdpPort::Bind(uint32_t interface, Use use) {
  SocketAddress address(local_, roce::kUdpPort, interface);
  if (use == Use::kShared && bind(sending_.get(), address.get(), address.length) == 0) {
    number_ = roce::kUdpPort;
    return Status::Ok();
  }
  const bool taken = use == Use::kShared && errno == EADDRINUSE;
  address = SocketAddress(local_, 0, interface);
  if ((use == Use::kShared && !taken) || bind(sending_.get(), address.get(), address.length) != 0) {
    return ErrnoStatus("bind a UDP socket to " + ToString(local_));
  }
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(sending_.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return ErrnoStatus("ask for the port of a UDP socket");
  }
  number_ = PortOf(bound.storage);
  if (taken) {
    LOG_INFO("UDP port {} of {} is taken: RoCE packets are received on port {}, which only termfs peers know",
             roce::kUdpPort, ToString(local_), number_);
  }
  return Status::Ok();
}

Status UdpPort::OpenIpv4(uint32_t interface, Use use) {
  RETURN_IF_ERROR(SetOption(sending_.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "forbid fragments"));
  if (use == Use::kOwn) {
    return Bind(interface, use);
  }
  RETURN_IF_ERROR(DropAll(sending_.get()));
  RETURN_IF_ERROR(Bind(interface, use));
  raw_ = UniqueFd(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  if (!raw_.valid()) {
    return ErrnoStatus("create a raw socket for RoCE over IPv4 (it needs CAP_NET_RAW; RoCE over IPv6 does not)");
  }
  RETURN_IF_ERROR(FilterPort(raw_.get(), number_));
  SetBuffers(raw_.get());
  const SocketAddress address(local_, 0, interface);
  return bind(raw_.get(), address.get(), address.length) == 0 ? Status::Ok() : ErrnoStatus("bind a raw socket");
}

Status UdpPort::OpenIpv6(uint32_t interface, Use use) {
  RETURN_IF_ERROR(SetOption(sending_.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, "forbid fragments"));
  RETURN_IF_ERROR(SetOption(sending_.get(), IPPROTO_UDP, UDP_GRO, 1, "receive datagrams put together"));
  // RNICs, and Soft-RoCE, leave UDP's own checksum out: the invariant CRC covers more.
  RETURN_IF_ERROR(SetOption(sending_.get(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "receive datagrams without checksums"));
  return Bind(interface, use);
}

Result<uint32_t> UdpPort::PathMtu(const NetworkPath& path) {
  const bool ipv4 = IsIpv4(path.remote);
  UniqueFd probe(socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress to(path.remote, roce::kUdpPort, path.interface);
  int mtu = 0;
  socklen_t length = sizeof(mtu);
  if (!probe.valid() || connect(probe.get(), to.get(), to.length) != 0 ||
      getsockopt(probe.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &length) != 0) {
    return ErrnoStatus("find the MTU towards " + ToString(path.remote));
  }
  return static_cast<uint32_t>(mtu);
}

// ---------------------------------------------------------------------------------------------------------------
// Receiving.

bool UdpPort::Receive(ReceiveBuffers& buffers, const Take& take) {
  const bool ipv4 = IsIpv4(local_);
  const size_t most = ipv4 ? kMessagesAtOnce : kIpv6AtOnce;
  buffers.Prepare(most, ipv4 ? kLargestIpv4 : kLargestIpv6);
  const int got = recvmmsg(fd(), buffers.headers.data(), static_cast<unsigned>(most), MSG_DONTWAIT, nullptr);
  for (int i = 0; i < got; i++) {
    const mmsghdr& message = buffers.headers[static_cast<size_t>(i)];
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(message.msg_hdr.msg_iov->iov_base),
                                           message.msg_len);
    if (raw_.valid()) {
      TakeRaw(bytes, take);
      continue;
    }
    size_t segment = bytes.size();
    for (cmsghdr* control = CMSG_FIRSTHDR(&message.msg_hdr); control != nullptr;
         control = CMSG_NXTHDR(const_cast<msghdr*>(&message.msg_hdr), control)) {
      if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
        int size = 0;
        std::memcpy(&size, CMSG_DATA(control), sizeof(size));
        segment = static_cast<size_t>(size);
      }
    }
    TakeDatagrams(bytes, segment, buffers.from[static_cast<size_t>(i)], take);
  }
  return got == static_cast<int>(most);
}

void UdpPort::TakeRaw(std::span<const std::byte> datagram, const Take& take) {
  Count(counters_.packets_received);
  constexpr size_t kHeaders = kIpv4HeaderBytes + kUdpHeaderBytes;
  if (datagram.size() < kHeaders + roce::kLeastPacketBytes + roce::kCrcBytes) {
    Count(counters_.malformed);
    return;
  }
  const auto ip = datagram.first<kIpv4HeaderBytes>();
  const auto udp = datagram.subspan<kIpv4HeaderBytes, kUdpHeaderBytes>();
  const auto transport = datagram.subspan(kHeaders, datagram.size() - kHeaders - roce::kCrcBytes);
  const auto crc = datagram.last<roce::kCrcBytes>();
  if (!std::equal(crc.begin(), crc.end(), roce::InvariantCrcOf4(ip, udp, transport).begin())) {
    Count(counters_.wrong_crc);
    return;
  }
  PacketSource from;
  from.address[10] = from.address[11] = std::byte{0xff};
  std::copy_n(ip.begin() + 12, 4, from.address.begin() + 12);
  from.port = BigEndianReader(udp.data()).Get16();
  take(transport, from);
}

void UdpPort::TakeDatagrams(std::span<const std::byte> datagrams, size_t segment, const sockaddr_storage& from,
                            const Take& take) {
  const PacketSource source{.address = GidOf(from), .port = PortOf(from)};
  const Flow flow(source.address, source.port, local_, number_);
  while (!datagrams.empty()) {
    const auto datagram = datagrams.first(std::min(segment == 0 ? datagrams.size() : segment, datagrams.size()));
    datagrams = datagrams.subspan(datagram.size());
    Count(counters_.packets_received);
    if (datagram.size() < roce::kLeastPacketBytes + roce::kCrcBytes) {
      Count(counters_.malformed);
      continue;
    }
    const auto transport = datagram.first(datagram.size() - roce::kCrcBytes);
    const auto crc = datagram.last<roce::kCrcBytes>();
    if (!std::equal(crc.begin(), crc.end(), flow.CrcOf(transport).begin())) {
      Count(counters_.wrong_crc);
      continue;
    }
    take(transport, source);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Sending.

void UdpPort::Send(const Flow& flow, Batch& batch) {
  Count(counters_.packets_sent, batch.count);
  if (faults_ != nullptr) {
    for (size_t i = 0; i < batch.count; i++) {
      faults_->Pass(batch.packets[i], [this, to = flow.destination()](std::span<const std::byte> packet) {
        [[maybe_unused]] const ssize_t sent =
            sendto(sending_.get(), packet.data(), packet.size(), MSG_DONTWAIT, to.get(), to.length);
      });
    }
  } else if (sends_runs_.load(std::memory_order_relaxed)) {
    SendRuns(flow, batch);
  } else {
    SendOneByOne(flow, batch);
  }
}

bool UdpPort::SendMessages(std::span<mmsghdr> messages) {
  while (!messages.empty()) {
    const int sent = sendmmsg(sending_.get(), messages.data(), static_cast<unsigned>(messages.size()), MSG_DONTWAIT);
    if (sent > 0) {
      messages = messages.subspan(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EIO && messages.front().msg_hdr.msg_control != nullptr) {
      return false;
    }
    pollfd waiting{sending_.get(), POLLOUT, 0};
    if (errno == EINTR || ((errno == EAGAIN || errno == ENOBUFS) && poll(&waiting, 1, kPatienceMs) > 0)) {
      continue;
    }
    Count(counters_.unsent);
    messages = messages.subspan(1);
  }
  return true;
}

void UdpPort::SendOneByOne(const Flow& flow, Batch& batch) {
  for (size_t i = 0; i < batch.count; i++) {
    PrepareMessage(flow, batch, i, batch.packets[i]);
  }
  SendMessages(std::span(batch.messages).first(batch.count));
}

// Runs of datagrams of one size, of which the last may be shorter, lie one behind the other and go as one.
void UdpPort::SendRuns(const Flow& flow, Batch& batch) {
  size_t count = 0;
  for (size_t i = 0; i < batch.count;) {
    const size_t segment = batch.packets[i].size();
    size_t bytes = segment;
    size_t end = i + 1;
    while (end < batch.count && end - i < kMostSegments && batch.packets[end - 1].size() == segment &&
           batch.packets[end].size() <= segment && bytes + batch.packets[end].size() <= kMostSegmentBytes) {
      bytes += batch.packets[end].size();
      end++;
    }
    msghdr& header = PrepareMessage(flow, batch, count, {batch.packets[i].data(), bytes});
    if (end - i > 1) {
      header.msg_control = batch.controls[count].data();
      header.msg_controllen = batch.controls[count].size();
      cmsghdr* const control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      const auto size = static_cast<uint16_t>(segment);
      std::memcpy(CMSG_DATA(control), &size, sizeof(size));
    }
    count++;
    i = end;
  }
  if (!SendMessages(std::span(batch.messages).first(count))) {
    sends_runs_.store(false, std::memory_order_relaxed);
    SendOneByOne(flow, batch);  // some for the second time
  }
}

std::unique_ptr<UdpPort::Batch> UdpPort::TakeBatch() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Batch> batch = std::move(free_.back());
      free_.pop_back();
      return batch;
    }
  }
  return std::make_unique_for_overwrite<Batch>();
}

void UdpPort::GiveBack(std::unique_ptr<Batch> batch) {
  constexpr size_t kKept = 16;
  MutexLock lock(mutex_);
  if (free_.size() < kKept) {
    free_.push_back(std::move(batch));
  }
}

}  // namespace termfs::driver::softnic
