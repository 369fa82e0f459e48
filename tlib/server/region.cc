// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "base/size.h"
#include "tlib/server/bounce_pool.h"
#include "tlib/server/chunk_retirer.h"
#include "tlib/server/cleaner.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/frames.h"
#include "tlib/server/metered_block_device.h"
#include "tlib/server/page_runs.h"
#include "tlib/server/page_states.h"
#include "tlib/server/pager.h"
#include "tlib/server/promoter.h"
#include "tlib/server/read_ahead.h"
#include "tlib/server/region_label.h"
#include "tlib/server/region_on_device.h"
#include "tlib/server/reporting_block_device.h"
#include "tlib/server/tier_memory.h"
#include "tlib/server/tier_policy.h"
#include "tlib/server/tier_recovery.h"
#include "tlib/server/tier_store.h"
#include "tlib/server/tiering_io.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

constexpr size_t kBounceBytes = size_t{16} << 20;

bool HasFrames(RegionKind kind) {
  return kind == RegionKind::kPin || kind == RegionKind::kOdp || kind == RegionKind::kRpcTiering ||
         kind == RegionKind::kTerm;
}

// kPin moves nothing. kOdp must page in whatever a READ meets, worth a frame or not: recency, as a kernel would. By
// heat goes where every access is counted: kTerm's clients tell of their READs (AddCounts), and in kRpcTiering there
// are none, so what TieringIo counts as it serves a read or a write is all there is.
FrameChoice EffectiveChoice(RegionKind kind, FrameChoice choice) {
  if (kind == RegionKind::kPin) {
    return FrameChoice::kStatic;
  }
  const bool by_heat = kind == RegionKind::kTerm || kind == RegionKind::kRpcTiering;
  return choice == FrameChoice::kHeat && !by_heat ? FrameChoice::kRecent : choice;
}

// What a client has told holds for five of its own periods at least, which are a second by default.
uint32_t ToldPeriods(std::chrono::milliseconds period) {
  return 5 + static_cast<uint32_t>(5000 / std::max<int64_t>(period.count(), 1));
}

Result<uint32_t> FramesFor(RegionKind kind, uint64_t pages, double ratio) {
  if (!HasFrames(kind)) {
    return uint32_t{0};
  }
  if (kind == RegionKind::kPin) {
    return static_cast<uint32_t>(pages);
  }
  if (!(ratio >= 0 && ratio <= 1)) {
    return Status::Error(EINVAL, "the DRAM ratio must be between 0 and 1");
  }
  return static_cast<uint32_t>(std::llround(ratio * static_cast<double>(pages)));
}

class CopyingSink final : public PieceSink {
 public:
  explicit CopyingSink(std::span<std::byte> to) : to_(to) {}
  Status Take(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      std::memcpy(to_.data() + piece.at, piece.data, piece.length);
    }
    return Status::Ok();
  }

 private:
  const std::span<std::byte> to_;
};

// Where the RNIC's fault handler finds the region: it is registered before the region is made.
using FaultTarget = std::shared_ptr<std::atomic<Region*>>;

class StorageRegion final : public Region {
 public:
  StorageRegion(const RegionOptions& options, RegionEnvironment environment, RegionDevices devices,
                std::unique_ptr<WrittenLog> log, std::unique_ptr<driver::TermRegion> term,
                std::unique_ptr<BouncePool> bounce, std::unique_ptr<TierStore> tier, uint32_t frames,
                FaultTarget fault_target)
      : kind_(options.kind),
        device_path_(options.device),
        ratio_(options.dram_ratio),
        first_budget_(frames),
        odp_delay_(options.odp_delay),
        fault_target_(std::move(fault_target)),
        spawn_(std::move(environment.spawn)),
        devices_(std::move(devices)),
        metrics_(environment.metrics),
        device_(*devices_.pages, metrics_),
        log_(std::move(log)),
        term_(std::move(term)),
        bounce_(std::move(bounce)),
        tier_(std::move(tier)),
        states_(*term_, tier_->cells(), options.pages),
        frames_(*term_, tier_->sparse_frames() ? Frames::Kind::kSparse : Frames::Kind::kDense,
                [this] { retirer_.Kick(); }),
        retirer_(frames_, spawn_, std::move(environment.tell_readers)),
        policy_(options.pages, tier_->max_pages(), EffectiveChoice(options.kind, options.choice)),
        supply_(frames_, states_, policy_, metrics_, term_->max_frames()),
        cleaner_(device_, *log_, frames_, states_, supply_, metrics_),
        pager_(device_, frames_, states_, supply_, policy_, cleaner_, metrics_, options.shrink_timeout),
        promoter_(policy_, states_, pager_, options.sample_period),
        read_ahead_(states_, supply_, pager_),
        io_({.term = *term_,
             .device = device_,
             .log = *log_,
             .frames = frames_,
             .states = states_,
             .supply = supply_,
             .policy = policy_,
             .cleaner = cleaner_,
             .pager = pager_,
             .bounce = *bounce_,
             .metrics = metrics_}) {
    policy_.SetToldPeriods(ToldPeriods(options.sample_period));
    if (!tier_->resumed()) {
      log_->ForEach([this](PageIndex page) { states_.SetMarkedAtOpen(page); });
    }
    fault_target_->store(this);
  }
  // By now no queue pair reaches the region any more, so no fault is on its way.
  ~StorageRegion() override { fault_target_->store(nullptr); }

  Status Start(const Progress& progress) override;
  Status Stop() override;
  Status Leave() override {
    EndTasks();
    return tier_->resumed() ? Status::Ok() : tier_->Remove();
  }
  Status Keep() override {
    return tier_->Commit([this] { return term_->Keep(); });
  }

  Status Read(RegionOffset offset, std::span<std::byte> to) override {
    CopyingSink sink(to);
    return io_.ReadPages(offset, to.size(), {}, sink);
  }
  Status Write(RegionOffset offset, std::span<const std::byte> from, const Check& check) override {
    return io_.Write(offset, from, check);
  }
  Status Zero(std::span<const PageRange> ranges) override { return io_.Zero(ranges); }
  Status Flush(std::span<const PageRange> ranges) override;
  uint64_t failed_flushes() const override { return cleaner_.failed_flushes(); }
  Status ReadPages(RegionOffset offset, uint32_t length, std::span<const uint64_t> missing, PieceSink& sink) override {
    if (kind_ == RegionKind::kTerm && length > 0) {
      NoteMisses(offset, length, missing);
    }
    return io_.ReadPages(offset, length, missing, sink);
  }

  void AddCounts(std::span<const HeatEntry> counts) override { promoter_.AddCounts(counts); }
  void AddTotals(uint64_t client, uint32_t hit_pages, uint32_t missed_pages) override {
    metrics_.told_hit_pages.Add(hit_pages);
    metrics_.told_missed_pages.Add(missed_pages);
    policy_.AddTotals(client, hit_pages, missed_pages);
  }
  Status PrepareRatio(double ratio) override {
    ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(kind_, states_.pages(), ratio));
    return PrepareFrames(states_.pages(), frames);
  }
  Status PrepareTierFor(uint64_t pages) override {
    ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(kind_, pages, ratio_.load()));
    return PrepareFrames(pages, frames);
  }
  Status SetDramRatio(double ratio) override;
  Status CheckGrowth(uint64_t pages) override;
  Status CheckShrink() const override;
  Status ExtendDevice(uint64_t pages) override;
  Status MakeRoom(uint64_t pages) override;
  Status SetTierFor(uint64_t pages) override;
  Status Resize(uint64_t pages) override;
  Status CutDevice(uint64_t pages) override;
  Status SetFrameChoice(FrameChoice choice) override;
  void StartFault(PageIndex page) override;
  driver::TermRegion& term() override { return *term_; }
  uint64_t memory() const override { return tier_->layout(); }
  uint64_t pages() const override { return states_.pages(); }
  std::vector<MetricValue> Gauges() const override;

 private:
  Status Recover();
  // False: they have not begun, or ended before.
  bool EndTasks();
  void NoteMisses(RegionOffset offset, uint32_t length, std::span<const uint64_t> missing);
  Status LoadEverything(const Progress& progress);
  // What SetBudget would wait for.
  Status PrepareFrames(uint64_t pages, uint32_t frames);
  // `pages`: of the region whose tier it is, now or soon.
  Status SetBudget(uint64_t pages, uint32_t frames);

  const RegionKind kind_;
  const std::string device_path_;
  std::atomic<double> ratio_;
  const uint32_t first_budget_;
  const std::chrono::microseconds odp_delay_;
  const FaultTarget fault_target_;
  const Spawner spawn_;
  RegionDevices devices_;
  StorageMetrics metrics_;
  MeteredBlockDevice device_;
  std::unique_ptr<WrittenLog> log_;
  std::unique_ptr<driver::TermRegion> term_;
  std::unique_ptr<BouncePool> bounce_;
  std::unique_ptr<TierStore> tier_;
  PageStates states_;
  Frames frames_;
  ChunkRetirer retirer_;
  TierPolicy policy_;
  FrameSupply supply_;
  Cleaner cleaner_;
  Pager pager_;
  Promoter promoter_;
  ReadAhead read_ahead_;
  TieringIo io_;
  std::atomic<bool> started_{false};
  std::atomic<uint64_t> faults_running_{0};
};

Status StorageRegion::Start(const Progress& progress) {
  if (tier_->resumed()) {
    RETURN_IF_ERROR(Recover());
  }
  cleaner_.Start(spawn_);  // a tier that is taken over may be larger than the budget, and not clean
  Status begun = pager_.SetBudget(first_budget_);
  if (begun.code() == ETIMEDOUT) {
    LOG_WARNING("the memory that was taken over is more than the budget: {}; it shrinks further as it can",
                begun.ToString());
    begun = Status::Ok();
  }
  if (begun.ok() && kind_ == RegionKind::kPin) {
    begun = LoadEverything(progress);
  }
  if (!begun.ok()) {
    cleaner_.Stop();
    retirer_.Stop();
    return begun;
  }
  if (HasFrames(kind_) && kind_ != RegionKind::kPin) {
    promoter_.Start(spawn_);
  }
  started_.store(true);
  return Status::Ok();
}

Status StorageRegion::Recover() {
  const auto begin = std::chrono::steady_clock::now();
  Result<RecoveredTier> found = RecoverTier({.term = *term_,
                                             .log = *log_,
                                             .states = states_,
                                             .frames = frames_,
                                             .supply = supply_,
                                             .policy = policy_,
                                             .cleaner = cleaner_},
                                            first_budget_);
  if (!found.ok()) {
    return found.status().code() == EUCLEAN ? tier_->Refusal(found.status()) : found.status();
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  LOG_INFO(
      "the last server was killed; its memory is taken over: {} pages, {} of them dirty ({} to write), {} "
      "written and not yet marked, in {} ms",
      found->pages, found->dirty, ReadableSize(found->dirty * kPageSize), found->unmarked,
      std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  return Status::Ok();
}

// If a page is asked for that is absent.
void StorageRegion::NoteMisses(RegionOffset offset, uint32_t length, std::span<const uint64_t> missing) {
  const uint64_t first = offset.page().value;
  const uint64_t end = std::min(RegionOffset{offset.value + length - 1}.page().value + 1, states_.pages());
  for (uint64_t i = 0; i < end - std::min(first, end); i++) {
    const bool asked = missing.empty() || (i / 64 < missing.size() && (missing[i / 64] >> (i % 64) & 1) != 0);
    const PageState state = states_.Peek({first + i}).state();
    if (asked && (state == PageState::kAbsent || state == PageState::kLoading)) {
      read_ahead_.Missed({first}, end - first, spawn_);
      return;
    }
  }
}

Status StorageRegion::LoadEverything(const Progress& progress) {
  const uint64_t pages = states_.pages();
  std::array<PageIndex, PageRuns::kMaxPages> window;
  for (uint64_t at = 0; at < pages; at += window.size()) {
    const size_t count = std::min<uint64_t>(window.size(), pages - at);
    for (size_t i = 0; i < count; i++) {
      window[i] = {at + i};
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const uint32_t loaded, pager_.Load({window.data(), count}, Pager::Urgency::kAny));
    const auto present = [this](PageIndex page) { return states_.Peek(page).present(); };
    if (!std::all_of(window.begin(), window.begin() + static_cast<ptrdiff_t>(count), present)) {
      return Status::Error(ENOMEM, "load every page of the region: not enough frames");
    }
    if (progress) {
      progress((at + count) * kPageSize, pages * kPageSize);
    }
  }
  return Status::Ok();
}

bool StorageRegion::EndTasks() {
  if (!started_.exchange(false)) {
    return false;
  }
  while (faults_running_.load() > 0) {  // each of them has a deadline
    Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(2));
  }
  promoter_.Stop();
  read_ahead_.Stop();
  cleaner_.Stop();
  retirer_.Stop();
  return true;
}

Status StorageRegion::Stop() {
  if (!EndTasks()) {
    return Status::Ok();
  }
  const PageRange all{.first = {0}, .count = states_.pages()};
  RETURN_IF_ERROR(cleaner_.Flush({&all, 1}));
  RETURN_IF_ERROR(log_->Sync());  // marks that were only cleared
  return tier_->Remove();
}

Status StorageRegion::Flush(std::span<const PageRange> ranges) {
  for (const PageRange& range : ranges) {
    if (range.first.value > states_.pages() || range.count > states_.pages() - range.first.value) {
      return Status::Error(EINVAL, "flush pages beyond the region");
    }
  }
  return cleaner_.Flush(ranges);
}

Status StorageRegion::SetDramRatio(double ratio) {
  if (!HasFrames(kind_) || kind_ == RegionKind::kPin) {
    return Status::Error(EINVAL, std::string("a region of kind ") + std::string(driver::ToString(kind_)) +
                                     " has no DRAM tier to resize");
  }
  ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(kind_, states_.pages(), ratio));
  Status status = SetBudget(states_.pages(), frames);
  if (status.ok() || status.code() == ETIMEDOUT) {  // that is in force, too, though pages are beyond it for now
    ratio_.store(ratio);
  }
  return status;
}

Status StorageRegion::PrepareFrames(uint64_t pages, uint32_t frames) {
  if (frames <= frames_.limit()) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(tier_->CheckRoom(pages, frames, frames_.limit()));
  return frames_.Prepare(frames, nullptr);
}

// What cannot be had is refused before anything changes; where that was too hopeful, what was had goes back.
Status StorageRegion::SetBudget(uint64_t pages, uint32_t frames) {
  const uint32_t before = frames_.limit();
  if (frames > frames_.ready()) {
    RETURN_IF_ERROR(tier_->CheckRoom(pages, frames, frames_.ready()));
  }
  Status status = pager_.SetBudget(frames);
  if (!status.ok() && frames > before) {
    if (const Status undone = pager_.SetBudget(before); !undone.ok()) {
      LOG_WARNING("the DRAM tier stays larger than it was: {}", undone.ToString());
    }
  }
  if (frames_.ready() > frames_.limit()) {
    frames_.DropPrepared();
  }
  promoter_.Kick();
  return status;
}

// ---------------------------------------------------------------------------------------------------------------
// The region's size. See "A region that changes its size" in docs/design_notes.md.

Status StorageRegion::CheckGrowth(uint64_t pages) {
  if (MapsDevice(kind_)) {
    return Status::Error(ENOTSUP, "a region of kind " + std::string(driver::ToString(kind_)) +
                                      " maps its device and cannot change its size");
  }
  if (pages > tier_->max_pages()) {
    return Status::Error(EINVAL, "while it is served the region grows to at most " +
                                     ReadableSize(tier_->max_pages() << kPageBits) +
                                     "; after a restart of the server it has room for more");
  }
  ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(kind_, pages, ratio_.load()));
  return tier_->CheckRoom(pages, frames, frames_.limit());
}

// A READ of a page that was cut off must find a page that is absent, not fail: its client has an old map and will ask
// again. So the RNIC keeps those pages, and a region whose absent pages are faults could not shrink even if its device
// did.
Status StorageRegion::CheckShrink() const {
  return MapsDevice(kind_) ? Status::Error(ENOTSUP, "a region of kind " + std::string(driver::ToString(kind_)) +
                                                        " does not shrink while it is served")
                           : Status::Ok();
}

Status StorageRegion::MakeRoom(uint64_t pages) {
  RETURN_IF_ERROR(tier_->MakeRoom(pages));
  return term_->MakeRoom(pages);
}

Status StorageRegion::SetTierFor(uint64_t pages) {
  ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(kind_, pages, ratio_.load()));
  return HasFrames(kind_) ? SetBudget(pages, frames) : Status::Ok();
}

Status StorageRegion::ExtendDevice(uint64_t pages) {
  RETURN_IF_ERROR(devices_.pages->Resize(pages * kPageSize).WithContext("grow " + device_path_));
  if (devices_.log->size() < WrittenLog::BytesFor(pages)) {
    RETURN_IF_ERROR(devices_.log->Resize(WrittenLog::BytesFor(pages)).WithContext("grow the written log"));
  }
  RETURN_IF_ERROR(log_->Resize(pages));
  return devices_.label(pages);
}

Status StorageRegion::Resize(uint64_t pages) {
  const uint64_t before = states_.pages();
  if (pages < before) {
    const PageRange tail{.first = {pages}, .count = before - pages};
    RETURN_IF_ERROR(io_.Zero({&tail, 1}));
    states_.Resize(pages);
    policy_.Resize(pages);
    return Status::Ok();
  }
  RETURN_IF_ERROR(term_->Resize(std::max(pages, term_->pages())));
  policy_.Resize(pages);
  states_.Resize(pages);
  // Normally nothing is there. But who began to read of a page that was about to be cut off may have left it in a
  // frame.
  const PageRange added{.first = {before}, .count = pages - before};
  RETURN_IF_ERROR(io_.Zero({&added, 1}));
  return kind_ == RegionKind::kPin ? LoadEverything(nullptr) : Status::Ok();
}

Status StorageRegion::CutDevice(uint64_t pages) {
  tier_->GiveRoomBack(pages);
  RETURN_IF_ERROR(log_->Resize(pages));
  RETURN_IF_ERROR(devices_.label(pages));
  return devices_.pages->Resize(pages * kPageSize).WithContext("cut " + device_path_);
}

Status StorageRegion::SetFrameChoice(FrameChoice choice) {
  if (EffectiveChoice(kind_, choice) != choice) {
    return Status::Error(EINVAL, std::string("a region of kind ") + std::string(driver::ToString(kind_)) +
                                     " cannot choose its frames so");
  }
  policy_.SetChoice(choice);
  promoter_.Kick();
  return Status::Ok();
}

void StorageRegion::StartFault(PageIndex page) {
  faults_running_.fetch_add(1);
  const auto begin = std::chrono::steady_clock::now() + odp_delay_;
  spawn_([this, page, begin] {
    while (odp_delay_.count() > 0 && std::chrono::steady_clock::now() < begin) {
      Task::ParkUntil(begin);
    }
    if (const Status status = page.value < states_.pages() ? pager_.Fault(page) : Status::Error(EINVAL, "page fault");
        !status.ok()) {
      LOG_WARNING("page {}: {}", page.value, status.ToString());
      term_->FailFault(page);
    }
    faults_running_.fetch_sub(1);
  });
}

std::vector<MetricValue> StorageRegion::Gauges() const {
  return {{"region_pages", states_.pages()},
          {"frames_budget", frames_.limit()},
          {"frames_used", frames_.used()},
          {"frames_ready", frames_.ready()},
          {"frame_chunks_retiring", frames_.retiring()},
          {"pages_dirty", states_.dirty()},
          {"pages_present", states_.present()}};
}

}  // namespace

namespace {

void ReportFailures(const RegionOptions& options, const RegionEnvironment& environment, RegionDevices& devices) {
  std::function<std::string(uint64_t)> owner_of;
  if (environment.owner_of) {
    owner_of = [of = environment.owner_of](uint64_t offset) { return of({offset >> kPageBits}); };
  }
  devices.pages = std::make_unique<ReportingBlockDevice>(
      std::move(devices.pages),
      ReportingBlockDevice::Names{.path = options.device, .start = kRegionStart, .owner_of = std::move(owner_of)});
  devices.log = std::make_unique<ReportingBlockDevice>(std::move(devices.log),
                                                       ReportingBlockDevice::Names{.path = options.written_log});
}

}  // namespace

Result<std::unique_ptr<Region>> OpenRegionOn(const RegionOptions& options, RegionEnvironment environment,
                                             RegionDevices devices) {
  RETURN_IF_ERROR(CheckRegionOptions(options));
  ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(options.kind, options.pages, options.dram_ratio));
  RETURN_IF_ERROR(CheckDeviceSize(*devices.pages, options));
  ReportFailures(options, environment, devices);
  ASSIGN_OR_RETURN(auto log, WrittenLog::Open(*devices.log, options.pages));
  ASSIGN_OR_RETURN(auto bounce, BouncePool::Create(environment.nic, environment.domain, kBounceBytes));
  TierOptions tier_options = options.tier;
  tier_options.sparse_frames = environment.domain.SparseFrames(options.kind);
  tier_options.by_ratio = options.kind != RegionKind::kPin;
  ASSIGN_OR_RETURN(auto tier, TierStore::Open(tier_options, options.pages, options.max_pages, frames));
  auto fault_target = std::make_shared<std::atomic<Region*>>(nullptr);
  driver::TermRegionOptions term_options;
  term_options.kind = options.kind;
  term_options.pages = options.pages;
  term_options.max_pages = tier->max_pages();
  term_options.directory = tier->directory();
  term_options.resume = tier->resumed();
  RETURN_IF_ERROR(SecureRandom(term_options.pattern.line.data(), term_options.pattern.line.size()));
  if (options.kind == RegionKind::kOdp) {
    term_options.fault_handler = [fault_target](PageIndex page) {
      if (Region* const region = fault_target->load(); region != nullptr) {
        region->StartFault(page);
      }
    };
  }
  Result<std::unique_ptr<driver::TermRegion>> registered = environment.domain.RegisterTermRegion(term_options);
  if (!registered.ok()) {
    Status status = std::move(registered).status();
    return status.code() == EUCLEAN ? tier->Refusal(status) : status;
  }
  std::unique_ptr<driver::TermRegion> term = std::move(registered).value();
  if (frames > term->max_frames()) {
    return Status::Error(EINVAL, "the RNIC cannot hold that many frames");
  }
  return std::unique_ptr<Region>(std::make_unique<StorageRegion>(options, std::move(environment), std::move(devices),
                                                                 std::move(log), std::move(term), std::move(bounce),
                                                                 std::move(tier), frames, std::move(fault_target)));
}

Status Region::CheckMemory(const RegionOptions& options) {
  ASSIGN_OR_RETURN(const uint32_t frames, FramesFor(options.kind, options.pages, options.dram_ratio));
  std::vector<MemoryBound> bounds = MemoryBounds();
  for (MemoryBound& bound : bounds) {
    bound.available = bound.total;
  }
  return CheckTierFits({.pages = options.pages,
                        .frames = frames,
                        .max_pages = std::max(options.pages, options.max_pages),
                        .by_ratio = options.kind != RegionKind::kPin,
                        .spare = options.tier.spare_bytes},
                       TightestMemory(bounds));
}

}  // namespace termfs::tlib::server
