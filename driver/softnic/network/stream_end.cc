// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/stream_end.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "driver/softnic/network/stream_loop.h"

namespace termfs::driver::softnic {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr size_t kSealedInputBytes = 64 << 10;  // which is opened to another place: both stay in the caches
constexpr int kInputsInTurn = 16;               // before others have their turn; what is readable calls again
constexpr size_t kKeptBytes = 4 << 10;

// Large: one for each thread that receives, and one for each that sends.
std::span<std::byte> InputOfThisThread() {
  constexpr size_t kBytes = kInputBytes + iwarp::kMostFrameOfPeer;
  thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  return {buffer.get(), kBytes};
}

std::span<std::byte> OutputOfThisThread() {
  thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(StreamEnd::kOutputBytes);
  return {buffer.get(), StreamEnd::kOutputBytes};
}

// Of streams inside TLS: what was received, and what is to be sent.
std::span<std::byte> SealedInputOfThisThread() {
  thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kSealedInputBytes);
  return {buffer.get(), kSealedInputBytes};
}

std::span<std::byte> SealedOutputOfThisThread() {
  constexpr size_t kBytes = TlsSession::SealedBytes(StreamEnd::kOutputBytes);
  thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  return {buffer.get(), kBytes};
}

static_assert(TlsSession::OpenedBytes(kSealedInputBytes) <= kInputBytes);

}  // namespace

StreamEnd::StreamEnd(StreamLoop& loop, NetworkCounters& counters, ExportedMemory memory,
                     const iwarp::StreamOptions& options, std::chrono::milliseconds receive_patience,
                     QueuePairCounts* owner, std::shared_ptr<CompletionInlet> sends,
                     std::shared_ptr<CompletionInlet> receives, bool shares_receives)
    : loop_(loop),
      counters_(counters),
      number_(options.queue_pair),
      receive_patience_(receive_patience),
      secure_(!options.with_crc),
      completions_(owner, std::move(sends), std::move(receives), shares_receives),
      memory_(std::move(memory)),
      stream_(options, memory_, completions_) {}

Status StreamEnd::Start(UniqueFd socket, std::unique_ptr<TlsSession> tls, std::span<const std::byte> early,
                        uint16_t max_reads) {
  {
    MutexLock lock(mutex_);
    if (started_.load(std::memory_order_relaxed)) {
      return Status::Error(EISCONN, "start a stream a second time");
    }
    if (stream_.failed()) {
      return Status::Error(EPIPE, "start a stream that is closed");
    }
    TERMFS_CHECK(secure_ == (tls != nullptr));
    socket_ = std::move(socket);
    tls_ = std::move(tls);
    stream_.SetReadsOfOurs(max_reads);
    partial_.assign(early.begin(), early.end());
    started_.store(true, std::memory_order_release);
  }
  Open();
  return Status::Ok();
}

void StreamEnd::Enable() {
  {
    MutexLock lock(mutex_);
    enabled_.store(true, std::memory_order_release);
  }
  Open();
}

// When both have happened.
void StreamEnd::Open() {
  {
    MutexLock lock(mutex_);
    if (!started() || !enabled_.load(std::memory_order_relaxed) || std::exchange(opening_, true)) {
      return;
    }
  }
  const std::vector<std::byte> early = std::exchange(partial_, {});
  const auto rest = Take(early);
  partial_.assign(rest.begin(), rest.end());
  open_.store(true, std::memory_order_release);
  if (!polled_ && !waits_for_receive_.load(std::memory_order_relaxed)) {
    loop_.WatchInput(*this);
  }
}

void StreamEnd::Post(std::span<const SendWorkRequest> requests, WcStatus local_error) {
  MutexLock lock(mutex_);
  const bool refuses = local_error != WcStatus::kSuccess && !stream_.failed();
  for (const SendWorkRequest& request : refuses ? requests.first(requests.size() - 1) : requests) {
    stream_.Post(request);
  }
  if (refuses) {
    stream_.Fail(WcStatus::kWrFlushErr);
    WorkCompletion completion;
    completion.id = requests.back().id;
    completion.status = local_error;
    completion.opcode = requests.back().opcode;
    completion.qp_num = number_;
    completions_.OnSend(completion);
  }
  Finish();
}

void StreamEnd::Post(std::span<const RecvWorkRequest> requests) {
  MutexLock lock(mutex_);
  for (const RecvWorkRequest& request : requests) {
    stream_.Post(request);
  }
  completions_.WakeReceives();
  if (stream_.waits_for_receive() && !polled_) {
    loop_.RetryWaiting();
  }
}

void StreamEnd::Close(bool detach) {
  MutexLock lock(mutex_);
  if (detach) {
    completions_.Detach();
  }
  stream_.Fail(WcStatus::kWrFlushErr);
  unsent_.clear();
  Finish();
}

// ---------------------------------------------------------------------------------------------------------------
// What arrives.

void StreamEnd::Receive() {
  if (!open_.load(std::memory_order_acquire)) {
    return;
  }
  if (waits_for_receive_.load(std::memory_order_relaxed) && !TakeWaiting()) {
    return;
  }
  for (int turn = 0; turn < kInputsInTurn; turn++) {
    const auto room = secure_ ? SealedInputOfThisThread() : InputOfThisThread().subspan(partial_.size());
    const ssize_t got = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    if (got <= 0 || !TakeReceived(room.first(static_cast<size_t>(got)))) {
      Lost();
      return;
    }
    Count(counters_.stream_bytes_received, static_cast<uint64_t>(got));
    if (waits_for_receive_.load(std::memory_order_relaxed)) {
      if (!polled_) {
        loop_.IgnoreInput(*this);
      }
      return;
    }
    if (static_cast<size_t>(got) < room.size()) {
      return;
    }
  }
}

bool StreamEnd::TakeReceived(std::span<const std::byte> bytes) {
  if (secure_) {
    return TakeSealed(bytes);
  }
  const std::span<std::byte> input = InputOfThisThread();  // in which the bytes are
  std::copy(partial_.begin(), partial_.end(), input.begin());
  const auto rest = Take(input.first(partial_.size() + bytes.size()));
  partial_.assign(rest.begin(), rest.end());
  return true;
}

bool StreamEnd::TakeSealed(std::span<const std::byte> sealed) {
  const std::span<std::byte> input = InputOfThisThread();
  MutexLock lock(mutex_);
  const Result<size_t> opened = tls_->Open(sealed, input.subspan(partial_.size()));
  if (!opened.ok()) {
    Count(counters_.malformed);
    LOG_DEBUG("a connection of the data path: {}", opened.status().ToString());
    return false;
  }
  std::copy(partial_.begin(), partial_.end(), input.begin());
  const auto rest = TakeLocked(input.first(partial_.size() + opened.value()));
  partial_.assign(rest.begin(), rest.end());
  return true;
}

std::span<const std::byte> StreamEnd::Take(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  return TakeLocked(bytes);
}

std::span<const std::byte> StreamEnd::TakeLocked(std::span<const std::byte> bytes) {
  const size_t taken = stream_.Take(bytes);
  waits_for_receive_.store(stream_.waits_for_receive(), std::memory_order_relaxed);
  awaited_ = false;  // what has come is progress
  Finish();
  return bytes.subspan(taken);
}

// The peer is gone, or the connection to it.
void StreamEnd::Lost() {
  loop_.Unwatch(*this);
  MutexLock lock(mutex_);
  GiveUpSending();
  Finish();
}

bool StreamEnd::TakeWaiting() {
  const std::vector<std::byte> waiting = std::exchange(partial_, {});
  const auto rest = Take(waiting);
  partial_.assign(rest.begin(), rest.end());
  return !waits_for_receive_.load(std::memory_order_relaxed);
}

void StreamEnd::Retry() {
  if (!polled_ && waits_for_receive() && open_.load(std::memory_order_acquire) && TakeWaiting()) {
    loop_.WatchInput(*this);
  }
}

void StreamEnd::OnTimer(TimePoint now) {
  Retry();
  MutexLock lock(mutex_);
  if (stream_.waits_for_receive() && now >= waits_since_ + receive_patience_) {
    stream_.GiveUpWaiting();
    Finish();
  } else if (!stream_.waits_for_receive() && now >= deadline()) {
    Count(counters_.timeouts);
    stream_.Fail(WcStatus::kRetryExcErr);
    Finish();
  }
}

void StreamEnd::NoteDeadline() {
  if (stream_.waits_for_receive() && !stream_.failed()) {
    waits_since_ = waits_since_ == TimePoint() ? std::chrono::steady_clock::now() : waits_since_;
    deadline_.store(0, std::memory_order_seq_cst);  // with each tick
    loop_.KeepTime();
    return;
  }
  waits_since_ = {};
  const bool awaits = stream_.awaits_answer();
  if (awaits && awaited_) {
    return;
  }
  awaited_ = awaits;
  const TimePoint at = awaits ? std::chrono::steady_clock::now() + kPatience : TimePoint::max();
  // Sequentially consistent, as is the timer's stop (network.cc): one sees the other.
  deadline_.store(at.time_since_epoch().count(), std::memory_order_seq_cst);
}

// ---------------------------------------------------------------------------------------------------------------
// What is sent.

void StreamEnd::OnRoom() {
  MutexLock lock(mutex_);
  waits_for_room_ = false;
  Finish();
}

void StreamEnd::Finish() {
  if (stream_.failed()) {
    completions_.ReportEnd(number_);  // before the peer can know of it
  }
  Send();
  NoteDeadline();
  if (stream_.failed()) {
    completions_.ReportEnd(number_);
    if (started_.load(std::memory_order_relaxed) && unsent_.empty() && !std::exchange(shut_, true)) {
      shutdown(socket_.get(), SHUT_RDWR);
      if (polled_) {
        loop_.Bury(socket_.get());
      }
    }
  }
  completions_.Wake();
}

void StreamEnd::Send() {
  if (!opening_ || waits_for_room_) {
    return;
  }
  if (!unsent_.empty()) {
    if (!SendBytes(std::span(unsent_).subspan(unsent_from_))) {
      return;
    }
    unsent_.clear();
    unsent_from_ = 0;
    if (unsent_.capacity() > kKeptBytes) {
      unsent_.shrink_to_fit();
    }
  }
  while (!lost_ && stream_.has_output()) {
    const auto output = OutputOfThisThread();
    if (!SendFilled(output.first(stream_.Fill(output)))) {
      return;
    }
  }
}

bool StreamEnd::SendFilled(std::span<const std::byte> filled) {
  if (tls_ == nullptr) {
    return SendBytes(filled);
  }
  const auto output = SealedOutputOfThisThread();
  const uint64_t updates = tls_->key_updates();
  const Result<size_t> sealed = tls_->Seal(filled, output);
  if (tls_->key_updates() != updates) {
    Count(counters_.tls_key_updates);
  }
  if (!sealed.ok()) {
    LOG_WARNING("a connection of the data path: {}", sealed.status().ToString());
    GiveUpSending();
    return false;
  }
  return SendBytes(output.first(sealed.value()));
}

void StreamEnd::GiveUpSending() {
  lost_ = true;
  unsent_.clear();
  unsent_from_ = 0;
  stream_.Fail(WcStatus::kRetryExcErr);
}

// False: the socket is full, and what it has not taken is kept; or the connection is lost.
bool StreamEnd::SendBytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      Count(counters_.stream_bytes_sent, static_cast<uint64_t>(sent));
      bytes = bytes.subspan(static_cast<size_t>(sent));
      continue;
    }
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0 && errno == EAGAIN) {
      break;
    }
    GiveUpSending();
    return false;
  }
  if (bytes.empty()) {
    return true;
  }
  if (unsent_.empty()) {
    unsent_.assign(bytes.begin(), bytes.end());
    unsent_from_ = 0;
  } else {
    unsent_from_ = unsent_.size() - bytes.size();
  }
  waits_for_room_ = true;
  loop_.WatchRoom(*this);
  return false;
}

}  // namespace termfs::driver::softnic
