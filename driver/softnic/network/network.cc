// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/network.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"

namespace termfs::driver::softnic {
namespace {

constexpr std::chrono::milliseconds kTick{2};
constexpr int kQuietTicks = 25;     // then the timer stops
constexpr int kBatchesInTurn = 32;  // before the RNIC thread's other descriptors have theirs
constexpr size_t kMostConnections = 1 << 20;

}  // namespace

Result<std::shared_ptr<Network>> Network::Create(const std::shared_ptr<RnicThread>& rnic,
                                                 const std::optional<FaultOptions>& faults, int socket_bytes,
                                                 uint32_t stream_threads) {
  std::shared_ptr<Network> network(new Network(rnic, socket_bytes, stream_threads));
  if (faults) {
    network->faults_ = std::make_unique<FaultInjection>(*faults);
    LOG_WARNING("the network is made to lose {}, double {}, reorder {} and corrupt {} of the packets sent (seed {})",
                faults->loss, faults->duplication, faults->reordering, faults->corruption, faults->seed);
  }
  return network;
}

Status Network::Start() {
  if (own_epoll_.valid()) {
    return Status::Ok();
  }
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) {
    return ErrnoStatus("create a timer");
  }
  own_epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!own_epoll_.valid()) {
    return ErrnoStatus("create an epoll instance");
  }
  rnic_->Watch(timer_.get(), [this] { OnTick(); });
  rnic_->Watch(own_epoll_.get(), [this] { OnOwnPortsReadable(); });
  return Status::Ok();
}

Network::~Network() {
  {
    MutexLock lock(mutex_);
    if (!own_epoll_.valid()) {
      return;
    }
    rnic_->Unwatch(timer_.get());
    rnic_->Unwatch(own_epoll_.get());
    for (const auto& [local, port] : ports_) {
      rnic_->Unwatch(port->fd());
    }
  }
  rnic_->Barrier();
}

Result<UdpPort*> Network::SharedPort(const Gid& local, uint32_t interface) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(Start());
  std::unique_ptr<UdpPort>& port = ports_[local];
  if (port == nullptr) {
    Result<std::unique_ptr<UdpPort>> opened =
        UdpPort::Open(local, interface, UdpPort::Use::kShared, counters_, faults_.get());
    if (!opened.ok()) {
      ports_.erase(local);
      return std::move(opened).status();
    }
    port = std::move(opened).value();
    rnic_->Watch(port->fd(), [this, raw = port.get()] { OnReadable(*raw); });
  }
  return port.get();
}

Result<std::unique_ptr<UdpPort>> Network::OpenPort(const Gid& local, uint32_t interface) {
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(Start());
  }
  return UdpPort::Open(local, interface, UdpPort::Use::kOwn, counters_, faults_.get());
}

void Network::Add(const std::shared_ptr<OwnPort>& port) {
  {
    MutexLock lock(mutex_);
    own_ports_.emplace(port->fd(), port);
  }
  KeepTime();
}

void Network::Remove(const OwnPort& port) {
  MutexLock lock(mutex_);
  own_ports_.erase(port.fd());
}

Status Network::StartTimer() {
  MutexLock lock(mutex_);
  return Start();
}

Result<uint32_t> Network::TakeNumber() {
  MutexLock lock(mutex_);
  if (numbers_.size() >= kMostConnections) {
    return Status::Error(EUSERS, "open more than " + std::to_string(kMostConnections) + " queue pairs");
  }
  uint32_t number = 0;
  do {
    RETURN_IF_ERROR(SecureRandom(&number, sizeof(number)));
    number &= roce::kSequenceMask;
  } while (number < 2 || !numbers_.insert(number).second);  // 0 and 1 are for management
  return number;
}

Status Network::Add(const std::shared_ptr<Connection>& connection) {
  ASSIGN_OR_RETURN(const uint32_t number, TakeNumber());
  MutexLock lock(mutex_);
  connection->set_number(number);
  connections_.emplace(number, connection);
  return Status::Ok();
}

void Network::Remove(const WireEnd& end) {
  streams_.Remove(end.number());
  MutexLock lock(mutex_);
  connections_.erase(end.number());
  numbers_.erase(end.number());
}

std::shared_ptr<Connection> Network::Find(uint32_t number) {
  MutexLock lock(mutex_);
  const auto found = connections_.find(number);
  return found == connections_.end() ? nullptr : found->second;
}

// ---------------------------------------------------------------------------------------------------------------
// Packets.

void Network::OnReadable(UdpPort& port) {
  for (int turn = 0; turn < kBatchesInTurn; turn++) {
    const bool got =
        port.Receive(UdpPort::BuffersOfThisThread(),
                     [this](std::span<const std::byte> bytes, const PacketSource& from) { Sort(bytes, from); });
    DeliverSorted();
    AnswerMore();
    if (!got && answering_.empty()) {
      return;
    }
  }
  if (!answering_.empty()) {  // what is readable calls again
    rnic_->Post([this, raw = &port] { OnReadable(*raw); });
  }
}

void Network::OnOwnPortsReadable() {
  std::array<epoll_event, 32> events{};
  const int ready = epoll_wait(own_epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; i++) {
    std::shared_ptr<OwnPort> port;
    {
      MutexLock lock(mutex_);
      if (const auto found = own_ports_.find(events[static_cast<size_t>(i)].data.fd); found != own_ports_.end()) {
        port = found->second;
      }
    }
    if (port != nullptr) {
      port->OnReadable();
    }
  }
}

void Network::Sort(std::span<const std::byte> bytes, const PacketSource& from) {
  const std::optional<roce::Packet> packet = roce::Decode(bytes);
  if (!packet) {
    Count(counters_.malformed);
    return;
  }
  const std::span<Arrivals> in_use(arrivals_.data(), arrived_);
  auto arrivals =
      std::find_if(in_use.begin(), in_use.end(), [&](const Arrivals& one) { return one.number == packet->queue_pair; });
  if (arrivals == in_use.end()) {
    std::shared_ptr<Connection> connection = Find(packet->queue_pair);
    if (connection == nullptr) {
      Count(counters_.no_connection);
      return;
    }
    if (arrived_ == arrivals_.size()) {
      arrivals_.emplace_back();
    }
    Arrivals& next = arrivals_[arrived_++];
    next.number = packet->queue_pair;
    next.connection = std::move(connection);
    next.packets.push_back({*packet, from});
    return;
  }
  arrivals->packets.push_back({*packet, from});
}

void Network::DeliverSorted() {
  const auto now = std::chrono::steady_clock::now();
  for (Arrivals& arrivals : std::span(arrivals_.data(), arrived_)) {
    if (arrivals.connection->Deliver(arrivals.packets, now) &&
        std::find(answering_.begin(), answering_.end(), arrivals.connection) == answering_.end()) {
      answering_.push_back(arrivals.connection);
    }
    arrivals.connection.reset();
    arrivals.packets.clear();
  }
  if (arrived_ != 0) {
    KeepTime();
  }
  arrived_ = 0;
}

void Network::AnswerMore() {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(answering_, [&](const std::shared_ptr<Connection>& one) { return !one->Answer(now); });
}

// ---------------------------------------------------------------------------------------------------------------
// Time.

void Network::StartTicking() {
  if (!ticking_.exchange(true)) {
    itimerspec setting{};
    setting.it_interval.tv_nsec = std::chrono::nanoseconds(kTick).count();
    setting.it_value = setting.it_interval;
    TERMFS_CHECK(timerfd_settime(timer_.get(), 0, &setting, nullptr) == 0);
  }
}

void Network::OnTick() {
  uint64_t ticks = 0;
  [[maybe_unused]] const ssize_t got = read(timer_.get(), &ticks, sizeof(ticks));  // EAGAIN: it was stopped
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<Connection>> due;
  bool waiting = false;
  {
    MutexLock lock(mutex_);
    for (const auto& [fd, port] : own_ports_) {
      waiting = port->OnTick() || waiting;
    }
    for (const auto& [number, connection] : connections_) {
      const auto deadline = connection->deadline();
      waiting = waiting || deadline != Connection::TimePoint::max();
      if (deadline <= now) {
        due.push_back(connection);
      }
    }
  }
  for (const auto& connection : due) {
    connection->OnTimer(now);
  }
  waiting = streams_.OnTick(now) || waiting;
  if (faults_ != nullptr) {
    faults_->Release(now);
  }
  quiet_ticks_ = waiting ? 0 : quiet_ticks_ + 1;
  if (quiet_ticks_ < kQuietTicks) {
    return;
  }
  // Who posts after this starts it again; who posted just before is seen by the tick that this one brings about.
  quiet_ticks_ = kQuietTicks / 2;
  const itimerspec off{};
  TERMFS_CHECK(timerfd_settime(timer_.get(), 0, &off, nullptr) == 0);
  ticking_.store(false);
  if (streams_.needs_ticks()) {
    StartTicking();
  }
  MutexLock lock(mutex_);
  for (const auto& [fd, port] : own_ports_) {
    if (port->needs_ticks()) {
      StartTicking();
    }
  }
  if (std::any_of(connections_.begin(), connections_.end(),
                  [](const auto& one) { return one.second->deadline() != Connection::TimePoint::max(); })) {
    StartTicking();
  }
}

}  // namespace termfs::driver::softnic
