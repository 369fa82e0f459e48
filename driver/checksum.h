// SPDX-License-Identifier: Apache-2.0
//
// Checksums of what goes over a wire, by ISA-L.
//
// Thread-safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace termfs::driver {

// CRC32C (Castagnoli), as iSCSI and MPA have it.
uint32_t Crc32c(std::span<const std::byte> bytes);

// After a call of ISA-L's: it leaves with the upper halves of the vector registers in use, which costs the next SSE
// instruction some hundred cycles: a sixth of all the time that READs of a page took.
inline void LeaveVectorRegisters() {
#if defined(__x86_64__)
  static const bool has_avx = __builtin_cpu_supports("avx") != 0;
  if (has_avx) {
    asm volatile("vzeroupper");  // the lower halves, all that is used without AVX, stay
  }
#endif
}

}  // namespace termfs::driver
