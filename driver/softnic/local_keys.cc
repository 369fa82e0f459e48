// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/local_keys.h"

namespace termfs::driver::softnic {

bool LocalKeys::Find(LKey lkey, Entry* entry) {
  const uint64_t epoch = registry_->local_epoch();
  if (epoch != epoch_) {
    entries_.fill({});
    epoch_ = epoch;
  }
  const std::optional<LocalRegion> region = registry_->FindLocal(lkey);
  if (!region || region->domain != domain_) {
    return false;
  }
  *entry = {lkey.value, Has(region->access, Access::kLocalWrite), region->base, region->size};
  return true;
}

}  // namespace termfs::driver::softnic
