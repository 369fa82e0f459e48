// SPDX-License-Identifier: Apache-2.0
//
// FuseServer: from requests to replies, on both transports.
#include <linux/fuse.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "base/page.h"
#include "mount/cpu_list.h"
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::seconds kTurn{1};         // of a wait in a loop
constexpr std::chrono::milliseconds kGather{5};  // for more inodes that the kernel forgets

void IgnoreSignal(int) {}

void LetWake() {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, kWakeSignal);
  pthread_sigmask(SIG_UNBLOCK, &wake, nullptr);
}

}  // namespace

thread_local FuseServer::Worker* FuseServer::current_ = nullptr;

Result<std::span<const std::byte>> FuseThread::Read(const ReadArguments&) {
  return Status::Error(EOPNOTSUPP, "no READs here");
}

FuseThread& FuseServer::thread() {
  TERMFS_CHECK(current_ != nullptr);
  return *current_->state;
}

const RequestFacts& FuseServer::request() {
  TERMFS_CHECK(current_ != nullptr);
  return current_->facts;
}

std::chrono::steady_clock::time_point FuseServer::received() {
  TERMFS_CHECK(current_ != nullptr);
  return current_->guest.received;
}

std::span<const std::byte> FuseServer::Written(const char* data, size_t size) {
  TERMFS_CHECK(current_ != nullptr);
  if (current_->over_ring) {
    return current_->state->buffer().first(size);
  }
  return {reinterpret_cast<const std::byte*>(data), size};
}

Status FuseServer::PrepareSignals() {
  struct sigaction action {};
  action.sa_handler = &IgnoreSignal;  // without SA_RESTART: calls end with EINTR
  return sigaction(kWakeSignal, &action, nullptr) == 0 ? Status::Ok() : ErrnoStatus("install the wake-up signal");
}

void FuseServer::Serve(Worker& worker) {
  current_ = &worker;
  pthread_setname_np(pthread_self(), worker.cpu < 0 ? "termfs-fuse" : "termfs-ring");
  LetWake();
  if (worker.cpu >= 0 && AwaitRegistration(worker, PrepareRing(worker))) {
    ServeRing(worker);
  } else {
    ServeDevice(worker);
  }
  worker.ring.reset();
  current_ = nullptr;
  worker.finished.store(true, std::memory_order_release);  // pairs with Stop's load
}

Status FuseServer::PrepareRing(Worker& worker) {
  const auto cpu = static_cast<unsigned>(worker.cpu);
  BindToCpu(cpu);
  ASSIGN_OR_RETURN(worker.guest.command, FuseCommand::Create(cpu, kMaxIo));
  ASSIGN_OR_RETURN(worker.ring, FuseRing::Create(fuse_session_fd(session_), 1));
  return worker.guest.command->UseBuffer(worker.state->buffer(), worker.state->buffer_number());
}

bool FuseServer::AwaitRegistration(Worker& worker, Status prepared) {
  {
    MutexLock lock(mutex_);
    agreement_.prepared++;
    if (!prepared.ok()) {
      agreement_.why_not = std::move(prepared);
    }
    changed_.NotifyAll();
    while (!agreement_.answered && !stopping_.load(std::memory_order_relaxed)) {
      changed_.WaitFor(mutex_, kTurn);
    }
    if (!agreement_.rings) {
      return false;
    }
  }
  Status registered = worker.ring->Register(*worker.guest.command);
  MutexLock lock(mutex_);
  agreement_.registered++;
  changed_.NotifyAll();
  if (registered.ok()) {
    return true;
  }
  agreement_.refused++;
  agreement_.why_not = std::move(registered);
  return false;
}

void FuseServer::ServeDevice(Worker& worker) {
  readers_.fetch_add(1, std::memory_order_seq_cst);
  RestIfMany(worker);
  while (!stopping_.load(std::memory_order_relaxed) && ServeOne(worker)) {
    // The kernel keeps what it forgets until somebody reads, and hands it over at once then; one that reads already is
    // woken for each.
    if (IsForget(worker.facts) && BesideRings()) {
      std::this_thread::sleep_for(kGather);
    }
    RestIfMany(worker);
  }
}

bool FuseServer::BesideRings() {
  MutexLock lock(mutex_);
  return agreement_.rings && agreement_.refused == 0;
}

bool FuseServer::ServeOne(Worker& worker) {
  if (!backlog_.empty() && ServeBacklog(worker)) [[unlikely]] {
    return true;
  }
  // The payload of a write starts on the buffer's second page, all other requests are short.
  const std::span<std::byte> place = worker.state->buffer().subspan(kPageSize - kWriteHeaderBytes);
  const ssize_t got = read(worker.device.get(), place.data(), kMaxIo + kWriteHeaderBytes);
  if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
    return true;  // ENOENT: the caller gave up before the request was received
  }
  if (got <= 0) {
    NoteEnd(got);
    return false;
  }
  worker.guest.received = std::chrono::steady_clock::now();
  worker.reply_fd = worker.device.get();
  AnswerDevice(worker, place.first(static_cast<size_t>(got)));
  return true;
}

bool FuseServer::ServeBacklog(Worker& worker) {
  const std::optional<FuseBacklog::Item> item = backlog_.Pop();
  if (!item.has_value()) {
    return false;
  }
  TERMFS_CHECK(item->size <= kMaxIo + kWriteHeaderBytes);  // as much as the watch receives
  const std::span<std::byte> place = worker.state->buffer().subspan(kPageSize - kWriteHeaderBytes).first(item->size);
  std::memcpy(place.data(), item->bytes.get(), item->size);
  worker.guest.received = item->received;
  worker.reply_fd = item->fd;
  AnswerDevice(worker, place);
  return true;
}

void FuseServer::NoteEnd(ssize_t got) {
  if (got == 0 || (errno != ENODEV && errno != ECONNABORTED && errno != ENOTCONN)) {  // these: unmounted
    LOG_ERROR("receiving FUSE requests failed: {}", got == 0 ? "end of file" : std::strerror(errno));
  }
  if (!stopping_.load(std::memory_order_relaxed)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(ended_.get(), &one, sizeof(one));  // full: known already
  }
}

void FuseServer::AnswerDevice(Worker& worker, std::span<std::byte> request) {
  worker.facts = Examine(request);
  if (worker.facts.interrupts != 0) {
    Interrupt(worker.facts.interrupts);
    return;
  }
  std::byte* bytes = request.data();
  if (!IsWrite(worker.facts) && !IsHousekeeping(worker.facts)) {
    bytes = worker.aside.get();
    std::memcpy(bytes, request.data(), request.size());
  }
  if (worker.facts.opcode == FUSE_INIT) {
    MutexLock lock(mutex_);
    worker.facts.takes_ring = agreement_.offer;
  }
  EnterBusy();
  NoteBusy(worker.guest.received);
  Process(worker, bytes, request.size());
  LeaveBusy();
}

void FuseServer::Process(Worker& worker, std::byte* message, size_t length) {
  fuse_buf buffer{};
  buffer.size = length;
  buffer.mem = message;
  worker.guest.BeginRequest(worker.facts);
  const std::optional<ReadArguments> read =
      reads_past_libfuse_ ? ReadOf({message, length}) : std::optional<ReadArguments>{};
  if (read) {
    AnswerRead(worker, *read);
  } else {
    fuse_session_process_buf(session_, &buffer);
  }
  worker.guest.EndRequest();
}

void FuseServer::AnswerRead(Worker& worker, const ReadArguments& arguments) {
  if (worker.queue != nullptr) {
    worker.queue->reading.fetch_add(1, std::memory_order_relaxed);
  }
  ReadReply reply(worker.facts.unique, worker.state->Read(arguments));
  if (worker.queue != nullptr) {
    worker.queue->reading.fetch_sub(1, std::memory_order_relaxed);
  }
  if (Reply(worker, reply.parts()) < 0 && errno != ENOENT && errno != ENODEV) {
    LOG_WARNING("the reply to a READ was not taken: {}", std::strerror(errno));  // not: interrupted, unmounted
  }
}

void FuseServer::ServeRing(Worker& worker) {
  FuseCommand& command = *worker.guest.command;
  while (!stopping_.load(std::memory_order_relaxed)) {
    FuseRing::Arrival arrival;
    const Result<size_t> arrived = worker.ring->Take({&arrival, 1}, /*wait=*/true);
    if (!arrived.ok()) {
      errno = arrived.status().code();
      return NoteEnd(-1);
    }
    if (*arrived == 0) {
      continue;  // a signal came
    }
    if (arrival.event == FuseRing::Event::kRequest) {
      worker.guest.received = std::chrono::steady_clock::now();
      worker.guest.received_by_ring.Add();
      Receive(worker);
      FuseCarrier* const carrier = CarrierToUse(worker);
      if (carrier != nullptr) {
        worker.guest.BeginRequest(worker.facts);
        if (carrier->Carry(worker.guest, arrival) && arrival.event == FuseRing::Event::kRequest) {
          Receive(worker);  // perhaps another one
        }
      }
    }
    if (arrival.event != FuseRing::Event::kRequest) {
      errno = arrival.error;
      return NoteEnd(-1);
    }
    AnswerRing(worker);
    // The thread's buffer can have become another one.
    if (const Status usable = command.UseBuffer(worker.state->buffer(), worker.state->buffer_number()); !usable.ok()) {
      errno = usable.code();
      return NoteEnd(-1);
    }
    worker.ring->Send(command);
  }
  worker.ring->Submit();
}

void FuseServer::Receive(Worker& worker) {
  worker.facts = Examine(worker.guest.command->Head({worker.aside.get(), FuseCommand::kHeadBytes}));
}

// The request comes in three pieces; libfuse wants one. The payload of a write stays where it is.
void FuseServer::AnswerRing(Worker& worker) {
  FuseCommand& command = *worker.guest.command;
  std::byte* const message = worker.aside.get();  // the head is there
  const std::optional<size_t> operation = OperationBytes(worker.facts.opcode);
  size_t length = sizeof(fuse_in_header) + operation.value_or(0);
  worker.over_ring = true;
  worker.answered = false;
  if (operation) {
    if (!IsWrite(worker.facts)) {
      const size_t payload = command.payload_bytes();
      std::memcpy(message + length, worker.state->buffer().data(), payload);
      length += payload;
    } else if (WriteBytes({message, length}) != command.payload_bytes()) {
      length = 0;
    }
  }
  if (operation && length != 0) {
    Process(worker, message, length);
  }
  if (!worker.answered) {
    fuse_out_header out{.len = sizeof(out), .error = operation ? -EIO : -ENOSYS, .unique = worker.facts.unique};
    const iovec part{.iov_base = &out, .iov_len = sizeof(out)};
    command.Put({&part, 1});
  }
  worker.over_ring = false;
}

ssize_t FuseServer::WriteReply(int fd, iovec* parts, int count, void*) {
  const std::span<iovec> reply(parts, static_cast<size_t>(count));
  // A request is answered where it came from; a notification goes to the session's own descriptor.
  return current_ == nullptr ? writev(fd, parts, count) : current_->server->Reply(*current_, reply);
}

ssize_t FuseServer::ReadRequest(int fd, void* buffer, size_t size, void*) { return read(fd, buffer, size); }

ssize_t FuseServer::Reply(Worker& worker, std::span<iovec> parts) {
  fuse_out_header header{};
  std::memcpy(&header, parts[0].iov_base, sizeof(header));
  AmendReply(worker.facts, parts);
  if (worker.over_ring && header.unique == worker.facts.unique) {
    // The buffer can have become another one in the meantime.
    const Status usable = worker.guest.command->UseBuffer(worker.state->buffer(), worker.state->buffer_number());
    worker.answered = usable.ok();
    errno = usable.ok() ? EINVAL : usable.code();
    return usable.ok() && worker.guest.command->Put(parts) ? static_cast<ssize_t>(header.len) : -1;
  }
  const int fd = header.unique == worker.facts.unique && !worker.over_ring ? worker.reply_fd : worker.device.get();
  const ssize_t sent = writev(fd, parts.data(), static_cast<int>(parts.size()));
  if (worker.facts.opcode == FUSE_INIT && header.unique == worker.facts.unique) {
    const int error = errno;
    MutexLock lock(mutex_);
    agreement_.answered = true;
    agreement_.rings = sent >= 0 && header.error == 0 && agreement_.offer && OffersRing(worker.facts.offered);
    changed_.NotifyAll();
    errno = error;
  }
  return sent;
}

Status FuseServer::Stop(std::chrono::milliseconds limit) {
  stopping_.store(true, std::memory_order_relaxed);
  WakeAllThatRest();
  {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  {
    MutexLock lock(stand_ins_mutex_);  // who waits for a stand-in has it, and nobody gets one any more
  }
  StopCarriers();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (auto& worker : workers_) {
    // The signal can arrive just before the call; so it is sent until the thread is seen to have ended.
    while (worker->thread.joinable() && !worker->finished.load(std::memory_order_acquire)) {
      if (std::chrono::steady_clock::now() > deadline) {
        return Status::Error(ETIMEDOUT, "a FUSE thread did not end");
      }
      pthread_kill(worker->thread.native_handle(), kWakeSignal);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (worker->thread.joinable()) {
      worker->thread.join();
    }
  }
  StopWatch();
  ring_queues_.clear();  // it may have told a carrier
  for (auto& worker : workers_) {
    worker->state.reset();  // the watch has looked at its interruption
  }
  return Status::Ok();
}

}  // namespace termfs::mount
