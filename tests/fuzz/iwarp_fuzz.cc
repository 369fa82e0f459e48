// SPDX-License-Identifier: Apache-2.0
//
// Any bytes for both ends of an iWARP stream that has requests of every kind under way and receives posted: as they
// come, and as frames whose numbers are put right, so that they go deep. Nothing outside of what is allowed is read or
// changed, and each request and receive completes at most once. The same bytes as a set-up.
//
// The input is a row of pieces: a byte of flags (1: as a frame; 2: with the right number, key and offset; 4: with its
// CRC), a byte with the length, so many bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "driver/iwarp/setup.h"
#include "driver/iwarp/stream.h"

namespace termfs::driver::iwarp {
namespace {

constexpr RKey kRkey{0x1234};
constexpr size_t kMemory = 4 * kPageSize;

class End final : public RemoteMemory, public CompletionSink {
 public:
  bool Allows(RKey rkey, uint64_t offset, uint64_t length, Access) override {
    return rkey == kRkey && offset <= kMemory && length <= kMemory - offset;
  }
  bool Read(RKey rkey, uint64_t offset, std::span<std::byte> to) override {
    TERMFS_CHECK(Allows(rkey, offset, to.size(), Access::kRemoteRead));
    std::copy_n(memory_.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    return true;
  }
  bool Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) override {
    TERMFS_CHECK(Allows(rkey, offset, from.size(), Access::kRemoteWrite));
    std::copy(from.begin(), from.end(), memory_.begin() + static_cast<ptrdiff_t>(offset));
    return true;
  }
  bool CompareSwap(RKey, uint64_t, uint64_t, uint64_t, uint64_t*) override { return false; }
  bool FetchAdd(RKey, uint64_t, uint64_t, uint64_t*) override { return false; }
  void OnSend(const WorkCompletion& completion) override {
    TERMFS_CHECK(!std::exchange(sent_.at(completion.id), true));
  }
  void OnUnsignaledSend() override {}
  void OnReceive(const WorkCompletion& completion) override {
    TERMFS_CHECK(!std::exchange(received_.at(completion.id), true));
    TERMFS_CHECK(completion.byte_len <= kPageSize);
  }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMemory);
  std::array<bool, 8> sent_{};
  std::array<bool, 8> received_{};
};

void TrySetUp(std::span<const std::byte> input) {
  for (const SetUpFrame frame : {SetUpFrame::kRequest, SetUpFrame::kReply}) {
    const auto decoded = DecodeSetUp(frame, input);
    if (decoded.ok() && decoded.value().has_value()) {
      const MpaSetUp& set_up = decoded.value()->set_up;
      TERMFS_CHECK(decoded.value()->bytes <= input.size() && set_up.private_data.size() <= kMostPrivateData);
      const auto reply = Accept(set_up, kMaxReads, true);
      TERMFS_CHECK(!reply.ok() || Check(set_up, reply.value()).ok());
    }
  }
}

// A frame around `bytes`, which are a segment: with numbers, and a CRC, that fit.
std::vector<std::byte> Framed(std::span<const std::byte> bytes, uint8_t flags, uint32_t number) {
  std::vector<std::byte> frame(FrameBytesOf(bytes.size()));
  frame[1] = static_cast<std::byte>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), frame.begin() + kLengthBytes);
  auto decoded = Decode(frame, false);
  if (Unit* const unit = std::get_if<Unit>(&decoded); unit != nullptr && (flags & 4) != 0) {
    if ((flags & 2) != 0) {
      unit->message = number;
      unit->key = unit->op == Op::kReadResponse ? RKey{number} : kRkey;
      unit->offset &= 0x3fff;
      unit->message_offset &= 0xf;
    }
    Seal(*unit, true, frame.data());
  }
  return frame;
}

void TryPieces(std::span<const std::byte> input, bool dials) {
  End end;
  Stream stream({.dials = dials, .reads_of_ours = 2, .reads_of_peer = 4}, end, end);
  std::vector<std::vector<std::byte>> buffers(16, std::vector<std::byte>(kPageSize));
  for (uint64_t i = 0; i < 8; i++) {
    stream.Post(RecvWorkRequest{.id = i, .local = {.addr = buffers[i].data(), .length = kPageSize}});
    constexpr std::array<Opcode, 4> kKinds = {Opcode::kRdmaRead, Opcode::kSend, Opcode::kRdmaRead, Opcode::kRdmaWrite};
    SendWorkRequest request;
    request.id = i;
    request.opcode = kKinds[i % kKinds.size()];
    request.local = {.addr = buffers[8 + i].data(), .length = static_cast<uint32_t>(kPageSize >> i)};
    request.rkey = kRkey;
    stream.Post(request);
  }
  std::vector<std::byte> output(kMostFrameBytes);
  std::vector<std::byte> arrived;
  uint32_t number = 1;
  while (input.size() > 2) {
    const uint8_t flags = std::to_integer<uint8_t>(input[0]);
    const size_t length = std::min<size_t>(std::to_integer<size_t>(input[1]), input.size() - 2);
    const auto piece = input.subspan(2, length);
    input = input.subspan(2 + length);
    const auto frame =
        (flags & 1) != 0 ? Framed(piece, flags, number++) : std::vector<std::byte>(piece.begin(), piece.end());
    arrived.insert(arrived.end(), frame.begin(), frame.end());
    const size_t taken = stream.Take(arrived);
    TERMFS_CHECK(taken <= arrived.size() && arrived.size() - taken < kMostFrameOfPeer);
    arrived.erase(arrived.begin(), arrived.begin() + static_cast<ptrdiff_t>(taken));
    TERMFS_CHECK(stream.Fill(output) <= output.size());
  }
}

}  // namespace
}  // namespace termfs::driver::iwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  termfs::driver::iwarp::TrySetUp(input);
  termfs::driver::iwarp::TryPieces(input, true);
  termfs::driver::iwarp::TryPieces(input, false);
  return 0;
}
