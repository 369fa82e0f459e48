// SPDX-License-Identifier: Apache-2.0
//
// The set-up side of the paired Nic.
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/mutex.h"
#include "driver/paired/dense_region.h"
#include "driver/paired/key_map.h"
#include "driver/paired/paired.h"
#include "driver/paired/queue_pair.h"
#include "driver/paired/sparse_region.h"

namespace termfs::driver {
namespace paired {
namespace {

// What the objects of a Nic share.
struct Pair {
  std::unique_ptr<Nic> local;
  std::unique_ptr<RdmaDevice> device;
  Status term_regions;             // of the device's driver
  std::atomic<bool> peers{false};  // a queue pair over the network was made
  Mutex mutex;
  std::weak_ptr<DeviceTermRegion> region GUARDED_BY(mutex);  // to count what it does; the last that was registered

  std::string way(RegionKind kind) const {
    if (!AllowsOneSidedRead(kind)) {
      return "";
    }
    if (kind == RegionKind::kTerm && term_regions.ok()) {
      return ", TeRM memory region";
    }
    if (WayOfDense(kind) != ReadWay::kValidated) {
      return ", RPC only: a region of kind " + std::string(ToString(kind)) + " is READ on this host only";
    }
    return ", validated READs" + (kind == RegionKind::kTerm ? ": " + std::string(term_regions.message()) : "");
  }
};

class PairedMemoryRegion final : public MemoryRegion {
 public:
  PairedMemoryRegion(std::unique_ptr<MemoryRegion> local, std::unique_ptr<MemoryRegion> device,
                     std::shared_ptr<KeyMap> keys)
      : local_(std::move(local)), device_(std::move(device)), keys_(std::move(keys)) {
    keys_->Add(local_->lkey(), local_->data(), local_->size(), device_->lkey());
  }
  ~PairedMemoryRegion() override { keys_->Remove(local_->lkey(), local_->data()); }
  PairedMemoryRegion(const PairedMemoryRegion&) = delete;
  PairedMemoryRegion& operator=(const PairedMemoryRegion&) = delete;

  LKey lkey() const override { return local_->lkey(); }
  RKey rkey() const override { return local_->rkey(); }
  std::byte* data() override { return local_->data(); }
  size_t size() const override { return local_->size(); }

 private:
  const std::unique_ptr<MemoryRegion> local_;
  const std::unique_ptr<MemoryRegion> device_;
  const std::shared_ptr<KeyMap> keys_;
};

class PairedDomain final : public ProtectionDomain {
 public:
  PairedDomain(std::shared_ptr<Pair> pair, std::unique_ptr<ProtectionDomain> local,
               std::unique_ptr<DeviceDomain> device, std::shared_ptr<KeyMap> keys)
      : pair_(std::move(pair)), keys_(std::move(keys)), local_(std::move(local)), device_(std::move(device)) {}

  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryRegion> local, local_->RegisterMemory(data, size, access));
    const Access here = Has(access, Access::kLocalWrite) ? Access::kLocalWrite : Access{};
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryRegion> device, device_->RegisterForeign(data, size, here));
    return std::unique_ptr<MemoryRegion>(
        std::make_unique<PairedMemoryRegion>(std::move(local), std::move(device), keys_));
  }

  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    TermRegionOptions own = options;
    own.sparse_frames = SparseFrames(options.kind);
    ASSIGN_OR_RETURN(std::unique_ptr<TermRegion> local, local_->RegisterTermRegion(own));
    if (own.sparse_frames) {
      const std::shared_ptr<const std::atomic<bool>> peers(pair_, &pair_->peers);
      return SparseRegion::Create(std::move(local), *device_, keys_, peers, [this](const auto& region) {
        MutexLock lock(pair_->mutex);
        pair_->region = region;
      });
    }
    return DenseRegion::Create(std::move(local), options.resume, *device_, keys_);
  }

  bool SparseFrames(RegionKind kind) const override { return kind == RegionKind::kTerm && pair_->term_regions.ok(); }

  // Each is of one RNIC's queue pairs only.
  Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options) override {
    return options.network ? device_->CreateSharedReceiveQueue(options) : local_->CreateSharedReceiveQueue(options);
  }

  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    auto* const send = static_cast<PairedCompletionQueue*>(options.send_cq);
    auto* const receive = static_cast<PairedCompletionQueue*>(options.recv_cq);
    if (send == nullptr || receive == nullptr) {
      return Status::Error(EINVAL, "create a queue pair: needs both completion queues");
    }
    QueuePairOptions own = options;
    if (!options.network) {
      own.send_cq = send->local();
      own.recv_cq = receive->local();
      return local_->CreateQueuePair(own);
    }
    own.send_cq = send->device();
    own.recv_cq = receive->device();
    pair_->peers.store(true, std::memory_order_relaxed);
    ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair, device_->CreateQueuePair(own));
    return std::unique_ptr<QueuePair>(std::make_unique<PairedQueuePair>(std::move(pair), *send, *receive));
  }

 private:
  const std::shared_ptr<Pair> pair_;
  const std::shared_ptr<KeyMap> keys_;
  const std::unique_ptr<ProtectionDomain> local_;
  const std::unique_ptr<DeviceDomain> device_;
};

class PairedNic final : public Nic {
 public:
  explicit PairedNic(std::shared_ptr<Pair> pair) : pair_(std::move(pair)) {}

  std::string transport(bool network) const override {
    return (network ? *pair_->device : *pair_->local).transport(network);
  }
  std::string RegionTransport(RegionKind kind, bool network) const override {
    return transport(network) + (network ? pair_->way(kind) : "");
  }
  std::vector<MetricValue> Metrics() const override {
    std::vector<MetricValue> values = pair_->device->Metrics();
    MutexLock lock(pair_->mutex);
    if (const std::shared_ptr<DeviceTermRegion> region = pair_->region.lock()) {
      values.push_back({"device_magic_reads_total", region->magic_reads()});
    }
    return values;
  }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return pair_->local->AllocateMemory(options);
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    auto keys = std::make_shared<KeyMap>();
    ASSIGN_OR_RETURN(std::unique_ptr<ProtectionDomain> local, pair_->local->CreateProtectionDomain());
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceDomain> device, pair_->device->CreateDeviceDomain(keys));
    return std::unique_ptr<ProtectionDomain>(
        std::make_unique<PairedDomain>(pair_, std::move(local), std::move(device), std::move(keys)));
  }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    return PairedCompletionQueue::Create(*pair_->local, *pair_->device, capacity);
  }

 private:
  const std::shared_ptr<Pair> pair_;
};

}  // namespace
}  // namespace paired

Result<std::unique_ptr<Nic>> CreatePairedNic(std::unique_ptr<Nic> local, std::unique_ptr<RdmaDevice> device) {
  RETURN_IF_ERROR(device->CheckPorts());
  Status term_regions = device->CheckTermRegions();
  if (!term_regions.ok() && term_regions.code() != EOPNOTSUPP) {
    return term_regions;
  }
  auto pair = std::make_shared<paired::Pair>();
  pair->local = std::move(local);
  pair->device = std::move(device);
  pair->term_regions = std::move(term_regions);
  return std::unique_ptr<Nic>(std::make_unique<paired::PairedNic>(std::move(pair)));
}

}  // namespace termfs::driver
