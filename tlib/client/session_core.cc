// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/session_core.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "base/page.h"
#include "base/random.h"
#include "tlib/client/segment_size.h"
#include "tlib/rpc/messages.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::tlib::client {
namespace {

std::vector<std::byte> ToBytes(const std::vector<uint8_t>& from) {
  const auto* data = reinterpret_cast<const std::byte*>(from.data());
  return {data, data + from.size()};
}

Result<driver::Pattern> ToPattern(const std::vector<uint8_t>& from) {
  driver::Pattern pattern;
  if (from.size() != pattern.line.size()) {
    return Status::Error(EPROTO, "the server's magic pattern has not 64 bytes");
  }
  std::memcpy(pattern.line.data(), from.data(), from.size());
  return pattern;
}

}  // namespace

Result<std::shared_ptr<SessionCore>> SessionCore::Connect(driver::Nic& nic, const ServerAddress& address,
                                                          const SessionOptions& options) {
  if (!address.remote()) {
    return ConnectOnce(nic, address, options, 0);
  }
  SegmentSize of_this_session;
  SegmentSize& size = options.segment_size != nullptr ? *options.segment_size : of_this_session;
  while (true) {
    const uint32_t limit = size.limit(std::chrono::steady_clock::now());
    auto core = ConnectOnce(nic, address, options, limit);
    if (!core.ok()) {
      size.Failed();
      return core;
    }
    Status probed = (*core)->control().ProbePath(std::chrono::steady_clock::now() + SegmentSize::kPatience);
    if (!probed.ok() && probed.code() != ETIMEDOUT) {
      size.Failed();
      return probed;
    }
    switch (size.Probed(limit, probed.ok(), std::chrono::steady_clock::now())) {
      case SegmentSize::Next::kGoOnSmall:
        LOG_WARNING(
            "large packets do not get through to the server or back, and nothing reports it: TCP segments have no "
            "more than {} bytes for {} minutes",
            SegmentSize::kSmall, SegmentSize::kKeep.count());
        return core;
      case SegmentSize::Next::kGoOn:
        return core;
      case SegmentSize::Next::kFail:
        return std::move(probed).WithContext("the server does not answer");
      case SegmentSize::Next::kConnectAgain:
        break;
    }
  }
}

Result<std::shared_ptr<SessionCore>> SessionCore::ConnectOnce(driver::Nic& nic, const ServerAddress& address,
                                                              const SessionOptions& options, uint32_t segment_limit) {
  std::shared_ptr<SessionCore> core(new SessionCore(nic, options));
  core->lost_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!core->lost_event_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  RETURN_IF_ERROR(core->bell_.Create());
  if (address.remote() && options.bitmap == BitmapMode::kLive) {
    return Status::Error(ENOTSUP, "the server's own bitmap cannot be looked into from another host; a copy is pulled");
  }
  ASSIGN_OR_RETURN(core->control_, ControlClient::Connect(address, segment_limit));
  if (address.remote()) {
    ASSIGN_OR_RETURN(core->path_, NetworkPathOf(core->control_->fd()));
    core->path_->dials = true;
    core->path_->segment_limit = segment_limit;
  }
  ASSIGN_OR_RETURN(core->domain_, nic.CreateProtectionDomain());
  RETURN_IF_ERROR(core->SayHello());
  return core;
}

Status SessionCore::SayHello() {
  wire::HelloT hello;
  hello.version = kControlVersion;
  hello.program = options_.program;
  hello.bitmap = static_cast<uint8_t>(options_.bitmap);
  hello.client = options_.client;
  hello.plain_data = options_.plain_data;
  hello.reconnect_seconds = static_cast<uint32_t>(options_.reconnect.count());
  for (const driver::Wire wire : {driver::Wire::kRoce, driver::Wire::kIwarp}) {
    hello.wires |= options_.wire.value_or(wire) == wire && nic_.Speaks(wire) ? driver::BitOf(wire) : uint8_t{0};
  }
  const unsigned hello_wires = hello.wires;
  ASSIGN_OR_RETURN(
      const auto welcome,
      control_->Call<wire::WelcomeT>(std::move(hello), std::chrono::steady_clock::now() + options_.hello_timeout));
  if (welcome.version != kControlVersion) {
    return Status::Error(EPROTO, "the server speaks version " + std::to_string(welcome.version) +
                                     " of the protocol, this program version " + std::to_string(kControlVersion));
  }
  if (path_.has_value()) {
    if ((hello_wires & (1U << welcome.wire)) == 0) {
      return Status::Error(EPROTO, "the server chose a wire that this program did not offer");
    }
    path_->wire = static_cast<driver::Wire>(welcome.wire);
    if (!welcome.secure && path_->wire == driver::Wire::kIwarp && !options_.plain_data) {
      return Status::Error(EPROTO, "the server would leave TLS out of the data path, which was not asked for");
    }
    path_->tls = welcome.secure ? control_->tls_context() : nullptr;
    if (!welcome.sealed && path_->wire == driver::Wire::kRoce && !options_.plain_data) {
      return Status::Error(EPROTO, "the server would not have messages sealed, which was not asked for");
    }
    sealed_ = welcome.sealed;
  }
  RETURN_IF_ERROR(Learn(welcome));
  if (over_network() && region_.kind == driver::RegionKind::kOdp) {
    return Status::Error(ENOTSUP, "a region of kind odp is served to processes of its own host only");
  }
  return Status::Ok();
}

Status SessionCore::Learn(const wire::WelcomeT& welcome) {
  if (welcome.region == nullptr) {
    return Status::Error(EPROTO, "the server describes no region");
  }
  const wire::RegionInfoT& info = *welcome.region;
  if (info.kind > static_cast<uint8_t>(driver::RegionKind::kTerm) || info.pages == 0 ||
      info.pages > UINT64_MAX / kPageSize || info.pages > UINT32_MAX || info.max_pages < info.pages ||
      info.max_pages > UINT32_MAX || info.bitmap_bytes < (info.pages + 63) / 64 * 8) {
    return Status::Error(EPROTO, "the server's region is not one this program knows");
  }
  id_ = welcome.session;
  epoch_ = welcome.epoch;
  transport_ = !over_network()                       ? welcome.transport
               : path_->wire == driver::Wire::kIwarp ? driver::IwarpTransport(path_->tls != nullptr)
                                                     : NameOfTransport(nic_.transport(/*network=*/true), sealed_);
  volume_ = welcome.volume;
  region_ = {.kind = static_cast<driver::RegionKind>(info.kind),
             .pages = info.pages,
             .max_pages = info.max_pages,
             .region_rkey = {info.region_rkey},
             .bitmap_rkey = {info.bitmap_rkey},
             .bitmap_bytes = info.bitmap_bytes};
  RETURN_IF_ERROR(LearnWay(info));
  region_bytes_.store(info.pages << kPageBits, std::memory_order_release);
  RETURN_IF_ERROR(LearnPatterns(info));
  if (bitmap_mode() == BitmapMode::kPulled) {
    pulled_words_ = (region_.pages + 63) / 64;
    pulled_bitmap_ = std::make_unique<std::atomic<uint64_t>[]>(pulled_words_);
    for (size_t i = 0; i < pulled_words_; i++) {
      pulled_bitmap_[i].store(~uint64_t{0}, std::memory_order_relaxed);  // until pulled: the pattern tells
    }
  }
  return Status::Ok();
}

Status SessionCore::LearnWay(const wire::RegionInfoT& info) {
  if (info.way > wire::ReadWay::Validated) {
    return Status::Error(EPROTO, "the server's region is READ in a way that this program does not know");
  }
  region_.way =
      driver::AllowsOneSidedRead(region_.kind) ? static_cast<driver::ReadWay>(info.way) : driver::ReadWay::kRpcOnly;
  if (region_.way != driver::ReadWay::kValidated) {
    return Status::Ok();
  }
  if (info.table_rkey == 0 || info.entries_offset % sizeof(uint64_t) != 0 || info.entries_offset > UINT64_MAX / 2) {
    return Status::Error(EPROTO, "the server's page table is not one this program knows");
  }
  region_.entries_offset = info.entries_offset;
  ASSIGN_OR_RETURN(table_, PageTableView::Create(region_.max_pages));
  table_->Cover(info.pages, {info.table_rkey});
  return Status::Ok();
}

Status SessionCore::LearnChunks(wire::RegionInfoT& info) {
  if (table_ == nullptr) {
    return Status::Ok();
  }
  if (!std::has_single_bit(info.chunk_frames) || info.chunk_frames > driver::kFrameMask) {
    return Status::Error(EPROTO, "the server's chunks of frames are not such as this program knows");
  }
  FrameChunks::Keys keys{.chunk_frames = info.chunk_frames, .epoch = info.chunk_epoch, .chunks = {}};
  for (const uint32_t key : info.frame_chunks) {
    keys.chunks.push_back({key});
  }
  chunks_.Learn(std::move(keys));
  return Status::Ok();
}

Status SessionCore::LearnPatterns(const wire::RegionInfoT& info) {
  std::vector<driver::Pattern> patterns;
  ASSIGN_OR_RETURN(patterns.emplace_back(), ToPattern(info.pattern));
  if (!info.former_pattern.empty()) {
    ASSIGN_OR_RETURN(patterns.emplace_back(), ToPattern(info.former_pattern));
  }
  patterns_.Set(std::move(patterns));
  return Status::Ok();
}

Status SessionCore::RefreshRegion() {
  ASSIGN_OR_RETURN(auto info, control_->Call<wire::RegionInfoT>(wire::GetRegionInfoT(), CallDeadline()));
  RETURN_IF_ERROR(LearnPatterns(info));
  return LearnChunks(info);
}

Status SessionCore::CheckInRegion(RegionOffset offset, uint64_t length, std::chrono::milliseconds patience) {
  const auto fits = [&](uint64_t bytes) { return offset.value < bytes && length <= bytes - offset.value; };
  if (fits(region_bytes())) {
    return Status::Ok();
  }
  if (fits(region_.max_pages << kPageBits)) {
    ASSIGN_OR_RETURN(const auto info,
                     control_->Call<wire::RegionInfoT>(wire::GetRegionInfoT(), CallDeadline(patience)));
    const bool has_key = table_ == nullptr || info.table_rkey != 0;
    if (info.pages != 0 && info.pages <= region_.max_pages && has_key) {
      if (table_ != nullptr) {
        table_->Cover(info.pages, {info.table_rkey});
      }
      region_bytes_.store(info.pages << kPageBits, std::memory_order_release);
    }
  }
  return fits(region_bytes()) ? Status::Ok() : Status::Error(EINVAL, "outside of the region");
}

BitmapMode SessionCore::bitmap_mode() const {
  if (region_.way != driver::ReadWay::kTranslated) {
    return BitmapMode::kOff;
  }
  const bool shows_presence = region_.kind == driver::RegionKind::kTerm || region_.kind == driver::RegionKind::kPin;
  return shows_presence ? options_.bitmap : BitmapMode::kOff;
}

Result<SessionCore::OpenPair> SessionCore::OpenQueuePair(wire::Purpose purpose, driver::QueuePairOptions options,
                                                         int cpu, std::chrono::milliseconds patience,
                                                         const Interruption* interruption) {
  options.network = path_;
  if (options.network.has_value()) {
    options.network->polled = own_ports_.load(std::memory_order_relaxed);
  }
  auto opened = TryOpenQueuePair(purpose, options, cpu, {CallDeadline(patience), interruption});
  if (opened.status().code() != EADDRINUSE || !options.network.has_value() || !options.network->polled) {
    return opened;
  }
  own_ports_.store(false, std::memory_order_relaxed);
  options.network->polled = false;
  return TryOpenQueuePair(purpose, options, cpu, {CallDeadline(patience), interruption});
}

Result<SessionCore::OpenPair> SessionCore::TryOpenQueuePair(wire::Purpose purpose,
                                                            const driver::QueuePairOptions& options, int cpu,
                                                            const ControlClient::Wait& wait) {
  OpenPair open;
  ASSIGN_OR_RETURN(open.pair, domain_->CreateQueuePair(options));
  ASSIGN_OR_RETURN(driver::Endpoint local, open.pair->LocalEndpoint());
  wire::OpenQueuePairT request;
  request.purpose = purpose;
  request.cpu = cpu;
  request.endpoint.resize(local.bytes.size());
  std::memcpy(request.endpoint.data(), local.bytes.data(), local.bytes.size());
  if (sealed_) {
    MessageSeal::Secret secret;
    RETURN_IF_ERROR(SecureRandom(secret.bytes.data(), secret.bytes.size()));
    request.seal.resize(secret.bytes.size());
    std::memcpy(request.seal.data(), secret.bytes.data(), secret.bytes.size());
    ASSIGN_OR_RETURN(open.seal, MessageSeal::Create(secret, MessageSeal::End::kClient));
  }
  driver::Endpoint remote;
  const auto opened = control_->Call<wire::QueuePairOpenedT>(request, wait, local.fds, &remote.fds);
  WipeSecret(std::as_writable_bytes(std::span(request.seal)));
  RETURN_IF_ERROR(opened.status());
  remote.bytes = ToBytes(opened->endpoint);
  RETURN_IF_ERROR(open.pair->Connect(std::move(remote)));
  return open;
}

Status SessionCore::StartHeat() {
  if (options_.heat_period.count() <= 0 || region_.way == driver::ReadWay::kRpcOnly) {
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(heat_, HeatExporter::Create(nic_, *domain_, std::max(region_.pages, region_.max_pages)));
  wire::ExportHeatT request;
  request.rkey = heat_->rkey().value;
  request.bytes = heat_->bytes();
  return control_->Call<wire::DoneT>(request, CallDeadline()).status();
}

void SessionCore::MarkLost(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!patterns_.MarkLost()) {
      return;
    }
    why_lost_ = Status::Error(ENOTCONN, "the session with the server is lost (" + why.ToString() + ")");
  }
  const uint64_t one = 1;
  if (write(lost_event_.get(), &one, sizeof(one)) != sizeof(one)) {
    LOG_ERROR("{}", ErrnoStatus("tell the channels that the session is lost").ToString());
  }
}

Status SessionCore::why_lost() const {
  MutexLock lock(mutex_);
  return why_lost_;
}

std::shared_ptr<ChannelCounters> SessionCore::AddChannel() {
  auto counters = std::make_shared<ChannelCounters>();
  MutexLock lock(mutex_);
  channels_.push_back(counters);
  return counters;
}

void SessionCore::RemoveChannel(const std::shared_ptr<ChannelCounters>& counters) {
  MutexLock lock(mutex_);
  counters->AddTo(closed_channels_);
  std::erase(channels_, counters);
}

void SessionCore::SumChannels(ChannelCounters& sum) const {
  MutexLock lock(mutex_);
  closed_channels_.AddTo(sum);
  for (const auto& channel : channels_) {
    channel->AddTo(sum);
  }
}

ReadTotals SessionCore::read_totals() const {
  ChannelCounters sum;
  SumChannels(sum);
  return {.hit_pages = sum.read_hit_pages.value(), .missed_pages = sum.rpc_read_pages.value()};
}

std::vector<MetricValue> SessionCore::Metrics() const {
  ChannelCounters sum;
  SumChannels(sum);
  std::vector<MetricValue> values = {
      {"reads_total", sum.reads.value()},
      {"read_pages_total", sum.read_pages.value()},
      {"read_hit_pages_total", sum.read_hit_pages.value()},
      {"absent_by_bitmap_pages_total", sum.absent_by_bitmap_pages.value()},
      {"absent_by_pattern_pages_total", sum.absent_by_pattern_pages.value()},
      {"validation_misses_total", sum.validation_misses.value()},
      {"rpc_reads_total", sum.rpc_reads.value()},
      {"rpc_read_pages_total", sum.rpc_read_pages.value()},
      {"calls_total", sum.calls.value()},
  };
  for (MetricValue& value : metrics_.Snapshot()) {  // bitmap_pulls_total and the histograms
    values.push_back(std::move(value));
  }
  if (over_network()) {
    for (MetricValue& value : nic_.Metrics()) {
      values.push_back(std::move(value));
    }
  }
  return values;
}

}  // namespace termfs::tlib::client
