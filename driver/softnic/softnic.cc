// SPDX-License-Identifier: Apache-2.0
//
// The set-up side of the software RNIC: Nic, protection domain, memory and memory regions.
#include "driver/softnic/softnic.h"

#include <algorithm>
#include <utility>

#include "driver/softnic/completion_queue.h"
#include "driver/softnic/mapping.h"
#include "driver/softnic/network/network.h"
#include "driver/softnic/network/roce_queue_pair.h"
#include "driver/softnic/network/stream_queue_pair.h"
#include "driver/softnic/queue_pair.h"
#include "driver/softnic/registry.h"
#include "driver/softnic/rnic_thread.h"
#include "driver/softnic/shared_object.h"
#include "driver/softnic/term_region.h"

namespace termfs::driver {
namespace softnic {
namespace {

class SoftMemory final : public Memory {
 public:
  SoftMemory(std::shared_ptr<Registry> registry, std::shared_ptr<SharedObject> object)
      : registry_(std::move(registry)), object_(std::move(object)) {
    registry_->AddMemory(object_);
  }
  ~SoftMemory() override { registry_->RemoveMemory(*object_); }
  std::byte* data() override { return object_->data(); }
  size_t size() const override { return object_->size(); }

 private:
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<SharedObject> object_;
};

class SoftMemoryRegion final : public MemoryRegion {
 public:
  SoftMemoryRegion(std::shared_ptr<Registry> registry, std::byte* data, size_t size)
      : registry_(std::move(registry)), data_(data), size_(size) {}
  ~SoftMemoryRegion() override {
    registry_->RemoveExport(rkey_);
    registry_->RemoveLocal(lkey_);
  }
  LKey lkey() const override { return lkey_; }
  RKey rkey() const override { return rkey_; }
  std::byte* data() override { return data_; }
  size_t size() const override { return size_; }

  Status Register(uint32_t domain, Access access, std::shared_ptr<SharedObject> object) {
    ASSIGN_OR_RETURN(lkey_, registry_->AddLocal({domain, data_, size_, access}));
    if (!object) {
      return Status::Ok();
    }
    Export region;
    region.domain = domain;
    region.access = access;
    region.offset = static_cast<uint64_t>(data_ - object->data());
    region.size = size_;
    region.object = std::move(object);
    ASSIGN_OR_RETURN(rkey_, registry_->AddExport(std::move(region)));
    return Status::Ok();
  }

 private:
  const std::shared_ptr<Registry> registry_;
  std::byte* const data_;
  const size_t size_;
  LKey lkey_;
  RKey rkey_;
};

class SoftProtectionDomain final : public ProtectionDomain {
 public:
  SoftProtectionDomain(const NicParts& parts, bool validated_reads)
      : parts_(parts), validated_reads_(validated_reads), domain_(parts.registry->NewDomain()) {}

  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    const bool writable = Has(access, Access::kRemoteWrite) || Has(access, Access::kRemoteAtomic);
    if (data == nullptr || size == 0 || (writable && !Has(access, Access::kLocalWrite))) {
      return Status::Error(EINVAL, "register memory: empty, or remote write access without local write access");
    }
    std::shared_ptr<SharedObject> object;
    if (writable || Has(access, Access::kRemoteRead)) {
      object = parts_.registry->FindMemory(data, size);
      if (!object) {
        return Status::Error(EINVAL, "register memory for remote access that Nic::AllocateMemory did not give");
      }
      if (writable && !object->peers_may_write()) {
        return Status::Error(EPERM, "register memory for remote writing that was allocated for reading");
      }
    }
    auto region = std::make_unique<SoftMemoryRegion>(parts_.registry, data, size);
    RETURN_IF_ERROR(region->Register(domain_, access, std::move(object)));
    return std::unique_ptr<MemoryRegion>(std::move(region));
  }

  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    TermRegionOptions with_way = options;
    with_way.network_way = validated_reads_ ? ReadWay::kValidated : options.network_way;
    return SoftTermRegion::Create(parts_.registry, parts_.rnic, domain_, with_way);
  }

  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    if (options.network && options.network->wire == Wire::kIwarp) {
      return StreamQueuePair::Create(parts_.network, parts_.registry, domain_, options);
    }
    if (options.network) {
      return RoceQueuePair::Create(parts_.network, parts_.registry, domain_, options);
    }
    return SoftQueuePair::Create(parts_, domain_, options);
  }

  Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options) override {
    if (options.network) {
      return std::unique_ptr<SharedReceiveQueue>(std::make_unique<NetworkSharedReceives>(
          options, parts_.registry, domain_, [network = parts_.network] { network->streams().RetryWaiting(); }));
    }
    return std::unique_ptr<SharedReceiveQueue>(std::make_unique<LocalSharedReceives>(options));
  }

 private:
  const NicParts parts_;
  const bool validated_reads_;
  const uint32_t domain_;
};

class SoftNic final : public Nic {
 public:
  SoftNic(NicParts parts, bool validated_reads) : parts_(std::move(parts)), validated_reads_(validated_reads) {}

  std::string transport(bool network) const override {
    return network ? "softnic (RoCEv2 over UDP)" : "softnic (shared memory)";
  }

  bool Speaks(Wire) const override { return true; }
  bool MasksKeys() const override { return true; }
  void Adopt(AcceptedConnection connection) override { parts_.network->streams().Adopt(std::move(connection)); }

  std::vector<MetricValue> Metrics() const override {
    const NetworkCounters& counters = parts_.network->counters();
    return {{"network_packets_sent_total", counters.packets_sent},
            {"network_packets_received_total", counters.packets_received},
            {"network_packets_unsent_total", counters.unsent},
            {"network_packets_malformed_total", counters.malformed},
            {"network_packets_wrong_crc_total", counters.wrong_crc},
            {"network_packets_no_connection_total", counters.no_connection},
            {"network_packets_out_of_place_total", counters.out_of_place},
            {"network_retransmissions_total", counters.retransmissions},
            {"network_timeouts_total", counters.timeouts},
            {"network_refusals_total", counters.refusals},
            {"network_stream_sent_bytes_total", counters.stream_bytes_sent},
            {"network_tls_key_updates_total", counters.tls_key_updates},
            {"network_stream_received_bytes_total", counters.stream_bytes_received}};
  }

  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    SharedObjectOptions shared;
    shared.name = options.name;
    shared.bytes = options.bytes;
    shared.peers_may_write = options.peers_may_write;
    shared.allocate = !options.on_demand;
    shared.sparse = options.on_demand;
    ASSIGN_OR_RETURN(std::shared_ptr<SharedObject> object, SharedObject::Create(shared));
    return std::unique_ptr<Memory>(std::make_unique<SoftMemory>(parts_.registry, std::move(object)));
  }

  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    return std::unique_ptr<ProtectionDomain>(std::make_unique<SoftProtectionDomain>(parts_, validated_reads_));
  }

  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    return SoftCompletionQueue::Create(capacity);
  }

 private:
  const NicParts parts_;
  const bool validated_reads_;
};

}  // namespace
}  // namespace softnic

Result<std::unique_ptr<Nic>> CreateSoftNic(const SoftNicOptions& options) {
  std::optional<softnic::FaultOptions> faults;
  if (!options.network_faults.empty()) {
    ASSIGN_OR_RETURN(faults, softnic::ParseFaults(options.network_faults));
  }
  softnic::NicParts parts;
  ASSIGN_OR_RETURN(parts.registry, softnic::Registry::Create());
  ASSIGN_OR_RETURN(parts.rnic, softnic::RnicThread::Create(parts.registry));
  ASSIGN_OR_RETURN(parts.network,
                   softnic::Network::Create(parts.rnic, faults, options.socket_bytes, std::max(options.threads, 1U)));
  parts.mappings = std::make_shared<softnic::MappingCache>();
  return std::unique_ptr<Nic>(std::make_unique<softnic::SoftNic>(std::move(parts), options.validated_reads));
}

}  // namespace termfs::driver
