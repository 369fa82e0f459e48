// SPDX-License-Identifier: Apache-2.0
#include "driver/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace termfs::driver {

uint32_t Crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0U;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<size_t>(bytes.size(), size_t{1} << 30));  // it counts in int
    crc = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(part.data())),
                      static_cast<int>(part.size()), crc);
    bytes = bytes.subspan(part.size());
  }
  LeaveVectorRegisters();
  return ~crc;
}

}  // namespace termfs::driver
