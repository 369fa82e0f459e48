// SPDX-License-Identifier: Apache-2.0
#include "fs/server/service.h"

#include <thread>

#include "base/log.h"
#include "fs/proto/codec.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;
using tlib::server::Task;

namespace {

constexpr int kVersionBits = 40;  // of a start of the server

}  // namespace

FileService::FileService(metadata::Namespace& names, const ServiceOptions& options)
    : names_(names),
      options_(options),
      clients_(names, options.timeouts.lease + options.timeouts.drift),
      coherence_(sessions_, clients_, options.clock, options.timeouts, metrics_, options.start << kVersionBits),
      newborns_(coherence_, options.timeouts.revoke, options.timeouts.lease + options.timeouts.drift),
      replaced_(options.grace, options.max_replaced, names.superblock().capacity_pages / options.replaced_share),
      reclaimer_(
          names, inodes_, clients_, replaced_, [this](uint64_t ino) { RecallLater(ino); },
          [this] {
            clients_.Expire(
                [this](uint64_t client) {
                  DropLocks({.client = client});
                  newborns_.ClientSettled(client, 0);
                },
                [this](uint64_t session) {
                  coherence_.BeginExpel(session, "it did not say in time what it had open and locked");
                });
            coherence_.Expire();
            coherence_.grants().DropEnded();
          }),
      versions_(options.start << kVersionBits),
      locks_(options.start << kVersionBits),
      requests_(metrics_.counter("fs_requests_total")),
      reads_(metrics_.counter("fs_reads_total")),
      read_bytes_(metrics_.counter("fs_read_bytes_total")),
      writes_(metrics_.counter("fs_writes_total")),
      write_bytes_(metrics_.counter("fs_write_bytes_total")),
      copies_(metrics_.counter("fs_copies_total")),
      copied_bytes_(metrics_.counter("fs_copied_bytes_total")),
      errors_(metrics_.counter("fs_errors_total")),
      replays_(metrics_.counter("fs_replays_total")),
      metadata_time_(metrics_.histogram("fs_metadata")),
      read_time_(metrics_.histogram("fs_read")),
      write_time_(metrics_.histogram("fs_write")) {}

void FileService::Attach(tlib::server::Server& server, Administrator* administrator, uint64_t kept_since) {
  kept_since_ = kept_since;
  coherence_.Attach(server);
  administrator_.store(administrator, std::memory_order_release);
  server_.store(&server, std::memory_order_release);
  reclaimer_.Start(server);
}

FileService::Handler FileService::HandlerOf(uint16_t opcode) {
  static constexpr std::array<Handler, kFsEnd - kFsRead> kHandlers = {
      &FileService::Read,        &FileService::Write,
      &FileService::Lookup,      &FileService::GetAttributes,
      &FileService::Set,         &FileService::Make,
      &FileService::ReadLink,    &FileService::Link,
      &FileService::Unlink,      &FileService::RemoveDirectory,
      &FileService::Rename,      &FileService::ReadDirectory,
      &FileService::Open,        &FileService::Create,
      &FileService::Release,     &FileService::Sync,
      &FileService::Seek,        &FileService::Allocate,
      &FileService::SetXattr,    &FileService::GetXattr,
      &FileService::ListXattr,   &FileService::RemoveXattr,
      &FileService::Stat,        &FileService::Invalidated,
      &FileService::Reopen,      &FileService::Resumed,
      &FileService::Grants,      &FileService::Copy,
      &FileService::MakeUnnamed, &FileService::Lock,
      &FileService::TestLock,    &FileService::CancelLock,
      &FileService::Reclaim,     &FileService::CachePages,
  };
  return opcode >= kFsRead && opcode < kFsEnd ? kHandlers[opcode - kFsRead] : nullptr;
}

Result<Bytes> FileService::Handle(tlib::server::Call& call) {
  const auto begin = steady_clock::now();
  requests_.Add();
  const std::shared_ptr<Session> session = sessions_.Find(call.session().value);
  if (session == nullptr) {
    return Status::Error(ENOTCONN, "no such session");
  }
  RETURN_IF_ERROR(WaitForServer());
  const Handler handler = HandlerOf(call.opcode());
  if (handler == nullptr) {
    return Status::Error(ENOSYS, "unknown operation");
  }
  Result<Bytes> reply = Answer(handler, call, *session);
  if (!reply.ok()) {
    errors_.Add();
  }
  const auto took = static_cast<uint64_t>(Nanoseconds(steady_clock::now() - begin).count());
  FileTraffic& traffic = session->traffic;
  (call.opcode() == kFsRead    ? traffic.reads
   : call.opcode() == kFsWrite ? traffic.writes
                               : traffic.metadata)
      .fetch_add(1, std::memory_order_relaxed);
  (call.opcode() == kFsRead ? read_time_ : call.opcode() == kFsWrite ? write_time_ : metadata_time_).Record(took);
  return reply;
}

Result<Bytes> FileService::Answer(Handler handler, tlib::server::Call& call, Session& session) {
  const tlib::RequestMark mark = call.mark();
  if (mark.sequence == 0) {
    return (this->*handler)({call, session});
  }
  if (mark.slot >= metadata::kMaxSlots) {
    return Status::Error(EINVAL, "no such slot");
  }
  if (mark.sent_before && !session.returned) {
    return Status::Error(EIO, "whether this has been done is not known any more");
  }
  const metadata::Stamp stamp{.client = session.client, .slot = mark.slot, .sequence = mark.sequence};
  std::optional<metadata::Receipt> receipt;
  Request request{call, session, session.client != 0 ? &stamp : nullptr};
  if (mark.sent_before) {
    ASSIGN_OR_RETURN(receipt, request.Blocking([&] { return names_.FindReceipt(stamp); }));
    request.receipt = receipt.has_value() ? &*receipt : nullptr;
    replays_.Add(receipt.has_value() ? 1 : 0);
  }
  return (this->*handler)(request);
}

Status FileService::WaitForServer() {
  // A client may be quicker than the thread that has just started the server and is about to Attach it.
  const auto deadline = steady_clock::now() + std::chrono::seconds(5);
  while (server_.load(std::memory_order_acquire) == nullptr) {
    if (steady_clock::now() >= deadline) {
      return Status::Error(EAGAIN, "the server is starting");
    }
    Task::ParkUntil(steady_clock::now() + std::chrono::milliseconds(1));
  }
  return Status::Ok();
}

Result<Bytes> FileService::HandleAdmin(uint16_t opcode, std::span<const std::byte> body) {
  Administrator* administrator = administrator_.load(std::memory_order_acquire);
  if (administrator == nullptr) {
    return Status::Error(EAGAIN, "the server is starting");
  }
  return administrator->HandleAdmin(opcode, body);
}

Status FileService::SessionOpened(const tlib::server::SessionInfo& info) {
  ASSIGN_OR_RETURN(const Clients::Standing standing, clients_.Arrived(info));
  auto session = std::make_shared<Session>();
  session->id = info.id.value;
  session->may_name_owners = info.uid == 0 || info.uid == options_.owner_uid;
  session->client = standing == Clients::Standing::kUnknown ? 0 : info.client;
  session->returned = standing == Clients::Standing::kReturned;
  session->may_reclaim = session->returned && clients_.WasKept(info.client);
  session->may_cache =
      session->client != 0 && std::chrono::seconds(info.reconnect_seconds) >= coherence_.longest_grant();
  coherence_.SessionOpened(info.id.value, info.pid);
  sessions_.Add(std::move(session));
  return Status::Ok();
}

void FileService::SessionClosed(tlib::server::SessionId session, const tlib::server::SessionEnd& end) {
  const std::shared_ptr<Session> known = sessions_.Find(session.value);
  if (known == nullptr) {
    return;  // it was refused
  }
  coherence_.SessionClosed(session.value, known->client, known->caches.load(std::memory_order_relaxed));
  // Before its files are closed: they are kept for a client that may come back.
  // Before its client may have another one.
  newborns_.SessionClosed(session.value, known->client != 0);
  const Clients::Expected expected =
      clients_.Ended(known->client, session.value, end, [&](bool keeps) { EndLockSession(*known, keeps); });
  if (!expected.back && known->client != 0) {
    newborns_.ClientSettled(known->client, 0);
  }
  for (const InodeRef& inode : inodes_.All()) {
    bool last;
    bool unlinked;
    {
      MutexLock lock(inode->mutex);
      last = inode->CloseAll(session.value);
      unlinked = inode->unlinked;
    }
    if (last) {
      reclaimer_.AddClosed(inode->ino);
    }
    if (last && unlinked) {
      reclaimer_.AddOrphan(inode->ino);
    }
  }
  // Last: who waits for the end of the session relies on its holding nothing.
  sessions_.Remove(session.value);
  reclaimer_.Kick();
}

std::vector<MetricValue> FileService::Metrics() const {
  std::vector<MetricValue> values = metrics_.Snapshot();
  const metadata::SpaceUse use = names_.StatFs();
  values.push_back({"fs_inodes_in_memory", inodes_.size()});
  values.push_back({"fs_grants", const_cast<Coherence&>(coherence_).grants().size()});
  {
    MutexLock lock(locks_mutex_);
    values.push_back({"fs_locks", locks_.locks()});
    values.push_back({"fs_lock_waits", locks_.waits()});
  }
  values.push_back({"fs_inodes", use.inodes});
  values.push_back({"fs_replaced_inodes", replaced_.use().inodes});
  values.push_back({"fs_clients_away", clients_.away()});
  values.push_back({"fs_free_pages", use.free_pages});
  values.push_back({"fs_pending_pages", use.pending_pages});
  return values;
}

FileSystemStatus FileService::Space() const {
  constexpr uint64_t kMaxInodes = uint64_t{1} << 32;  // numbers are never used up; programs want to see some free
  const metadata::SpaceUse use = names_.StatFs();
  const ReplacedInodes::Use replaced = replaced_.use();  // which end when that is needed
  const uint64_t inodes = use.inodes - std::min(use.inodes, replaced.inodes);
  const uint64_t free = std::min(use.total_pages, use.free_pages + use.pending_pages + replaced.pages);
  return {.capacity_bytes = use.total_pages << kPageBits,
          .free_bytes = free << kPageBits,
          .inodes_used = inodes,
          .inodes_free = kMaxInodes - std::min(kMaxInodes, inodes)};
}

// What is free is counted while nothing becomes free.
Status FileService::Confine(uint64_t pages) {
  const NoPromises none(no_promises_);
  if (FirstMayCome()) {
    RETURN_IF_ERROR(server_.load(std::memory_order_acquire)->RunInCoroutine([&] {
      coherence_.AwaitEarlier();
      return newborns_.SettleAll({});
    }));
  }
  return reclaimer_.Run([&]() -> Status {
    if (!reclaimer_.settled()) {
      return Status::Error(EBUSY, "what an earlier server left in memory is not on the SSD");
    }
    return names_.Confine(pages);
  });
}

Result<Evacuation::Pass> FileService::Evacuate(const std::function<bool()>& cancelled) {
  Evacuation evacuation({.names = names_,
                         .inodes = inodes_,
                         .coherence = coherence_,
                         .reclaimer = reclaimer_,
                         .versions = versions_,
                         .server = *server_.load(std::memory_order_acquire)});
  ASSIGN_OR_RETURN(const Evacuation::Pass pass, evacuation.Run(cancelled));
  // What was freed and moved from is free when this returns, as far as nothing is in its way.
  RETURN_IF_ERROR(reclaimer_.Run([] { return Status::Ok(); }));
  return pass;
}

Result<std::string> FileService::PullString(const Request& request, size_t limit) {
  const uint32_t length = request.call.in().length;
  if (length > limit) {
    return Status::Error(E2BIG, "too long a value");
  }
  std::string value(length, '\0');
  if (length > 0) {
    RETURN_IF_ERROR(request.call.PullBulk(std::as_writable_bytes(std::span(value))));
  }
  return value;
}

void FileService::StopBackground() {
  reclaimer_.Stop();
  stopping_.store(true);
  while (background_.load() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void FileService::RecallLater(uint64_t ino) {
  SpawnBackground([this, ino] { coherence_.RecallWithoutWait(0, {ino}, {}); });
}

void FileService::SpawnBackground(std::function<void()> work) {
  background_.fetch_add(1);
  tlib::server::Server* server = server_.load(std::memory_order_acquire);
  if (stopping_.load() || server == nullptr) {
    background_.fetch_sub(1);
    return;
  }
  server->Spawn([this, work = std::move(work)] {
    work();
    background_.fetch_sub(1);
  });
}

Result<Bytes> FileService::Grants(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Grants>(request.call.body()));
  // Who is not known to a later start would hold what that does not wait for.
  const bool caches = body.wanted && request.session.may_cache &&
                      request.Blocking([&] { return clients_.NoteCaches(request.session.client); }).ok();
  request.session.caches.store(caches, std::memory_order_relaxed);
  if (!caches) {
    coherence_.grants().RemoveSession(request.session.id);
  }
  return Bytes{};
}

Result<Bytes> FileService::Invalidated(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Ticket>(request.call.body()));
  RETURN_IF_ERROR(coherence_.Acknowledge(request.session.id, body.ticket));
  return Bytes{};
}

}  // namespace termfs::fs::server
