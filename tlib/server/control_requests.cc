// SPDX-License-Identifier: Apache-2.0
//
// What clients ask on the control channel.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "tlib/rpc/messages.h"
#include "tlib/rpc/tcp_socket.h"
#include "tlib/server/control_server.h"
#include "tlib/server/descriptors.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kReplyTimeout{10};  // for large replies, on threads that may block
constexpr size_t kMaxProgramName = 128;
constexpr size_t kMaxAdminAnswer = kMaxControlMessage - 4096;  // bytes; the rest is for what is around it

wire::ErrorT ToWire(const Status& error) {
  wire::ErrorT wire;
  wire.code = error.code();
  wire.text = error.ToString();
  return wire;
}

// It goes to logs and terminals.
std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

// The replies sent here are far smaller than a socket's buffer: one that does not fit is to a client that does not
// read, and the loop waits for nobody.
template <typename Body>
void ControlServer::Reply(const PeerPtr& peer, Body body, const std::vector<UniqueFd>& fds) {
  if (peer->dropped) {
    return;
  }
  wire::ControlMessageT message;
  message.body.Set(std::move(body));
  if (Status sent = Send(*peer, message, fds, steady_clock::now()); !sent.ok()) {
    Drop(peer, sent);
  }
}

// One thread at a time: the loop's, or while the peer is busy the one that carries out its request.
Status ControlServer::Send(Peer& peer, const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds,
                           steady_clock::time_point deadline) {
  return SendFrame(peer.socket.get(), EncodeControl(message), fds, deadline, peer.tls.get());
}

void ControlServer::ReplyError(const PeerPtr& peer, const Status& error) { Reply(peer, ToWire(error)); }

void ControlServer::Refuse(const PeerPtr& peer, const Status& error) {
  LogRefusal(*peer, error);
  if (!peer->stranger()) {
    ReplyError(peer, error);
  }
  Drop(peer, error);
}

void ControlServer::Handle(const PeerPtr& peer, Frame frame) {
  wire::ControlMessageT message;
  if (Status decoded = DecodeControl(frame.bytes, message); !decoded.ok()) {
    Refuse(peer, decoded);
    return;
  }
  if (const auto* hello = message.body.AsHello(); hello != nullptr && !peer->session.has_value()) {
    HandleHello(peer, *hello);
    return;
  }
  if (!peer->session.has_value()) {
    Refuse(peer, Status::Error(EPROTO, "a client has to say Hello first, once"));
    return;
  }
  switch (message.body.type) {
    case wire::Body::OpenQueuePair:
      return HandleOpenQueuePair(peer, *message.body.AsOpenQueuePair(), std::move(frame.fds));
    case wire::Body::ExportHeat:
      return HandleExportHeat(peer, *message.body.AsExportHeat());
    case wire::Body::GetRegionInfo:
      return Reply(peer, RegionFor(*peer));
    case wire::Body::Ping:
      return HandlePing(peer, *message.body.AsPing());
    case wire::Body::Goodbye:
      return HandleGoodbye(peer);
    case wire::Body::Admin:
      return HandleAdmin(peer, std::move(*message.body.AsAdmin()));
    default:
      return Refuse(peer, Status::Error(EPROTO, "not a request"));
  }
}

// The region with the keys of this client's session.
wire::RegionInfoT ControlServer::RegionFor(const Peer& peer) const {
  wire::RegionInfoT info = options_.region_info(peer.path.has_value());
  if (peer.path.has_value() && peer.path->key_mask != 0) {
    const auto mask = [&](uint32_t& key) { key = key != 0 ? key ^ peer.path->key_mask : 0; };
    mask(info.region_rkey);
    mask(info.bitmap_rkey);
    mask(info.table_rkey);
    std::for_each(info.frame_chunks.begin(), info.frame_chunks.end(), mask);
  }
  return info;
}

void ControlServer::HandlePing(const PeerPtr& peer, const wire::PingT& ping) {
  peer->pings = true;
  if (!peer->unwanted.ok()) {
    return ReplyError(peer, peer->unwanted);
  }
  wire::DoneT done;
  if (!ping.padding.empty() && peer->remote()) {
    done.padding = FullSegment(peer->socket.get());
  }
  Reply(peer, std::move(done));
}

// iWARP, where both can. An administrator's session has no queue pairs, and speaks none.
Status ControlServer::ChooseWire(const PeerPtr& peer, const wire::HelloT& hello) const {
  if (!peer->path.has_value() || hello.wires == 0) {
    return Status::Ok();
  }
  for (const driver::Wire wire : {driver::Wire::kIwarp, driver::Wire::kRoce}) {
    if ((hello.wires & driver::BitOf(wire)) != 0 && options_.speaks(wire)) {
      peer->path->wire = wire;
      peer->path->adopts = true;
      if (options_.masks_keys) {
        RETURN_IF_ERROR(SecureRandom(&peer->path->key_mask, sizeof(peer->path->key_mask)));
      }
      const bool plain = hello.plain_data && options_.plain_data;
      peer->path->tls = plain || wire == driver::Wire::kRoce ? nullptr : options_.tls;
      peer->seals = !plain && wire == driver::Wire::kRoce;
      return Status::Ok();
    }
  }
  return Status::Error(ENOTSUP,
                       options_.speaks(driver::Wire::kIwarp)
                           ? "this server speaks iWARP only, which RDMA devices do not, nor a mount with rdma-wire=roce"
                           : "this server speaks RoCE only, by an RDMA device or its setting rdma-wire: mount without "
                             "rdma-wire=iwarp");
}

// A client on another host that connects again has given up its former session. Where the network has lost the reset
// that said so, the server need not wait until pings are overdue.
void ControlServer::EndFormerSession(const PeerPtr& peer, uint64_t client) {
  const auto former = std::find_if(peers_.begin(), peers_.end(), [&](const auto& one) {
    const PeerPtr& other = one.second;
    return other->remote() && other->session.has_value() && other->session->client == client;
  });
  if (client != 0 && peer->remote() && former != peers_.end()) {
    const PeerPtr dropped = former->second;  // which is erased
    Drop(dropped, Status::Error(ENOTCONN, "the client connects again"));
  }
  for (const PeerPtr& expelled : std::vector<PeerPtr>(unaware_)) {
    if (client != 0 && expelled->session->client == client) {
      NoteAware(expelled);
    }
  }
}

void ControlServer::HandleHello(const PeerPtr& peer, const wire::HelloT& hello) {
  if (hello.version != kControlVersion) {
    Refuse(peer, Status::Error(EPROTO, "the client speaks version " + std::to_string(hello.version) +
                                           " of the protocol, the server version " + std::to_string(kControlVersion)));
    return;
  }
  if (peer->uid != 0 && peer->uid != options_.allowed_uid) {
    Refuse(peer, Status::Error(EACCES, "only root and the volume's owner may connect"));
    return;
  }
  if (const Status room = peer->unwelcome.ok() ? CheckRoomFor(hello) : peer->unwelcome; !room.ok()) {
    Refuse(peer, room);
    return;
  }
  if (const Status chosen = ChooseWire(peer, hello); !chosen.ok()) {
    Refuse(peer, chosen);
    return;
  }
  EndFormerSession(peer, hello.client);
  const bool iwarp = peer->path.has_value() && peer->path->wire == driver::Wire::kIwarp;
  SessionInfo info{.id = {},
                   .program = Printable(hello.program.substr(0, kMaxProgramName)),
                   .transport = iwarp            ? driver::IwarpTransport(peer->path->tls != nullptr)
                                : peer->remote() ? NameOfTransport(options_.network_transport, peer->seals)
                                                 : options_.transport,
                   .from = peer->remote() ? peer->from : "",
                   .uid = peer->uid,
                   .pid = peer->pid,
                   .bitmap = hello.bitmap,
                   .way = static_cast<driver::ReadWay>(options_.region_info(peer->path.has_value()).way),
                   .client = hello.client,
                   .reconnect_seconds = hello.reconnect_seconds};
  {
    MutexLock lock(mutex_);
    live_++;
  }
  peer->session = sessions_.Open(std::move(info), peer->path);
  SetBusy(peer, true);
  pool_->Submit([this, peer, session = *peer->session] {
    const Status opened = service_.SessionOpened(session);
    loop_->Post([this, peer, opened] {
      if (!opened.ok()) {
        Refuse(peer, opened);
        SetBusy(peer, false);
        return;
      }
      wire::WelcomeT welcome;
      welcome.version = kControlVersion;
      welcome.session = peer->session->id.value;
      welcome.epoch = options_.epoch;
      welcome.transport = peer->session->transport;
      welcome.volume = options_.volume;
      welcome.wire = static_cast<uint8_t>(peer->path.has_value() ? peer->path->wire : driver::Wire::kRoce);
      welcome.secure = peer->path.has_value() && peer->path->tls != nullptr;
      welcome.sealed = peer->seals;
      welcome.region = std::make_unique<wire::RegionInfoT>(RegionFor(*peer));
      welcome.region->frame_chunks.clear();  // clients ask for them later, once they know how large segments may be
      Reply(peer, std::move(welcome));
      SetBusy(peer, false);
    });
  });
}

Result<std::unique_ptr<MessageSeal>> ControlServer::SealOf(const Peer& peer, const wire::OpenQueuePairT& request) {
  MessageSeal::Secret secret;
  if (request.seal.size() != (peer.seals ? secret.bytes.size() : 0)) {
    return Status::Error(EPROTO, "a queue pair has a secret where messages are sealed, and nowhere else");
  }
  if (!peer.seals) {
    return std::unique_ptr<MessageSeal>();
  }
  std::memcpy(secret.bytes.data(), request.seal.data(), secret.bytes.size());
  return MessageSeal::Create(secret, MessageSeal::End::kServer);
}

void ControlServer::HandleOpenQueuePair(const PeerPtr& peer, const wire::OpenQueuePairT& request,
                                        std::vector<UniqueFd> fds) {
  driver::Endpoint remote;
  const auto* data = reinterpret_cast<const std::byte*>(request.endpoint.data());
  remote.bytes.assign(data, data + request.endpoint.size());
  remote.fds = std::move(fds);
  auto seal = SealOf(*peer, request);
  if (!seal.ok()) {
    return Refuse(peer, seal.status());
  }
  SetBusy(peer, true);
  sessions_.OpenQueuePair(peer->session->id,
                          {.for_callbacks = request.purpose == wire::Purpose::Callback,
                           .cpu = request.cpu,
                           .remote = std::move(remote),
                           .seal = std::move(*seal)},
                          [this, peer](Result<driver::Endpoint> opened) {
                            auto shared = std::make_shared<Result<driver::Endpoint>>(std::move(opened));
                            loop_->Post([this, peer, shared] {
                              if (shared->ok()) {
                                const driver::Endpoint& local = shared->value();
                                wire::QueuePairOpenedT reply;
                                const auto* bytes = reinterpret_cast<const uint8_t*>(local.bytes.data());
                                reply.endpoint.assign(bytes, bytes + local.bytes.size());
                                Reply(peer, std::move(reply), local.fds);
                              } else {
                                RefuseQueuePair(peer, NameDescriptors(shared->status()));
                              }
                              SetBusy(peer, false);
                            });
                          });
}

void ControlServer::RefuseQueuePair(const PeerPtr& peer, const Status& why) {
  if (why.code() == EMFILE || why.code() == ENFILE) {
    if (const auto left_out = shortages_.Next()) {
      LOG_WARNING("a client ({}) gets no queue pair: {} ({} more times before)", peer->from, why.ToString(), *left_out);
    }
  }
  ReplyError(peer, why);
}

void ControlServer::HandleExportHeat(const PeerPtr& peer, const wire::ExportHeatT& request) {
  const Status started = sessions_.StartHeat(peer->session->id, {.rkey = {request.rkey}, .bytes = request.bytes});
  if (started.ok()) {
    Reply(peer, wire::DoneT());
  } else {
    ReplyError(peer, started);
  }
}

void ControlServer::HandleGoodbye(const PeerPtr& peer) {
  peer->end.how = SessionEnd::How::kGoodbye;
  Reply(peer, wire::DoneT());
}

void ControlServer::HandleAdmin(const PeerPtr& peer, wire::AdminT request) {
  SetBusy(peer, true);
  pool_->Submit([this, peer, request = std::move(request)] {
    const auto* body = reinterpret_cast<const std::byte*>(request.body.data());
    auto result = service_.HandleAdmin(request.opcode, {body, request.body.size()});
    if (result.ok() && result->size() > kMaxAdminAnswer) {
      result = Status::Error(EMSGSIZE, "too many entries for one answer, which holds 1 MiB");
    }
    wire::ControlMessageT message;
    if (result.ok()) {
      wire::AdminReplyT reply;
      const auto* bytes = reinterpret_cast<const uint8_t*>(result->data());
      reply.body.assign(bytes, bytes + result->size());
      message.body.Set(std::move(reply));
    } else {
      message.body.Set(ToWire(result.status()));
    }
    // May be large, so it is sent from here.
    const Status sent = Send(*peer, message, {}, steady_clock::now() + kReplyTimeout);
    loop_->Post([this, peer, sent] {
      if (!sent.ok()) {
        Drop(peer, sent);
      }
      SetBusy(peer, false);
    });
  });
}

}  // namespace termfs::tlib::server
