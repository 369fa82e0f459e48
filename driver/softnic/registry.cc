// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/registry.h"

#include "base/check.h"
#include "base/random.h"

namespace termfs::driver::softnic {
namespace {

// A slot is used again when so many others have been freed since, or when there is no other.
constexpr size_t kRestingSlots = 1024;

// A key that is not in `taken`, hard to guess, and never 0.
template <typename Map>
Result<uint32_t> RandomKey(const Map& taken) {
  for (;;) {
    uint32_t key = 0;
    RETURN_IF_ERROR(SecureRandom(&key, sizeof(key)));
    if (key != 0 && !taken.contains(key)) {
      return key;
    }
  }
}

}  // namespace

Result<std::shared_ptr<Registry>> Registry::Create() {
  std::shared_ptr<Registry> registry(new Registry);
  SharedObjectOptions options;
  options.name = "softnic-keys";
  options.bytes = kValidityBytes;
  options.allocate = false;
  options.sparse = true;  // most of it is never used
  ASSIGN_OR_RETURN(registry->validity_, SharedObject::Create(options));
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(registry->serving(), &attributes);
  pthread_mutexattr_destroy(&attributes);
  return registry;
}

void Registry::BeginServing() { TERMFS_CHECK(pthread_mutex_lock(serving()) == 0); }

void Registry::EndServing() { pthread_mutex_unlock(serving()); }

Result<LKey> Registry::AddLocal(const LocalRegion& region) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const uint32_t key, RandomKey(local_));
  local_.emplace(key, region);
  return LKey{key};
}

void Registry::RemoveLocal(LKey lkey) {
  MutexLock lock(mutex_);
  local_.erase(lkey.value);
  local_epoch_.fetch_add(1, std::memory_order_release);
}

std::optional<LocalRegion> Registry::FindLocal(LKey lkey) const {
  MutexLock lock(mutex_);
  const auto found = local_.find(lkey.value);
  return found == local_.end() ? std::nullopt : std::optional(found->second);
}

Result<RKey> Registry::AddExport(Export region) {
  MutexLock lock(mutex_);
  const bool fresh = free_slots_.size() < kRestingSlots && fresh_slot_ < kValiditySlots;
  if (!fresh && free_slots_.empty()) {
    return Status::Error(ENOSPC, "register more than 65536 memory regions for remote access");
  }
  ASSIGN_OR_RETURN(const uint32_t key, RandomKey(exports_));
  if (fresh) {
    region.validity_slot = fresh_slot_++;
  } else {
    region.validity_slot = free_slots_.front();
    free_slots_.pop_front();
  }
  region.validity_generation = ValidityWord(region.validity_slot).fetch_add(1, std::memory_order_release) + 1;
  exports_.emplace(key, std::make_shared<const Export>(std::move(region)));
  return RKey{key};
}

void Registry::RemoveExport(RKey rkey) {
  MutexLock lock(mutex_);
  const auto found = exports_.find(rkey.value);
  if (found == exports_.end()) {
    return;
  }
  const uint32_t slot = found->second->validity_slot;
  ValidityWord(slot).fetch_add(1, std::memory_order_seq_cst);
  free_slots_.push_back(slot);
  exports_.erase(found);
}

std::shared_ptr<const Export> Registry::FindExport(RKey rkey, uint32_t domain) const {
  MutexLock lock(mutex_);
  const auto found = exports_.find(rkey.value);
  return found == exports_.end() || found->second->domain != domain ? nullptr : found->second;
}

void Registry::AddMemory(const std::shared_ptr<SharedObject>& object) {
  MutexLock lock(mutex_);
  memory_.emplace(object->data(), object);
}

void Registry::RemoveMemory(const SharedObject& object) {
  MutexLock lock(mutex_);
  memory_.erase(object.data());
}

std::shared_ptr<SharedObject> Registry::FindMemory(const std::byte* data, size_t size) const {
  MutexLock lock(mutex_);
  auto after = memory_.upper_bound(data);
  if (after == memory_.begin()) {
    return nullptr;
  }
  const std::shared_ptr<SharedObject>& object = std::prev(after)->second;
  const size_t offset = static_cast<size_t>(data - object->data());
  return offset <= object->size() && size <= object->size() - offset ? object : nullptr;
}

}  // namespace termfs::driver::softnic
