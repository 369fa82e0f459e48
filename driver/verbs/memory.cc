// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace termfs::driver::verbs {
namespace {

class MappedMemory final : public Memory {
 public:
  MappedMemory(std::byte* data, size_t size, std::shared_ptr<Allocations> allocations)
      : data_(data), size_(size), allocations_(std::move(allocations)) {}
  ~MappedMemory() override {
    allocations_->Forget(data_);
    munmap(data_, size_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  std::byte* data() override { return data_; }
  size_t size() const override { return size_; }

 private:
  std::byte* const data_;
  const size_t size_;
  const std::shared_ptr<Allocations> allocations_;
};

// The flags have verbs' values.
int FlagsOf(Access access) { return static_cast<int>(access); }

constexpr Access kRemote = Access::kRemoteRead | Access::kRemoteWrite | Access::kRemoteAtomic;
constexpr Access kRemoteChange = Access::kRemoteWrite | Access::kRemoteAtomic;

}  // namespace

Result<std::unique_ptr<Memory>> Allocations::Allocate(std::shared_ptr<Allocations> self, const MemoryOptions& options) {
  const size_t size = (options.bytes + kPageSize - 1) & ~(kPageSize - 1);
  // Shared: as Nic::AllocateMemory has it.
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) {
    return ErrnoStatus("allocate " + std::to_string(size) + " bytes");
  }
  madvise(at, size, MADV_DONTFORK);  // else a child's copy might be the one that the device knows
  auto* const data = static_cast<std::byte*>(at);
  {
    MutexLock lock(mutex_);
    allocations_[data] = {size, options.peers_may_write};
  }
  return std::unique_ptr<Memory>(std::make_unique<MappedMemory>(data, size, std::move(self)));
}

void Allocations::Forget(const std::byte* data) {
  MutexLock lock(mutex_);
  allocations_.erase(data);
}

Status Allocations::Check(const std::byte* data, size_t size, Access access) {
  MutexLock lock(mutex_);
  auto after = allocations_.upper_bound(data);
  if (after == allocations_.begin()) {
    return Status::Error(EINVAL, "register memory for remote access that was not allocated for it");
  }
  const auto& [start, allocation] = *--after;
  const auto offset = static_cast<size_t>(data - start);
  if (offset > allocation.size || size > allocation.size - offset) {
    return Status::Error(EINVAL, "register memory for remote access that was not allocated for it");
  }
  if ((static_cast<uint32_t>(access) & static_cast<uint32_t>(kRemoteChange)) != 0 && !allocation.peers_may_write) {
    return Status::Error(EPERM, "register memory for remote writing that peers may not write");
  }
  return Status::Ok();
}

Result<std::shared_ptr<Domain>> Domain::Create(std::shared_ptr<Device> device, std::shared_ptr<Allocations> allocations,
                                               std::shared_ptr<const LocalKeyMap> keys) {
  std::shared_ptr<Domain> domain(new Domain(std::move(device), std::move(allocations), std::move(keys)));
  domain->domain_.reset(ibv_alloc_pd(domain->device_->context()));
  if (domain->domain_ == nullptr) {
    return ErrnoStatus("create a protection domain");
  }
  return domain;
}

Result<std::unique_ptr<MemoryRegion>> VerbsMemoryRegion::Create(std::shared_ptr<Domain> domain, std::byte* data,
                                                                size_t size, Access access, bool foreign) {
  const bool remote = (static_cast<uint32_t>(access) & static_cast<uint32_t>(kRemote)) != 0;
  if (remote && !foreign) {
    RETURN_IF_ERROR(domain->allocations().Check(data, size, access));
  }
  std::unique_ptr<VerbsMemoryRegion> region(new VerbsMemoryRegion(std::move(domain), data, size));
  ibv_pd* const pd = region->domain_->get();
  region->local_.reset(ibv_reg_mr(pd, data, size, FlagsOf(access) & IBV_ACCESS_LOCAL_WRITE));
  // Verbs wants local writing wherever there is remote writing.
  if (region->local_ != nullptr && remote) {
    const bool changes = (static_cast<uint32_t>(access) & static_cast<uint32_t>(kRemoteChange)) != 0;
    region->remote_.reset(ibv_reg_mr_iova(pd, data, size, 0, FlagsOf(access) | (changes ? IBV_ACCESS_LOCAL_WRITE : 0)));
  }
  if (region->local_ == nullptr || (remote && region->remote_ == nullptr)) {
    return ErrnoStatus("register " + std::to_string(size) +
                       " bytes (is the limit of locked memory, ulimit -l, too low?)");
  }
  return std::unique_ptr<MemoryRegion>(std::move(region));
}

}  // namespace termfs::driver::verbs
