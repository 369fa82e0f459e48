// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/term_region.h"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "driver/kernel/abi/uverbs_calls.h"

namespace termfs::driver::verbs {
namespace {

// Of a region that is READ from afar; advice wants local writing, though nothing is written by it.
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND | TERM_MR_ACCESS;

Status Failed(int error, const Device& device, const char* what) {
  return Status::Errno(error, std::string(what) + " of " + device.name());
}

}  // namespace

Status CheckTermVersion(const std::string& device, uint32_t version) {
  if (version == TERM_MR_ABI_VERSION) {
    return Status::Ok();
  }
  std::array<char, 256> text{};
  term_version_text(version, text.data(), text.size());
  return Status::Error(EPROTO, "use " + device + ": " + text.data());
}

Status CheckTermRegions(const std::shared_ptr<Device>& device) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Domain> domain, Domain::Create(device, std::make_shared<Allocations>()));
  void* const page = mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return ErrnoStatus("map a page");
  }
  const std::unique_ptr<void, void (*)(void*)> unmap(page, [](void* at) { munmap(at, kPageSize); });
  term_mr_info info{};
  {
    const RegionPtr plain(ibv_reg_mr(domain->get(), page, kPageSize, int{IBV_ACCESS_LOCAL_WRITE}));
    if (plain == nullptr) {
      return ErrnoStatus("register a page with " + device->name());
    }
    // A driver that knows TeRM regions says that this is none; all others know no such call.
    if (const int error = term_query_mr(plain.get(), &info); error != EOPNOTSUPP) {
      return Status::Error(EOPNOTSUPP, "the driver of " + device->name() + " has no TeRM memory regions");
    }
  }
  const RegionPtr region(ibv_reg_mr(domain->get(), page, kPageSize, kAccess));
  if (region == nullptr) {
    return ErrnoStatus("register a TeRM memory region with " + device->name());
  }
  if (const int error = term_query_mr(region.get(), &info); error != 0 && error != EPROTO) {
    return Failed(error, *device, "examine a TeRM memory region");
  }
  return CheckTermVersion(device->name(), info.abi_version);
}

Result<std::unique_ptr<DeviceTermRegion>> VerbsTermRegion::Create(std::shared_ptr<Domain> domain,
                                                                  const TermMappings& mappings) {
  std::unique_ptr<VerbsTermRegion> region(new VerbsTermRegion(std::move(domain), mappings));
  ibv_pd* const pd = region->domain_->get();
  const size_t bytes = mappings.pages << kPageBits;
  region->region_.reset(ibv_reg_mr_iova(pd, mappings.shown, bytes, 0, kAccess));
  if (region->region_ == nullptr) {
    return ErrnoStatus("register a TeRM memory region of " + std::to_string(bytes >> 20) + " MiB with " +
                       region->domain_->device().name());
  }
  region->local_.reset(ibv_reg_mr(pd, mappings.written, bytes, int{IBV_ACCESS_ON_DEMAND}));
  if (region->local_ == nullptr) {
    return ErrnoStatus("register the DRAM tier on demand with " + region->domain_->device().name());
  }
  RETURN_IF_ERROR(region->Query());
  return std::unique_ptr<DeviceTermRegion>(std::move(region));
}

Status VerbsTermRegion::Query() {
  const Device& device = domain_->device();
  term_mr_info info{};
  if (const int error = term_query_mr(region_.get(), &info); error != 0 && error != EPROTO) {
    return Failed(error, device, "examine the TeRM memory region");
  }
  RETURN_IF_ERROR(CheckTermVersion(device.name(), info.abi_version));
  if (info.page_size != kPageSize || info.pages != mappings_.pages ||
      info.bitmap_bytes < (mappings_.pages + 63) / 64 * sizeof(uint64_t)) {
    return Failed(EPROTO, device, "use the TeRM memory region (its pages are not what was registered)");
  }
  static_assert(sizeof(pattern_.line) == sizeof(info.pattern));
  std::memcpy(pattern_.line.data(), info.pattern, sizeof(info.pattern));
  void* const bitmap = mmap(nullptr, info.bitmap_bytes, PROT_READ, MAP_SHARED, device.context()->cmd_fd,
                            static_cast<off_t>(info.bitmap_offset));
  if (bitmap == MAP_FAILED) {
    return ErrnoStatus("map the bitmap of the TeRM memory region");
  }
  bitmap_ = {static_cast<const std::atomic<uint64_t>*>(bitmap), info.bitmap_bytes / sizeof(uint64_t)};
  return Status::Ok();
}

VerbsTermRegion::~VerbsTermRegion() {
  region_.reset();
  if (!bitmap_.empty()) {
    munmap(const_cast<std::atomic<uint64_t>*>(bitmap_.data()), bitmap_.size_bytes());
  }
}

Status VerbsTermRegion::Show(PageIndex first, uint32_t count) {
  const int error =
      term_advise_mr(region_.get(), IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, first.value << kPageBits, count << kPageBits);
  return error == 0 ? Status::Ok() : Failed(error, domain_->device(), "show pages");
}

// The mapping forgets the page, which stays in the file; the driver is told before, and shows the pattern.
void VerbsTermRegion::Hide(PageIndex page) {
  TERMFS_CHECK(madvise(mappings_.shown + (page.value << kPageBits), kPageSize, MADV_DONTNEED) == 0);
}

uint64_t VerbsTermRegion::magic_reads() const {
  term_mr_info info{};
  return term_query_mr(region_.get(), &info) == 0 ? info.magic_reads : 0;
}

}  // namespace termfs::driver::verbs
