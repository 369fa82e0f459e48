// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/session_table.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMaxQueuePairs = 600;  // a mount has at most 256 threads, each with two

// By host, or by user; never 0.
uint64_t OwnerOf(const SessionInfo& info) {
  const std::string who =
      info.from.empty() ? "user " + std::to_string(info.uid) : info.from.substr(0, info.from.rfind(':'));
  return std::hash<std::string>{}(who) | 1;
}

Status NoSession() { return Status::Error(ENOTCONN, "no such session"); }

}  // namespace

SessionInfo SessionTable::Open(SessionInfo info, const std::optional<driver::NetworkPath>& path) {
  MutexLock lock(mutex_);
  info.id = {next_id_++};
  sessions_[info.id] = {.info = info,
                        .path = path,
                        .since = steady_clock::now(),
                        .connections = {},
                        .callbacks = {},
                        .traffic = std::make_shared<SessionTraffic>(OwnerOf(info)),
                        .gone = {}};
  return info;
}

std::function<void()> SessionTable::TakeGone(Session& session) {
  if (!session.closing || session.opening != 0 || !session.connections.empty()) {
    return nullptr;
  }
  return std::exchange(session.gone, nullptr);
}

void SessionTable::OpenQueuePair(SessionId id, QueuePairRequest request, Opened opened) {
  Status refused;
  std::optional<driver::NetworkPath> path;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.closing) {
      refused = NoSession();
    } else if (request.for_callbacks && found->second.callbacks != nullptr) {
      refused = Status::Error(EALREADY, "a session has one callback queue pair");
    } else if (found->second.connections.size() + found->second.opening >= kMaxQueuePairs) {
      refused = Status::Error(EUSERS, "a session has at most " + std::to_string(kMaxQueuePairs) + " queue pairs");
    } else {
      found->second.opening++;
      path = found->second.path;
    }
  }
  if (!refused.ok()) {
    opened(std::move(refused));
    return;
  }
  WorkerUnit& unit = workers_.Near(request.cpu);
  // std::function wants copyable captures; an endpoint has descriptors.
  auto shared = std::make_shared<QueuePairRequest>(std::move(request));
  unit.worker->Post([this, id, &unit, shared, path, opened = std::move(opened)] {
    auto endpoint = OpenOnWorker(id, unit, std::move(*shared), path);
    OnOpeningEnded(id);
    opened(std::move(endpoint));
  });
}

std::shared_ptr<SessionTraffic> SessionTable::TrafficOf(SessionId id) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.traffic;
}

Result<driver::Endpoint> SessionTable::OpenOnWorker(SessionId id, WorkerUnit& unit, QueuePairRequest request,
                                                    const std::optional<driver::NetworkPath>& path) {
  Attached attached{.unit = &unit, .connection = {}, .data = {}};
  std::shared_ptr<CallbackPeer> callbacks;
  std::shared_ptr<Connection::Handler> handler;
  if (request.for_callbacks) {
    handler = callbacks = std::make_shared<CallbackPeer>(*unit.worker, epoch_);
  } else {
    std::shared_ptr<SessionTraffic> traffic = TrafficOf(id);
    if (traffic == nullptr) {
      return NoSession();
    }
    handler = attached.data = std::make_shared<DataHandler>(dispatcher_, id, std::move(traffic), unit.port->bulk());
  }
  ASSIGN_OR_RETURN(NetworkPort::Opened opened,
                   unit.port->Open(std::move(request.remote), path, std::move(request.seal), std::move(handler)));
  attached.connection = opened.connection;
  if (callbacks != nullptr) {
    callbacks->Attach(opened.connection);
  }
  opened.connection->set_on_gone([this, id, raw = opened.connection.get()] { OnConnectionGone(id, raw); });
  if (path.has_value()) {
    opened.connection->set_on_unreachable([this, id] { on_unreachable_(id); });
  }
  if (Status status = Attach(id, std::move(attached), callbacks); !status.ok()) {
    opened.connection->Close(status);
    return status;
  }
  return std::move(opened.endpoint);
}

Status SessionTable::Attach(SessionId id, Attached attached, const std::shared_ptr<CallbackPeer>& callbacks) {
  MutexLock lock(mutex_);
  Session& session = sessions_.at(id);  // `opening` keeps it
  if (callbacks != nullptr && session.callbacks == nullptr) {
    session.callbacks = callbacks;
  } else if (callbacks != nullptr) {
    session.connections.push_back(std::move(attached));
    return Status::Error(EALREADY, "a session has one callback queue pair");
  }
  session.connections.push_back(std::move(attached));
  return session.closing ? NoSession() : Status::Ok();
}

void SessionTable::OnOpeningEnded(SessionId id) {
  std::function<void()> gone;
  {
    MutexLock lock(mutex_);
    Session& session = sessions_.at(id);
    session.opening--;
    gone = TakeGone(session);
  }
  if (gone) {
    gone();
  }
}

void SessionTable::OnConnectionGone(SessionId id, const Connection* connection) {
  std::function<void()> gone;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
      return;
    }
    std::erase_if(found->second.connections,
                  [&](const Attached& attached) { return attached.connection.get() == connection; });
    gone = TakeGone(found->second);
  }
  if (gone) {
    gone();
  }
}

Status SessionTable::StartHeat(SessionId id, const HeatExport& exported) {
  if (exported.bytes < sizeof(HeatHeader) || exported.bytes > HeatReader::kMaxBytes) {
    return Status::Error(EINVAL, "access counts of an impossible size");
  }
  Attached first;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.closing) {
      return NoSession();
    }
    if (std::exchange(found->second.heat, true)) {
      return Status::Error(EALREADY, "a session exports its access counts once");
    }
    for (const Attached& attached : found->second.connections) {
      if (attached.data != nullptr) {
        first = attached;
        break;
      }
    }
  }
  if (first.connection == nullptr) {
    return Status::Error(ENOTCONN, "no data queue pair to read the access counts over");
  }
  first.unit->worker->Post([this, first, exported] {
    if (first.connection->open()) {
      auto reader = std::make_shared<HeatReader>(region_, heat_reads_, *first.connection, first.unit->port->bulk(),
                                                 exported, sample_period_, first.data->traffic());
      first.data->set_heat(reader);
      reader->Ring();  // what was published before it could ring
    }
  });
  return Status::Ok();
}

bool SessionTable::Close(SessionId id, const Status& why, std::function<void()> gone) {
  std::vector<Attached> connections;
  std::function<void()> gone_now;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || std::exchange(found->second.closing, true)) {
      return false;
    }
    found->second.gone = std::move(gone);
    found->second.callbacks.reset();
    connections = found->second.connections;
    gone_now = TakeGone(found->second);
  }
  for (const Attached& attached : connections) {
    attached.unit->worker->Post([unit = attached.unit, connection = attached.connection, why] {
      // What it had sent before: some of it nobody waits for. Others are heard as well, but not for ever.
      unit->port->Disarm();  // so that it looks at all of them
      for (uint32_t polls = 0; polls < kChannelCredits && unit->port->Poll(); ++polls) {
      }
      connection->Close(why);
    });
  }
  if (gone_now) {
    gone_now();
  }
  return true;
}

void SessionTable::Remove(SessionId id) {
  MutexLock lock(mutex_);
  sessions_.erase(id);
}

Result<std::vector<std::byte>> SessionTable::Call(SessionId id, uint16_t opcode, std::span<const std::byte> body,
                                                  std::chrono::milliseconds timeout) {
  std::shared_ptr<CallbackPeer> callbacks;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.callbacks == nullptr) {
      return NoSession();
    }
    callbacks = found->second.callbacks;
  }
  return callbacks->Call(opcode, body, timeout);
}

std::vector<SessionId> SessionTable::WithCallbacks(std::optional<driver::ReadWay> way) const {
  MutexLock lock(mutex_);
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) {
    if (session.callbacks != nullptr && session.info.way == way.value_or(session.info.way)) {
      ids.push_back(id);
    }
  }
  return ids;
}

std::vector<SessionInfo> SessionTable::List() const {
  MutexLock lock(mutex_);
  std::vector<SessionInfo> list;
  for (const auto& [id, session] : sessions_) {
    SessionInfo info = session.info;
    info.queue_pairs = static_cast<uint32_t>(session.connections.size());
    info.connected_for = steady_clock::now() - session.since;
    info.reads = session.traffic->reads.load(std::memory_order_relaxed);
    info.read_pages = session.traffic->read_pages.load(std::memory_order_relaxed);
    info.hit_pages = session.traffic->hit_pages.load(std::memory_order_relaxed);
    list.push_back(std::move(info));
  }
  return list;
}

}  // namespace termfs::tlib::server
