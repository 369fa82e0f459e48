// SPDX-License-Identifier: Apache-2.0
//
// Streams: the iWARP streams of a Nic, on its RNIC thread: it accepts connections and reads their set-up, takes in what
// arrives for streams that no other thread receives for, and goes on sending where a socket was full.
//
// An end that is dialled gives its peer a token, 16 random bytes and good for one connection; the request of the set-up
// has it as private data. Connections whose set-up does not come within kGreeting, or names no end that waits, are
// closed; and the oldest where there are more than kMostGreetings.
//
// Thread-safety: any thread.
// Ownership:     of the Network, which outlives the streams.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "driver/softnic/network/counters.h"
#include "driver/softnic/rnic_thread.h"

namespace termfs::driver::softnic {

class StreamEnd;

using StreamToken = std::array<std::byte, 16>;

class Streams {
 public:
  static constexpr std::chrono::seconds kGreeting{5};
  static constexpr size_t kMostGreetings = 256;

  // `keep_time`: has OnTick called soon. Any thread. `socket_bytes`: of a socket's buffers; 0: the kernel's choice.
  Streams(std::shared_ptr<RnicThread> rnic, NetworkCounters& counters, std::function<void()> keep_time,
          int socket_bytes)
      : rnic_(std::move(rnic)), counters_(counters), keep_time_(std::move(keep_time)), socket_bytes_(socket_bytes) {}
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // With the first stream: a Nic without streams needs no descriptors for them.
  Status Start() EXCLUDES(mutex_);
  // The port on which connections to a local address are accepted, from now on.
  Result<uint16_t> Listen(const Gid& local, uint32_t interface) EXCLUDES(mutex_);
  // A connection that was accepted elsewhere.
  void Adopt(AcceptedConnection connection) EXCLUDES(mutex_);
  Status Add(const std::shared_ptr<StreamEnd>& end) EXCLUDES(mutex_);
  // A connection for it may come.
  Result<StreamToken> Expect(const std::shared_ptr<StreamEnd>& end) EXCLUDES(mutex_);
  // Connects to `port` of the peer and sets the connection up as the stream of the other end's `token`. Blocks, for
  // some seconds at most. ECONNREFUSED, ETIMEDOUT, EPROTO and what connect(2) says.
  Status Dial(const NetworkPath& path, uint16_t port, const StreamToken& token, StreamEnd& end) const;
  void Remove(uint32_t number) EXCLUDES(mutex_);

  // --- For the streams.
  void KeepTime() { keep_time_(); }
  void WatchInput(const StreamEnd& end);
  void IgnoreInput(const StreamEnd& end);
  // Receives were posted: the streams that wait for one, and are received by the RNIC thread, look again.
  void RetryWaiting();
  void WatchRoom(const StreamEnd& end);
  void Unwatch(const StreamEnd& end);
  // The socket ends; its descriptor stays, and is never readable again: threads may still sleep on it.
  void Bury(int socket);

  // --- For the Network's tick, on the RNIC thread.
  // Whether there is something that the next tick is needed for.
  bool OnTick(std::chrono::steady_clock::time_point now) EXCLUDES(mutex_);
  bool needs_ticks() EXCLUDES(mutex_);

 private:
  struct Greeting {
    UniqueFd socket;
    std::unique_ptr<TlsSession> tls;  // null: none
    std::vector<std::byte> bytes;     // opened
    std::chrono::steady_clock::time_point deadline;
  };

  Status StartLocked() REQUIRES(mutex_);
  std::shared_ptr<StreamEnd> Find(uint32_t number) EXCLUDES(mutex_);
  void OnInput();
  void OnRoom();
  void OnRetry();
  void OnConnection(int listener);
  void BeginGreeting(AcceptedConnection connection);
  void OnGreeting(int socket);
  // False: it is not a greeting any more, as of the next.
  bool ReadGreeting(Greeting& greeting);
  bool TakeGreeting(Greeting& greeting);
  void EndGreeting(int socket);

  const std::shared_ptr<RnicThread> rnic_;
  NetworkCounters& counters_;
  const std::function<void()> keep_time_;
  const int socket_bytes_;
  UniqueFd input_;  // epoll instances, nested into the RNIC thread's
  UniqueFd room_;
  UniqueFd silent_;                              // an eventfd that is never signalled
  std::unordered_map<int, Greeting> greetings_;  // of the RNIC thread, as the next
  bool closing_ = false;
  std::atomic<size_t> greetings_count_{0};
  std::atomic<bool> retries_{false};  // RetryWaiting has a task posted

  Mutex mutex_;
  struct Listener {
    UniqueFd socket;
    uint16_t port = 0;
  };
  std::map<Gid, Listener> listeners_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, std::shared_ptr<StreamEnd>> ends_ GUARDED_BY(mutex_);  // by number
  std::map<StreamToken, uint32_t> expected_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::softnic
