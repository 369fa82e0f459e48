// SPDX-License-Identifier: Apache-2.0
//
// ServerImpl ties a server together. Construction and end, top down:
//
//   domain, metrics < workers < region < blocking pool < dispatcher < sessions, patterns < control channel
#include "tlib/server/server.h"

#include <atomic>

#include "base/log.h"
#include "tlib/server/blocking_pool.h"
#include "tlib/server/control_server.h"
#include "tlib/server/cpus.h"
#include "tlib/server/dispatcher.h"
#include "tlib/server/pattern_switch.h"
#include "tlib/server/region.h"
#include "tlib/server/region_io.h"
#include "tlib/server/session_table.h"
#include "tlib/server/tell_clients.h"
#include "tlib/server/worker_set.h"

namespace termfs::tlib::server {
namespace {

class ServerImpl final : public Server {
 public:
  static Result<std::unique_ptr<Server>> Start(driver::Nic& nic, const ServerOptions& options, Service& service) {
    std::unique_ptr<ServerImpl> server(new ServerImpl);
    RETURN_IF_ERROR(server->Init(nic, options, service));
    return std::unique_ptr<Server>(std::move(server));
  }

  ~ServerImpl() override {
    if (Status stopped = Stop(); !stopped.ok()) {
      LOG_ERROR("{}", stopped.ToString());
    }
    region_.reset();  // while the workers live
    if (workers_ != nullptr) {
      workers_->Stop();  // what the service spawned has ended; before the blocking threads go, which it may need
    }
  }

  Status Stop() override {
    if (stopped_.exchange(true)) {
      return Status::Ok();
    }
    if (control_ != nullptr) {
      control_->Stop();
    }
    if (!region_started_) {
      return Status::Ok();
    }
    return workers_->Run([this] {
      if (listening_.load()) {
        return region_->Stop();
      }
      return region_->Leave();
    });
  }

  RegionIo& region() override { return *region_io_; }
  uint64_t memory() const override { return region_->memory(); }
  Status RunInCoroutine(std::function<Status()> task) override { return workers_->Run(task); }
  void Spawn(std::function<void()> task) override { workers_->Spawn(std::move(task)); }

  Result<std::vector<std::byte>> CallClient(SessionId session, uint16_t opcode, std::span<const std::byte> body,
                                            std::chrono::milliseconds timeout) override {
    return sessions_->Call(session, opcode, body, timeout);
  }
  void Expel(SessionId session, const std::string& why) override { control_->Expel(session, why); }
  void Lose(SessionId session, const std::string& why) override { control_->Lose(session, why); }
  std::vector<SessionInfo> Sessions() const override { return sessions_->List(); }

  Status SetDramRatio(double ratio) override {
    RETURN_IF_ERROR(region_->PrepareRatio(ratio));
    return workers_->Run([this, ratio] { return region_->SetDramRatio(ratio); });
  }
  Status Grow(uint64_t pages) override {
    const uint64_t before = region_->pages();
    if (pages <= before) {
      return Status::Ok();
    }
    RETURN_IF_ERROR(region_->CheckGrowth(pages));
    Status grown = region_->ExtendDevice(pages);
    if (grown.ok()) {
      grown = region_->MakeRoom(pages);
    }
    if (grown.ok()) {
      grown = region_->PrepareTierFor(pages);
    }
    if (grown.ok()) {
      grown = workers_->Run([&] { return region_->SetTierFor(pages); });
    }
    if (grown.ok()) {
      grown = workers_->Run([&] { return region_->Resize(pages); });
    }
    if (!grown.ok()) {
      if (const Status undone = Shrink(before); !undone.ok()) {
        LOG_WARNING("after a growth that failed: {}", undone.ToString());
      }
    }
    return grown;
  }
  Status CheckShrink() const override { return region_->CheckShrink(); }
  Status Shrink(uint64_t pages) override {
    if (pages < region_->pages()) {
      RETURN_IF_ERROR(workers_->Run([&] { return region_->Resize(pages); }));
    }
    Status tier = workers_->Run([&] { return region_->SetTierFor(pages); });
    if (tier.code() == ETIMEDOUT) {
      LOG_WARNING("the memory shrinks further as it can: {}", tier.ToString());
      tier = Status::Ok();
    }
    RETURN_IF_ERROR(std::move(tier));
    return region_->CutDevice(pages);
  }
  Status SetFrameChoice(FrameChoice choice) override { return region_->SetFrameChoice(choice); }
  Status SetPattern(const driver::Pattern& pattern) override {
    return patterns_->Switch(pattern,
                             [this](SessionId session, const std::string& why) { control_->Expel(session, why); });
  }

  std::vector<MetricValue> Metrics() const override {
    std::vector<MetricValue> values = region_->Gauges();
    const auto sessions = sessions_->List();
    uint64_t queue_pairs = 0;
    for (const SessionInfo& session : sessions) {
      queue_pairs += session.queue_pairs;
    }
    values.push_back({"sessions", sessions.size()});
    values.push_back({"queue_pairs", queue_pairs});
    for (MetricValue& value : metrics_.Snapshot()) {
      values.push_back(std::move(value));
    }
    for (MetricValue& value : nic_->Metrics()) {
      values.push_back(std::move(value));
    }
    return values;
  }

 private:
  ServerImpl() = default;

  Status Init(driver::Nic& nic, const ServerOptions& options, Service& service) {
    nic_ = &nic;
    ASSIGN_OR_RETURN(domain_, nic.CreateProtectionDomain());
    ASSIGN_OR_RETURN(workers_, WorkerSet::Start(nic, *domain_, options.workers,
                                                BlocksWorkers(options.region.kind) ? WakesPeers::kAtOnce
                                                                                   : WakesPeers::kOncePerRound));
    ASSIGN_OR_RETURN(
        region_,
        Region::Open(options.region, {.nic = nic,
                                      .domain = *domain_,
                                      .metrics = metrics_,
                                      .spawn = [this](std::function<void()> task) { workers_->Spawn(std::move(task)); },
                                      .tell_readers = [this](uint64_t epoch) { return TellReaders(epoch); },
                                      .owner_of = [&service](PageIndex page) { return service.OwnerOf(page); }}));
    region_started_ = true;
    RETURN_IF_ERROR(workers_->Run([this] { return region_->Start(nullptr); }));
    region_io_ = std::make_unique<RegionIoImpl>(*region_);
    ASSIGN_OR_RETURN(blocking_, BlockingPool::Start(options.blocking_threads, CpusOfThisThread(WorkerSet::kMostBound)));
    dispatcher_ = std::make_unique<Dispatcher>(*region_io_, service, *blocking_, metrics_, options.epoch);
    sessions_ = std::make_unique<SessionTable>(*workers_, *dispatcher_, *region_, metrics_, options.epoch,
                                               options.region.sample_period);
    sessions_->set_on_unreachable([this](SessionId session) {
      if (listening_.load()) {
        control_->AskToLeave(session, "what was sent over one of its queue pairs did not arrive");
      }
    });
    patterns_ = std::make_unique<PatternSwitch>(*workers_, *sessions_, *region_);
    if (options.prepare) {
      RETURN_IF_ERROR(options.prepare(*this));
    }
    RETURN_IF_ERROR(region_->Keep());
    ASSIGN_OR_RETURN(control_,
                     ControlServer::Start(
                         {.directory = options.socket_directory,
                          .allowed_uid = options.allowed_uid,
                          .max_sessions = options.max_sessions,
                          .epoch = options.epoch,
                          .transport = nic.transport(),
                          .network_transport = nic.RegionTransport(options.region.kind, /*network=*/true),
                          .volume = options.region.volume,
                          .listen = options.listen,
                          .tls = options.tls,
                          .plain_data = options.plain_data,
                          .region_info = [this](bool network) { return DescribeRegion(network); },
                          .speaks = [&nic, only = options.wire](
                                        driver::Wire wire) { return nic.Speaks(wire) && only.value_or(wire) == wire; },
                          .masks_keys = nic.MasksKeys(),
                          .adopt = [&nic](driver::AcceptedConnection connection) { nic.Adopt(std::move(connection)); }},
                         *sessions_, service));
    listening_.store(true);
    return Status::Ok();
  }

  // In a task.
  Status TellReaders(uint64_t epoch) {
    if (!listening_.load()) {
      return Status::Error(EAGAIN, "the server does not listen yet");
    }
    const RevokeChunksBody body{.epoch = epoch};
    return TellClients(*workers_, *sessions_, sessions_->WithCallbacks(driver::ReadWay::kValidated),
                       {.opcode = kRevokeChunks,
                        .body = std::as_bytes(std::span(&body, 1)),
                        .unheard = "it does not give up frames that the server takes back"},
                       [this](SessionId session, const std::string& why) { control_->Expel(session, why); });
  }

  wire::RegionInfoT DescribeRegion(bool network) const {
    driver::TermRegion& term = region_->term();
    const PatternSwitch::Known known = patterns_->known();
    wire::RegionInfoT info;
    info.pages = region_->pages();
    const driver::RegionKeys keys = term.keys(network);  // after the size: its table has so many pages
    // To a client of an RNIC that cannot READ it the region is one of that kind.
    const bool unread = driver::AllowsOneSidedRead(term.kind()) && keys.way == driver::ReadWay::kRpcOnly;
    info.kind = static_cast<uint8_t>(unread ? driver::RegionKind::kRpcTiering : term.kind());
    info.max_pages = term.max_frames();  // as many pages as frames
    info.way = static_cast<wire::ReadWay>(keys.way);
    info.region_rkey = keys.region.value;
    info.bitmap_rkey = keys.bitmap.value;
    info.bitmap_bytes = term.bitmap_bytes();
    info.table_rkey = keys.table.value;
    info.entries_offset = keys.entries_offset;
    info.chunk_frames = keys.chunk_frames;
    info.chunk_epoch = keys.chunk_epoch;
    for (const driver::RKey chunk : keys.frame_chunks) {
      info.frame_chunks.push_back(chunk.value);
    }
    const auto to_wire = [](const driver::Pattern& pattern) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(pattern.line.data());
      return std::vector<uint8_t>(bytes, bytes + pattern.line.size());
    };
    info.pattern = to_wire(known.current);
    if (known.former.has_value()) {
      info.former_pattern = to_wire(*known.former);
    }
    return info;
  }

  std::atomic<bool> stopped_{false};
  std::atomic<bool> listening_{false};  // clients may come
  bool region_started_ = false;
  MetricsRegistry metrics_;
  driver::Nic* nic_ = nullptr;
  std::unique_ptr<driver::ProtectionDomain> domain_;
  std::unique_ptr<WorkerSet> workers_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<RegionIoImpl> region_io_;
  std::unique_ptr<BlockingPool> blocking_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<PatternSwitch> patterns_;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace

Status Server::FormatRegion(const RegionOptions& options, const std::function<void(uint64_t, uint64_t)>& progress) {
  return Region::Format(options, progress);
}

Status Server::CheckMemory(const RegionOptions& options) { return Region::CheckMemory(options); }

void Server::RemoveRegion(const RegionOptions& options) { Region::Remove(options); }

Status Server::CheckRegion(const RegionOptions& options) { return Region::Inspect(options); }

Result<std::unique_ptr<Server>> Server::Start(driver::Nic& nic, const ServerOptions& options, Service& service) {
  return ServerImpl::Start(nic, options, service);
}

}  // namespace termfs::tlib::server
