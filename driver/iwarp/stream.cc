// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/stream.h"

#include <utility>

namespace termfs::driver::iwarp {
namespace {

// What a request has come to that made the peer end the stream.
WcStatus StatusOf(const Error& error) {
  constexpr uint8_t kRemoteProtection = 1;
  constexpr uint8_t kTaggedBuffer = 1;
  if ((error.layer == Error::Layer::kRdmap && error.type == kRemoteProtection) ||
      (error.layer == Error::Layer::kDdp && error.type == kTaggedBuffer)) {
    return WcStatus::kRemAccessErr;
  }
  if (error == kNoReceive) {
    return WcStatus::kRnrRetryExcErr;
  }
  return error.layer == Error::Layer::kDdp ? WcStatus::kRemInvReqErr : WcStatus::kRemOpErr;
}

}  // namespace

Stream::Stream(const StreamOptions& options, RemoteMemory& memory, CompletionSink& completions)
    : options_(options),
      requester_(options.queue_pair, options.reads_of_ours, options.with_crc, completions),
      responder_(options.queue_pair, options.reads_of_peer, options.with_crc, memory, completions, options.receives),
      owes_ready_(options.dials),
      peer_is_ready_(options.dials) {}

// ---------------------------------------------------------------------------------------------------------------
// What arrives.

size_t Stream::Take(std::span<const std::byte> bytes) {
  size_t taken = 0;
  waits_for_receive_ = false;
  while (!failed_) {
    const auto rest = bytes.subspan(taken);
    const std::optional<size_t> length = FrameLength(rest);
    if (!length || *length > rest.size()) {
      return taken;
    }
    const std::variant<Taken, Error> result = OnFrame(rest.first(*length));
    if (const Error* const error = std::get_if<Error>(&result)) {
      Terminate(*error);
    } else if (std::get<Taken>(result) == Taken::kLater) {
      waits_for_receive_ = true;
      return taken;
    }
    taken += *length;
  }
  return bytes.size();
}

std::variant<Stream::Taken, Error> Stream::OnFrame(std::span<const std::byte> frame) {
  const std::variant<Unit, Error> decoded = Decode(frame, options_.with_crc);
  if (const Error* const error = std::get_if<Error>(&decoded)) {
    return *error;
  }
  const Unit& unit = std::get<Unit>(decoded);
  if (options_.waits_for_receives && !responder_.IsReadyFor(unit)) {
    return Taken::kLater;
  }
  peer_is_ready_ = true;
  std::optional<Error> error;
  if (unit.op == Op::kTerminate) {
    OnTerminate(unit);
  } else {
    error = unit.op == Op::kReadResponse ? requester_.OnReadResponse(unit) : responder_.OnUnit(unit);
  }
  return error ? std::variant<Taken, Error>(*error) : Taken::kYes;
}

void Stream::GiveUpWaiting() {
  waits_for_receive_ = false;
  Terminate(kNoReceive);
}

void Stream::OnTerminate(const Unit& unit) {
  error_ = DecodeTerminate(unit.payload).value_or(kUnspecified);
  Fail(StatusOf(*error_));
}

void Stream::Terminate(const Error& error) {
  error_ = error;
  owes_terminate_ = true;
  Fail(WcStatus::kFatalErr);
}

void Stream::Fail(WcStatus first) {
  if (!std::exchange(failed_, true)) {
    requester_.Fail(first);
    responder_.Fail();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// What is sent.

std::optional<Stream::Side> Stream::NextSide() const {
  if (message_open_) {
    return turn_;
  }
  const bool requests = requester_.has_unit();
  const bool responds = responder_.has_unit();
  if (requests && responds) {
    return turn_ == Side::kRequester ? Side::kResponder : Side::kRequester;
  }
  return requests ? std::optional(Side::kRequester) : responds ? std::optional(Side::kResponder) : std::nullopt;
}

bool Stream::has_output() const {
  return owes_terminate_ || (!failed_ && peer_is_ready_ && (owes_ready_ || NextSide().has_value()));
}

size_t Stream::Fill(std::span<std::byte> to) {
  size_t filled = 0;
  while (has_output()) {
    const std::optional<size_t> written = WriteOne(to.subspan(filled));
    if (!written) {
      break;
    }
    filled += *written;
  }
  return filled;
}

std::optional<size_t> Stream::WriteOne(std::span<std::byte> to) {
  if (to.size() < FrameBytes(Op::kReadRequest, kReadRequestBytes)) {  // all but payloads fit into that
    return std::nullopt;
  }
  if (owes_terminate_) {
    return WriteTerminate(to);
  }
  if (owes_ready_) {
    return WriteReady(to);
  }
  const Side side = *NextSide();
  Written written;
  if (side == Side::kRequester) {
    written = requester_.WriteUnit(to);
  } else {
    const std::variant<Written, Error> response = responder_.WriteUnit(to);
    if (const Error* const error = std::get_if<Error>(&response)) {
      Terminate(*error);
      return 0;
    }
    written = std::get<Written>(response);
  }
  if (written.bytes == 0) {
    return std::nullopt;
  }
  turn_ = side;
  message_open_ = !written.message_ends;
  return written.bytes;
}

// RFC 6581: of the units by which the end that dials may say that it is ready, the empty WRITE.
size_t Stream::WriteReady(std::span<std::byte> to) {
  owes_ready_ = false;
  Seal(Unit{.op = Op::kWrite}, options_.with_crc, to.data());
  return FrameBytes(Op::kWrite, 0);
}

size_t Stream::WriteTerminate(std::span<std::byte> to) {
  owes_terminate_ = false;
  Unit unit{.op = Op::kTerminate};
  unit.message = 1;
  unit.payload = to.subspan(PayloadAt(unit.op), kTerminateBytes);
  Encode(*error_, to.data() + PayloadAt(unit.op));
  Seal(unit, options_.with_crc, to.data());
  return FrameBytes(unit.op, kTerminateBytes);
}

}  // namespace termfs::driver::iwarp
