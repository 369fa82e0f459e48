// SPDX-License-Identifier: Apache-2.0
//
// Streams: the iWARP streams of a Nic. Its RNIC thread accepts connections and reads their set-up; what they carry
// after that is spread over as many RNIC threads as the Nic has (stream_loop.h), that one among them.
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
#include "driver/softnic/network/stream_loop.h"
#include "driver/softnic/rnic_thread.h"

namespace termfs::driver::softnic {

class StreamEnd;

using StreamToken = std::array<std::byte, 16>;

class Streams {
 public:
  static constexpr std::chrono::seconds kGreeting{5};
  static constexpr size_t kMostGreetings = 256;

  // `keep_time`: has OnTick called soon. Any thread. `socket_bytes`: of a socket's buffers; 0: the kernel's choice.
  // `threads`: of the RNIC, at least one.
  Streams(std::shared_ptr<RnicThread> rnic, NetworkCounters& counters, std::function<void()> keep_time,
          int socket_bytes, uint32_t threads)
      : rnic_(std::move(rnic)),
        counters_(counters),
        keep_time_(std::move(keep_time)),
        socket_bytes_(socket_bytes),
        threads_(threads) {}
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // With the first stream: a Nic without streams needs no descriptors for them.
  Status Start() EXCLUDES(mutex_);
  // The port on which connections to a local address are accepted, from now on.
  Result<uint16_t> Listen(const Gid& local, uint32_t interface) EXCLUDES(mutex_);
  // A connection that was accepted elsewhere.
  void Adopt(AcceptedConnection connection) EXCLUDES(mutex_);
  // The loop that a new stream is for: the one with the fewest.
  Result<StreamLoop*> TakeLoop() EXCLUDES(mutex_);
  // A connection for it may come.
  Result<StreamToken> Expect(const std::shared_ptr<StreamEnd>& end) EXCLUDES(mutex_);
  // Connects to `port` of the peer and sets the connection up as the stream of the other end's `token`. Blocks, for
  // some seconds at most. ECONNREFUSED, ETIMEDOUT, EPROTO and what connect(2) says.
  Status Dial(const NetworkPath& path, uint16_t port, const StreamToken& token, StreamEnd& end) const;
  void Remove(uint32_t number) EXCLUDES(mutex_);

  // Receives that streams share were posted: those that wait for one look again.
  void RetryWaiting() EXCLUDES(mutex_);

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
  const uint32_t threads_;
  std::unordered_map<int, Greeting> greetings_;  // of the RNIC thread, as the next
  bool closing_ = false;
  std::atomic<size_t> greetings_count_{0};

  Mutex mutex_;
  struct Listener {
    UniqueFd socket;
    uint16_t port = 0;
  };
  std::map<Gid, Listener> listeners_ GUARDED_BY(mutex_);
  std::map<StreamToken, std::shared_ptr<StreamEnd>> expected_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StreamLoop>> loops_ GUARDED_BY(mutex_);  // the first is the RNIC thread's
};

}  // namespace termfs::driver::softnic
