// SPDX-License-Identifier: Apache-2.0
//
// The watch of a FuseServer: what goes on when every thread waits.
//
//   asleep --all threads busy--> looking, now and then --no answer since the last look--> receiving
//     ^                             |  ^                                                     |
//     +----not all busy-------------+  +----------an answer was given, or a thread is free---+
//
// What it receives while others are free already goes to the backlog too, and a free thread is woken for it.
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <cstring>

#include "base/log.h"
#include "base/page.h"
#include "mount/caller_signals.h"
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two looks whether there was an answer
constexpr std::chrono::milliseconds kNudge{5};  // between two attempts to wake a thread for the backlog
constexpr int kLookAtCallersMs = 200;           // between two looks whether a caller is about to end

// Of a request: as much as a thread receives itself.
size_t Largest() { return kMaxIo + kWriteHeaderBytes; }

}  // namespace

Status FuseServer::StartWatch() {
  watch_.wake = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watch_.wake.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  watch_.buffer = std::make_unique_for_overwrite<std::byte[]>(Largest());
  ASSIGN_OR_RETURN(watch_.device, CloneDevice());
  if (fcntl(watch_.device.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus("make a FUSE device non-blocking");
  }
  watch_.thread = std::thread([this] { Watch(); });
  return Status::Ok();
}

void FuseServer::WakeWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(watch_.wake.get(), &one, sizeof(one));  // full: it is awake
}

void FuseServer::StopWatch() {
  while (watch_.thread.joinable() && !watch_.finished.load(std::memory_order_acquire)) {
    WakeWatch();
    pthread_kill(watch_.thread.native_handle(), kWakeSignal);  // it may sit in a read
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (watch_.thread.joinable()) {
    watch_.thread.join();
  }
}

void FuseServer::SleepUntilAllBusy() {
  watch_.asleep.store(true, std::memory_order_seq_cst);
  if (!AllBusy() && !stopping_.load(std::memory_order_relaxed)) {
    pollfd woken{.fd = watch_.wake.get(), .events = POLLIN, .revents = 0};
    poll(&woken, 1, kLookAtCallersMs);
  }
  watch_.asleep.store(false, std::memory_order_seq_cst);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(watch_.wake.get(), &count, sizeof(count));  // nothing there: fine
}

void FuseServer::Watch() {
  pthread_setname_np(pthread_self(), "termfs-watch");
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, kWakeSignal);
  pthread_sigmask(SIG_UNBLOCK, &wake, nullptr);
  uint64_t answered = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    LookAtCallers();
    if (!backlog_.empty() && !AllBusy()) {
      WakeForBacklog();
      std::this_thread::sleep_for(kNudge);
    } else if (!AllBusy()) {
      SleepUntilAllBusy();
    } else if (const uint64_t now = requests(); now != answered) {
      answered = now;
      std::this_thread::sleep_for(kLook);
    } else if (!backlog_.HasRoom(Largest())) {
      std::this_thread::sleep_for(kLook);  // interrupts wait with the others now
    } else if (!ReceiveAside(kLook)) {
      break;
    }
  }
  watch_.finished.store(true, std::memory_order_release);  // pairs with StopWatch's load
}

bool FuseServer::ReceiveAside(std::chrono::milliseconds limit) {
  const int fd = watch_.device.get();
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, static_cast<int>(limit.count())) <= 0) {
    return true;
  }
  const ssize_t got = read(fd, watch_.buffer.get(), Largest());
  if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
    return true;
  }
  if (got <= 0) {
    NoteEnd(got);
    return false;
  }
  const std::span<const std::byte> request(watch_.buffer.get(), static_cast<size_t>(got));
  const RequestFacts facts = Examine(request);
  if (facts.interrupts != 0) {
    Interrupt(facts.interrupts);
    return true;
  }
  FuseBacklog::Item item{.unique = facts.unique,
                         .caller = facts.caller,
                         .fd = fd,
                         .bytes = std::make_unique_for_overwrite<std::byte[]>(request.size()),
                         .size = request.size(),
                         .received = std::chrono::steady_clock::now()};
  std::memcpy(item.bytes.get(), request.data(), request.size());
  backlog_.Push(std::move(item));
  return true;
}

// A thread in a blocking read looks at the backlog when a signal ends the read; one that is just about to read is
// reached by the next nudge.
void FuseServer::WakeForBacklog() {
  for (const auto& worker : workers()) {
    if (!worker->finished.load(std::memory_order_acquire)) {
      pthread_kill(worker->thread.native_handle(), kWakeSignal);
    }
  }
}

// The kernel says once for each request that a signal came, whatever it does; and (6.18) nothing at all when the
// request went over a ring. So whoever has waited since the last look is looked at. One that ends meanwhile does no
// harm: an interruption names what it ends.
void FuseServer::LookAtCallers() {
  for (const auto& worker : workers()) {
    if (worker->guest.interruption == nullptr) {
      continue;
    }
    const uint64_t running = worker->guest.interruption->operation();
    const uint32_t caller = worker->guest.caller.load(std::memory_order_relaxed);
    if (running != 0 && running == worker->seen_running && caller != 0 &&
        (worker->any_signal.load() ? IsInterrupted(static_cast<pid_t>(caller))
                                   : IsEnding(static_cast<pid_t>(caller)))) {
      Interrupt(*worker, running);
    }
    worker->seen_running = running;
  }
  const auto is_ending = [](const FuseBacklog::Item& item) {
    return item.caller != 0 && IsEnding(static_cast<pid_t>(item.caller));
  };
  while (const std::optional<FuseBacklog::Item> unbegun = backlog_.Take(is_ending)) {
    AnswerInterrupted(*unbegun);
  }
}

void FuseServer::Interrupt(const Worker& worker, uint64_t unique) {
  worker.guest.interruption->Interrupt(unique);
  if (FuseCarrier* const carrier = worker.queue != nullptr ? worker.queue->carrier.load() : nullptr;
      carrier != nullptr) {
    carrier->LookAtInterruptions();
  }
}

// A caller that we cannot name or see, in a PID namespace that is not below ours, gets away by whatever signal came.
void FuseServer::Interrupt(uint64_t unique) {
  const auto may_end = [](uint32_t caller) { return caller == 0 || MayBeEnding(static_cast<pid_t>(caller)); };
  for (const auto& worker : workers()) {
    if (worker->guest.interruption != nullptr && worker->guest.interruption->operation() == unique) {
      worker->signalled.store(unique);
      if (worker->any_signal.load() || may_end(worker->guest.caller.load(std::memory_order_relaxed))) {
        Interrupt(*worker, unique);
      }
      return;
    }
  }
  const auto is_it = [&](const FuseBacklog::Item& item) { return item.unique == unique && may_end(item.caller); };
  if (const std::optional<FuseBacklog::Item> unbegun = backlog_.Take(is_it)) {
    AnswerInterrupted(*unbegun);
  }
}

void FuseServer::AnswerInterrupted(const FuseBacklog::Item& request) {
  fuse_out_header header{.len = sizeof(fuse_out_header), .error = -EINTR, .unique = request.unique};
  if (write(request.fd, &header, sizeof(header)) < 0 && errno != ENOENT) {
    LOG_WARNING("answering an interrupted request: {}", std::strerror(errno));
  }
}

}  // namespace termfs::mount
