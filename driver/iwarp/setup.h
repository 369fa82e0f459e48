// SPDX-License-Identifier: Apache-2.0
//
// The set-up of an iWARP connection: the request of the end that dials and the other one's reply, before the first
// unit. Of RFC 6581's enhanced kind (revision 2). This end dials peer to peer: it sends the first unit, an empty WRITE.
// It also accepts clients that are not peer to peer, as the Linux kernel's siw: their first unit is whatever they send.
//
// Thread-safety: values and free functions.
// Errors:        EPROTO: no frame of a set-up, or one that this end cannot agree with.
// Source:        RFC 5044, section 7.1; RFC 6581, section 9.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace termfs::driver::iwarp {

enum class SetUpFrame : uint8_t { kRequest, kReply };

struct MpaSetUp {
  bool with_crc = true;       // a reply's counts; a request that asks for it has it
  bool with_markers = false;  // this end wants to receive them
  bool rejects = false;       // reply only
  bool peer_to_peer = true;
  bool ready_by_write = true;             // peer to peer: the first unit may be an empty WRITE; of a reply: has to be
  uint16_t reads_in = 0;                  // READ requests that this end queues (IRD), up to kMostReads
  uint16_t reads_out = 0;                 // and that it will have under way (ORD)
  std::vector<std::byte> private_data{};  // at most kMostPrivateData
};
inline constexpr uint16_t kMostReads = 0x3fff;
inline constexpr size_t kMostPrivateData = 508;
inline constexpr size_t kMostSetUpBytes = 20 + 4 + kMostPrivateData;

std::vector<std::byte> Encode(SetUpFrame frame, const MpaSetUp& set_up);

struct DecodedSetUp {
  MpaSetUp set_up;
  size_t bytes = 0;  // of it
};
// Absent: more bytes are needed.
Result<std::optional<DecodedSetUp>> DecodeSetUp(SetUpFrame frame, std::span<const std::byte> bytes);

// The reply of an end that queues `max_reads` and `wants_crc`; EPROTO: none is possible but a rejection.
Result<MpaSetUp> Accept(const MpaSetUp& request, uint16_t max_reads, bool wants_crc);
// Whether the end that sent `request` can go on after `reply`.
Status Check(const MpaSetUp& request, const MpaSetUp& reply);
// READ requests that the end that sent `own` may have under way.
uint16_t ReadsOut(const MpaSetUp& own, const MpaSetUp& peer);

}  // namespace termfs::driver::iwarp
