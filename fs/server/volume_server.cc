// SPDX-License-Identifier: Apache-2.0
//
// A volume being served: its lock, store, namespace, service and tlib server, begun and ended in order.
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/random.h"
#include "base/size.h"
#include "fs/proto/codec.h"
#include "fs/server/capacity.h"
#include "fs/server/cuts.h"
#include "fs/server/kept_memory.h"
#include "fs/server/service.h"
#include "fs/server/settings.h"
#include "fs/server/volume_directory.h"
#include "metadata/rocksdb_store.h"

namespace termfs::fs::server {

namespace {

using std::chrono::steady_clock;
using tlib::server::FrameChoice;

constexpr const char* kVersion = "0.1.0";
constexpr uint64_t kRoomForSmallFiles = uint64_t{256} << 10;  // bytes: those that say what was started and ended

uint64_t ValueOf(const std::vector<MetricValue>& metrics, std::string_view name) {
  for (const MetricValue& metric : metrics) {
    if (metric.name == name) {
      return metric.value;
    }
  }
  return 0;
}

// `files`: null for a session that is about to begin or end.
std::unique_ptr<wire::SessionTrafficT> DescribeTraffic(const tlib::server::SessionInfo& info,
                                                       const std::shared_ptr<const Session>& files) {
  auto traffic = std::make_unique<wire::SessionTrafficT>();
  traffic->reads = info.reads;
  traffic->read_bytes = info.read_pages << kPageBits;
  traffic->hit_pages = info.hit_pages;
  if (files != nullptr) {
    traffic->reads += files->traffic.reads.load(std::memory_order_relaxed);
    traffic->read_bytes += files->traffic.read_bytes.load(std::memory_order_relaxed);
    traffic->writes = files->traffic.writes.load(std::memory_order_relaxed);
    traffic->write_bytes = files->traffic.write_bytes.load(std::memory_order_relaxed);
    traffic->metadata = files->traffic.metadata.load(std::memory_order_relaxed);
  }
  return traffic;
}

class ServedVolume final : public VolumeServer, private Administrator {
 public:
  ServedVolume(std::string directory, const VolumeSettings& settings)
      : directory_(std::move(directory)), settings_(settings), begun_(steady_clock::now()) {}
  ~ServedVolume() override {
    const Status stopped = Stop();
    if (!stopped.ok()) {
      LOG_ERROR("stopping {}: {}", directory_, stopped.ToDebugString());
    }
  }

  Status Begin(driver::Nic& nic, const StoreOpener& open_store);
  // What a killed server, or a loss of power, left; before anybody is served.
  Status Recover(tlib::server::Server& server);
  Status TakeCapacity(VolumeSettings& settings);
  Status NoteCapacity(uint64_t pages);
  Status ZeroFreePages(tlib::server::Server& server);
  Status Stop() override;

 private:
  Result<Bytes> HandleAdmin(uint16_t opcode, std::span<const std::byte> body) override;
  Bytes DescribeStatus();
  std::string DescribeHealth(const std::vector<MetricValue>& metrics);
  Bytes DescribeMetrics();
  Status Change(const std::string& key, const std::string& value) EXCLUDES(change_mutex_);
  Status ChangeAlone(const std::string& key, const std::string& value) REQUIRES(change_mutex_);
  Status ChangeRatio(const std::string& value) REQUIRES(change_mutex_);
  Status ChangePromoter(const std::string& value) REQUIRES(change_mutex_);
  Status ChangePattern(const std::string& value);
  Status ChangeCapacity(const std::string& value) REQUIRES(change_mutex_);
  Status ChangeMetadataMemory(const std::string& value) REQUIRES(change_mutex_);
  Status CheckMetadataMemory(uint64_t before, uint64_t wanted);
  VolumeSettings settings() EXCLUDES(settings_mutex_) {
    MutexLock lock(settings_mutex_);
    return settings_;
  }
  // In force from now on, and after a restart: first the file, so that what it refuses is not applied. Of the rest, the
  // file keeps what it says: what the server was started with instead is for this time.
  Status Keep(const std::function<void(VolumeSettings&)>& change, const std::function<Status()>& apply)
      EXCLUDES(settings_mutex_);

  const std::string directory_;
  Mutex change_mutex_;    // one change at a time, which may take a minute: requests do not wait for it
  Mutex settings_mutex_;  // for an instant
  VolumeSettings settings_ GUARDED_BY(settings_mutex_);
  std::string changing_ GUARDED_BY(settings_mutex_);        // the setting that is being changed; empty: none
  std::string change_failure_ GUARDED_BY(settings_mutex_);  // why the last change failed; empty: it did not
  const steady_clock::time_point begun_;
  std::string transport_;
  bool stopped_ = false;
  uint64_t kept_since_ = 0;  // start; 0: nothing has been served
  // Ended in the reverse order of this.
  std::optional<VolumeLock> lock_;
  std::unique_ptr<metadata::KeyValueStore> store_;
  std::unique_ptr<metadata::Namespace> names_;
  std::unique_ptr<FileService> service_;
  std::unique_ptr<tlib::server::Server> server_;
  std::unique_ptr<Capacity> capacity_;
};

// Who may get at the data past the file system.
void WarnOfOpenDoors(const VolumePaths& paths, const std::string& region) {
  struct stat found {};
  const bool has_root = stat(paths.root.c_str(), &found) == 0;
  const bool entered = has_root && (found.st_mode & S_IXOTH) != 0;
  if (entered && stat(paths.meta.c_str(), &found) == 0 && (found.st_mode & S_IRWXO) != 0) {  // by an earlier format
    LOG_WARNING("names in {} may be read by everybody, past all permissions of directories: chmod o= {}", paths.root,
                paths.meta);
  }
  for (const std::string& path : {region, paths.written}) {
    if (stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & S_IROTH) != 0) {
      LOG_WARNING("{} may be read by everybody, past all permissions of files: chmod o= {}", path, path);
    }
  }
}

Status ServedVolume::Begin(driver::Nic& nic, const StoreOpener& open_store) {
  const VolumePaths paths(directory_);
  ASSIGN_OR_RETURN(lock_, VolumeLock::Take(paths, LockUse::kServe));
  VolumeSettings settings = this->settings();
  RETURN_IF_ERROR(CheckSettings(settings));
  ASSIGN_OR_RETURN(
      store_, open_store ? open_store(paths.meta) : OpenStore(paths, {.memory_bytes = settings.metadata_memory_bytes}));
  ASSIGN_OR_RETURN(names_, OpenNamespace(*store_, directory_));
  RETURN_IF_ERROR(CheckCapacity(paths, settings, names_->superblock()));
  store_->MakeRoom(kRoomForSmallFiles);
  RETURN_IF_ERROR(TakeCapacity(settings));
  ASSIGN_OR_RETURN(const uint64_t epoch, NextEpoch(paths));
  const std::string uuid = ToString(names_->superblock().uuid);
  ASSIGN_OR_RETURN(auto region, RegionOptionsOf(paths, settings, uuid));
  region.tier = TierOptionsOf(paths, settings, uuid);
  region.tier.spare_now = [this] {
    const std::vector<MetricValue> store = store_->Metrics();
    return BytesBesideTier(ValueOf(store, "metadata_memory_bytes"), ValueOf(store, "metadata_memory_used_bytes"));
  };
  WarnOfOpenDoors(paths, region.device);
  if (region.tier.directory.empty()) {
    LOG_WARNING("memory-directory is 'none': what is not synced is lost when this server is killed");
  }
  ServiceOptions service_options;
  service_options.owner_uid = geteuid();
  service_options.start = epoch;
  service_ = std::make_unique<FileService>(*names_, service_options);
  RETURN_IF_ERROR(service_->LoadClients());
  std::optional<tlib::HostPort> listen;
  std::optional<driver::Wire> wire;
  if (!settings.rdma_wire.empty()) {
    ASSIGN_OR_RETURN(wire, driver::ParseWire(settings.rdma_wire));
  }
  std::shared_ptr<const TlsContext> tls;
  if (!settings.listen.empty()) {
    ASSIGN_OR_RETURN(listen, tlib::ParseHostPort(settings.listen));
    RETURN_IF_ERROR(tlib::MakeSecret(paths.secret));
    ASSIGN_OR_RETURN(tls, tlib::ServerTls(paths.secret));
  }
  const tlib::server::ServerOptions options{.region = region,
                                            .socket_directory = directory_,
                                            .workers = settings.workers,
                                            .blocking_threads = settings.metadata_threads,
                                            .max_sessions = settings.max_sessions,
                                            .epoch = epoch,
                                            .allowed_uid = geteuid(),
                                            .listen = listen,
                                            .tls = tls,
                                            .plain_data = settings.tls == "off",
                                            .wire = wire,
                                            .prepare = [this](auto& server) { return Recover(server); }};
  transport_ = nic.transport();
  if (listen.has_value()) {
    const bool iwarp = nic.Speaks(driver::Wire::kIwarp) && wire != driver::Wire::kRoce;
    const std::string network = iwarp ? driver::IwarpTransport(/*secure=*/settings.tls != "off")
                                      : nic.RegionTransport(region.kind, /*network=*/true);
    transport_ += ", " + network + " at " + tlib::ToString(*listen);
    LOG_INFO("other hosts are served by {}", network);
    if (!iwarp || settings.tls == "off") {
      LOG_WARNING("file data travels outside of TLS{}: it can be read and forged on the network",
                  iwarp ? " for mounts that ask for it" : "");
    }
  }
  ASSIGN_OR_RETURN(server_, tlib::server::Server::Start(nic, options, *service_));
  ASSIGN_OR_RETURN(kept_since_, NoteMemory(paths, epoch, server_->memory()));
  capacity_ = std::make_unique<Capacity>(
      Capacity::Parts{.names = *names_,
                      .server = *server_,
                      .device = region.device,
                      .meta = paths.meta,
                      .note = [this](uint64_t pages) { return NoteCapacity(pages); },
                      .confine = [this](uint64_t pages) { return service_->Confine(pages); },
                      .evacuate = [this](const std::function<bool()>& end) { return service_->Evacuate(end); },
                      .alone =
                          [this](const std::function<Status()>& what) {
                            MutexLock lock(change_mutex_);
                            return what();
                          }});
  service_->Attach(*server_, this, kept_since_);
  LOG_INFO("volume {} is served, start {}", directory_, epoch);
  return Status::Ok();
}

// After a change of the capacity that was cut short.
Status ServedVolume::TakeCapacity(VolumeSettings& settings) {
  const uint64_t capacity = names_->superblock().capacity_pages << kPageBits;
  if (settings.capacity_bytes == capacity) {
    return Status::Ok();
  }
  LOG_INFO("a change of the capacity to {} was cut short; it is {}", ReadableSize(settings.capacity_bytes),
           ReadableSize(capacity));
  settings.capacity_bytes = capacity;
  return NoteCapacity(names_->superblock().capacity_pages);
}

Status ServedVolume::NoteCapacity(uint64_t pages) {
  return Keep([pages](VolumeSettings& changed) { changed.capacity_bytes = pages << kPageBits; },
              [] { return Status::Ok(); });
}

Status ServedVolume::Recover(tlib::server::Server& server) {
  // Orphans are the reclaimer's, in its own time.
  ASSIGN_OR_RETURN(const metadata::Namespace::Recovered done, names_->Recover(/*orphans=*/false));
  if (done.truncations + done.trimmed > 0) {
    LOG_INFO("recovered; unfinished truncations ended: {}, files whose space allocated ahead was given back: {}",
             done.truncations, done.trimmed);
  }
  ASSIGN_OR_RETURN(const MemoryLeft memory, FindMemory(VolumePaths(directory_), server.memory()));
  ASSIGN_OR_RETURN(const uint64_t zeroed, RestoreCuts(*names_, server, memory));
  if (zeroed > 0) {
    LOG_INFO("recovered; files that were cut within a page, and of which that page was not synced afterwards: {}",
             zeroed);
  }
  return ZeroFreePages(server);
}

// A page that is free reads as zeros (see "Every free page is a zero page"). After power loss one may not: it was given
// to a file, written and marked, and the log of the metadata was lost that said whose it was.
Status ServedVolume::ZeroFreePages(tlib::server::Server& server) {
  constexpr size_t kBatch = 4096;
  for (PageIndex from{0};;) {
    ASSIGN_OR_RETURN(const auto free, names_->ListFree(from, kBatch));
    if (free.empty()) {
      return Status::Ok();
    }
    std::vector<tlib::server::PageRange> ranges;
    for (const metadata::RegionRange& range : free) {
      ranges.push_back({range.first, range.pages});
    }
    RETURN_IF_ERROR(server.RunInCoroutine([&] { return server.region().Zero(ranges); }));
    from.value = free.back().first.value + free.back().pages;
  }
}

Status ServedVolume::Stop() {
  if (std::exchange(stopped_, true)) {
    return Status::Ok();
  }
  Status first;
  const auto note = [&first](Status status) {
    if (first.ok()) {
      first = std::move(status);
    }
  };
  if (capacity_ != nullptr) {
    capacity_->Stop();
  }
  if (server_ != nullptr) {
    service_->StopBackground();
    store_->MakeRoom(kRoomForSmallFiles);
    note(server_->Stop());
    note(service_->Finish());
    if (first.ok() && kept_since_ != 0) {
      note(NoteCleanStop(VolumePaths(directory_), kept_since_));
    }
  }
  return first;
}

Result<Bytes> ServedVolume::HandleAdmin(uint16_t opcode, std::span<const std::byte> body) {
  switch (opcode) {
    case kAdminStatus:
      return DescribeStatus();
    case kAdminMetrics:
      return DescribeMetrics();
    case kAdminQuotas:
      return service_->DescribeQuotas();
    case kAdminSet: {
      ASSIGN_OR_RETURN(const auto setting, Decode<wire::Setting>(body));
      RETURN_IF_ERROR(Change(setting.key, setting.value));
      return Bytes{};
    }
    default:
      return Status::Error(ENOSYS, "unknown administrator's request");
  }
}

// "ok", or what an administrator has to look after.
std::string ServedVolume::DescribeHealth(const std::vector<MetricValue>& metrics) {
  std::string text;
  if (const Status store = store_->Health(); !store.ok()) {
    text = store.ToString();
  }
  if (const uint64_t errors = ValueOf(metrics, "ssd_errors_total"); errors > 0) {
    text +=
        fmt::format("{}{} accesses to the SSD have failed since the server started", text.empty() ? "" : "; ", errors);
  }
  return text.empty() ? "ok" : text;
}

Bytes ServedVolume::DescribeStatus() {
  const std::vector<MetricValue> metrics = server_->Metrics();
  const metadata::Superblock superblock = names_->superblock();
  const FileSystemStatus space = service_->Space();
  wire::StatusT status;
  status.uuid = ToString(superblock.uuid);
  status.version = kVersion;
  status.format = superblock.format_version;
  VolumeSettings settings;
  {
    MutexLock lock(settings_mutex_);  // for all three: what has changed shows when the change has ended
    settings = settings_;
    status.changing = changing_;
    status.change_failure = change_failure_;
  }
  status.kind = settings.kind;
  status.dram_ratio = settings.dram_ratio;
  status.transport = transport_;
  status.health = DescribeHealth(metrics);
  status.pid = static_cast<uint32_t>(getpid());
  status.uptime_seconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - begun_).count());
  status.tier_bytes = ValueOf(metrics, "frames_budget") << kPageBits;
  status.tier_used_bytes = ValueOf(metrics, "frames_used") << kPageBits;
  status.dirty_bytes = ValueOf(metrics, "pages_dirty") << kPageBits;
  const std::vector<MetricValue> store = store_->Metrics();
  status.metadata_memory_bytes = settings.metadata_memory_bytes;
  status.metadata_used_bytes = ValueOf(store, "metadata_memory_used_bytes");
  status.metadata_table_bytes = ValueOf(store, "metadata_table_bytes");
  status.space = std::make_unique<wire::VolumeSpaceT>();
  status.space->capacity = space.capacity_bytes;
  const Capacity::Progress progress = capacity_->progress();
  status.space->target = progress.target_pages << kPageBits;
  status.space->to_move = progress.pages_to_move << kPageBits;
  status.space->changing = progress.changing;
  status.space->failure = progress.failure;
  status.space->free = space.free_bytes;
  status.space->inodes_used = space.inodes_used;
  status.space->inodes_free = space.inodes_free;
  static constexpr std::array<const char*, 3> kBitmaps = {"live", "pulled", "off"};
  for (const tlib::server::SessionInfo& info : server_->Sessions()) {
    auto session = std::make_unique<wire::SessionStatusT>();
    session->id = info.id.value;
    session->program = info.program;
    session->transport = info.transport;
    session->from = info.from;
    session->bitmap = info.bitmap < kBitmaps.size() ? kBitmaps[info.bitmap] : "unknown";
    session->reads = info.way == driver::ReadWay::kValidated    ? "validated"
                     : info.way == driver::ReadWay::kTranslated ? "translated"
                                                                : "rpc";
    session->uid = info.uid;
    session->pid = info.pid;
    session->queue_pairs = info.queue_pairs;
    session->seconds =
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(info.connected_for).count());
    session->traffic = DescribeTraffic(info, service_->FindSession(info.id));
    status.sessions.push_back(std::move(session));
  }
  return Encode<wire::Status>(status);
}

Bytes ServedVolume::DescribeMetrics() {
  wire::MetricsT reply;
  const auto add = [&reply](const std::vector<MetricValue>& values) {
    for (const MetricValue& value : values) {
      auto metric = std::make_unique<wire::MetricT>();
      metric->name = value.name;
      metric->value = value.value;
      for (const auto& [bucket, count] : value.buckets) {
        metric->buckets.insert(metric->buckets.end(), {bucket, count});
      }
      reply.metrics.push_back(std::move(metric));
    }
  };
  add(server_->Metrics());
  add(service_->Metrics());
  add(store_->Metrics());
  return Encode<wire::Metrics>(reply);
}

// Those that waited would take up the threads that serve administrators and new sessions.
Status ServedVolume::Change(const std::string& key, const std::string& value) {
  if (!change_mutex_.TryLock()) {
    return Status::Error(EBUSY, "another setting is being changed; set this one when that has ended");
  }
  {
    MutexLock lock(settings_mutex_);
    changing_ = key;
  }
  Status changed = ChangeAlone(key, value);
  {
    MutexLock lock(settings_mutex_);
    changing_.clear();
    change_failure_ = changed.ok() ? "" : changed.ToString();
  }
  change_mutex_.Unlock();
  return changed;
}

Status ServedVolume::ChangeAlone(const std::string& key, const std::string& value) {
  if (key == "capacity") {
    return ChangeCapacity(value);
  }
  if (key == "dram-ratio") {
    return ChangeRatio(value);
  }
  if (key == "promoter") {
    return ChangePromoter(value);
  }
  if (key == "metadata-memory") {
    return ChangeMetadataMemory(value);
  }
  if (key == "pattern") {
    return ChangePattern(value);
  }
  return Status::Error(EINVAL,
                       "what can be set while serving: capacity, dram-ratio, metadata-memory, promoter, pattern");
}

Status ServedVolume::Keep(const std::function<void(VolumeSettings&)>& change, const std::function<Status()>& apply) {
  ASSIGN_OR_RETURN(const VolumeSettings before, LoadSettings(directory_));
  VolumeSettings kept = before;
  change(kept);
  RETURN_IF_ERROR(SaveSettings(directory_, kept));
  Status applied = apply();
  if (applied.ok() || applied.code() == ETIMEDOUT) {  // ETIMEDOUT: it goes on
    MutexLock lock(settings_mutex_);
    change(settings_);
  } else if (const Status undone = SaveSettings(directory_, before); !undone.ok()) {
    LOG_WARNING("after a setting that could not be applied: {}", undone.ToString());
  }
  return applied;
}

Status ServedVolume::ChangeCapacity(const std::string& value) {
  VolumeSettings changed = settings();
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), changed.capacity_bytes);
  if (error != std::errc() || end != value.data() + value.size()) {
    return Status::Error(EINVAL, "capacity must be a number of bytes");
  }
  RETURN_IF_ERROR(CheckSettings(changed));
  RETURN_IF_ERROR(LoadSettings(directory_).status());  // in which it will be noted
  return capacity_->Set(changed.capacity_bytes >> kPageBits);
}

Status ServedVolume::ChangeRatio(const std::string& value) {
  VolumeSettings changed = settings();
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), changed.dram_ratio);
  if (error != std::errc() || end != value.data() + value.size()) {
    return Status::Error(EINVAL, "dram-ratio must be from 0.01 to 1");
  }
  RETURN_IF_ERROR(CheckSettings(changed));
  return Keep([&changed](VolumeSettings& settings) { settings.dram_ratio = changed.dram_ratio; },
              [&] { return server_->SetDramRatio(changed.dram_ratio); });
}

Status ServedVolume::ChangeMetadataMemory(const std::string& value) {
  VolumeSettings changed = settings();
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), changed.metadata_memory_bytes);
  if (error != std::errc() || end != value.data() + value.size()) {
    return Status::Error(EINVAL, "metadata-memory must be a number of bytes");
  }
  RETURN_IF_ERROR(CheckSettings(changed));
  RETURN_IF_ERROR(CheckMetadataMemory(settings().metadata_memory_bytes, changed.metadata_memory_bytes));
  return Keep([&changed](VolumeSettings& settings) { settings.metadata_memory_bytes = changed.metadata_memory_bytes; },
              [&] { return store_->SetMemory(changed.metadata_memory_bytes); });
}

// Before it is granted: the kernel rather kills the server than refuses it a page, and the next start would be refused.
Status ServedVolume::CheckMetadataMemory(uint64_t before, uint64_t wanted) {
  if (wanted <= before) {
    return Status::Ok();
  }
  const uint64_t used = ValueOf(store_->Metrics(), "metadata_memory_used_bytes");
  const uint64_t needed = BytesBesideTier(wanted, used);
  const MemoryBound bound = TightestMemory(MemoryBounds());
  if (needed <= bound.available) {
    return Status::Ok();
  }
  const uint64_t excess = needed - bound.available;
  return Status::Error(ENOMEM,
                       fmt::format("the server would need {} MiB more memory, of which {} has {} MiB; the largest "
                                   "metadata-memory that fits is {} MiB",
                                   needed >> 20, bound.of, bound.available >> 20,
                                   std::max(before, wanted - std::min(wanted, excess)) >> 20));
}

Status ServedVolume::ChangePromoter(const std::string& value) {
  VolumeSettings changed = settings();
  changed.promoter = value;
  RETURN_IF_ERROR(CheckSettings(changed));
  const FrameChoice choice = value == "heat"     ? FrameChoice::kHeat
                             : value == "recent" ? FrameChoice::kRecent
                                                 : FrameChoice::kStatic;
  return Keep([&value](VolumeSettings& settings) { settings.promoter = value; },
              [&] { return server_->SetFrameChoice(choice); });
}

Status ServedVolume::ChangePattern(const std::string& value) {
  if (value != "random") {
    return Status::Error(EINVAL, "pattern must be 'random': a new one is made up");
  }
  driver::Pattern pattern;
  RETURN_IF_ERROR(SecureRandom(pattern.line.data(), pattern.line.size()));
  return server_->SetPattern(pattern);
}

Result<std::unique_ptr<VolumeServer>> StartVolume(driver::Nic& nic, const std::string& directory,
                                                  const VolumeSettings& settings,
                                                  const VolumeServer::StoreOpener& open_store) {
  auto volume = std::make_unique<ServedVolume>(directory, settings);
  RETURN_IF_ERROR(volume->Begin(nic, open_store));
  return std::unique_ptr<VolumeServer>(std::move(volume));
}

}  // namespace

Result<std::unique_ptr<VolumeServer>> VolumeServer::Start(driver::Nic& nic, const std::string& directory,
                                                          const VolumeSettings& settings,
                                                          const StoreOpener& open_store) {
  return StartVolume(nic, directory, settings, open_store);
}

}  // namespace termfs::fs::server
