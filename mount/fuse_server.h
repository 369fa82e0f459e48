// SPDX-License-Identifier: Apache-2.0
//
// FuseServer: one FUSE mount and the threads that answer it. Every thread receives into memory of its own and answers
// on the thread that received; so nothing is handed from thread to thread, and the bytes of a write lie where the
// thread's owner wants them (a queue pair's registered buffer). One exception, over io_uring: where several programs
// read at the same time, a carrier takes their READs and receives what comes next to where those came
// (fuse_carriers.cc); what is no READ it hands back.
//
// Requests come over one of two transports. Over io_uring, where the kernel offers it, each thread has a ring of its
// own at the queue of one CPU, and is bound to that CPU; two more threads read the device, for what never goes over a
// ring (FORGET, INTERRUPT, and what precedes the rings). Otherwise every thread reads a clone of the device.
//
// When all threads that read the device wait, nobody would receive the kernel's FUSE_INTERRUPT, nor notice an unmount.
// So there is one more thread, the watch: it sleeps until all of those are busy, and when they get no further it
// receives what the kernel has, carries out interrupts, and puts the other requests aside for the first that is free
// again (fuse_watch.cc). It also looks now and then whether one who waits is to be ended by a signal.
//
// It knows nothing of what is mounted: the callbacks are libfuse's, the threads' state is a FuseThread of the caller's,
// which may answer READs itself: see "A READ goes past libfuse".
//
// Thread-safety: Stop, Unmount and the life cycle from one thread; static accessors from a serving thread; session()
//                and counters from any.
// Ownership:     owns the libfuse session, the device descriptors and the FuseThreads. `operations` is copied,
//                `userdata` outlives the server.
// Errors:        errno of the step that failed; the text has what libfuse said.
#pragma once

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/interruption.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mount/fuse_backlog.h"
#include "mount/fuse_carrier.h"
#include "mount/fuse_reads.h"
#include "mount/fuse_ring.h"
#include "mount/fuse_wire.h"
#include "mount/mount_table.h"

namespace termfs::mount {

inline constexpr size_t kMaxIo = 1U << 20;  // bytes of the largest read or write
// What FuseThread::buffer() must hold: a write's payload on a page boundary, its header before it.
inline constexpr size_t kRequestBufferBytes = kMaxIo + 4096;

// Called from the init callback: takes, of what the kernel offers, the capabilities `wanted` (FUSE_CAP_...), shared
// mappings of files with direct I/O, and the duty to clear set-id bits; sets the sizes.
void Agree(fuse_conn_info* connection, uint64_t wanted);
// The file to be opened is read and written directly, in parallel.
void MakeDirect(fuse_file_info* info);

enum class FuseTransport : uint8_t {
  kAuto,    // io_uring where the kernel offers it, else the device; the log says why
  kDevice,  // /dev/fuse
  kRing,    // io_uring, or an error
};

// "auto", "io_uring" or "device"; false for anything else.
bool ParseTransport(std::string_view text, FuseTransport& transport);

// Ends a thread's blocking call; its handler does nothing.
inline constexpr int kWakeSignal = SIGUSR2;

// What one serving thread has of its own.
class FuseThread {
 public:
  virtual ~FuseThread() = default;
  // Page-aligned, at least kRequestBufferBytes of a shared mapping; may be another one after a request. A request other
  // than a write is moved out of it before its callback runs, so that the callback may use it for anything.
  virtual std::span<std::byte> buffer() = 0;
  // Grows with each other buffer, whose address may be that of a former one.
  virtual uint64_t buffer_number() { return 0; }
  // Answers a READ, where the callbacks have none for it: the bytes, in buffer(), or an error whose code
  // goes to the application as it is.
  virtual Result<std::span<const std::byte>> Read(const ReadArguments& arguments);
  // Of the thread's waits, for the kernel's FUSE_INTERRUPT; null: nothing is worth interrupting.
  virtual Interruption* interruption() { return nullptr; }
};

class FuseServer {
 public:
  struct Options {
    std::string mountpoint;
    std::vector<std::string> mount_options;  // libfuse's: fsname=..., allow_other, ro, ...
    unsigned threads = 16;                   // requests that can be answered at the same time; with rings for each CPU
                                             // its share, and two at least
    FuseTransport transport = FuseTransport::kAuto;
  };
  using ThreadFactory = std::function<Result<std::unique_ptr<FuseThread>>()>;

  static Result<std::unique_ptr<FuseServer>> Create(const fuse_lowlevel_ops& operations, void* userdata,
                                                    const Options& options);
  ~FuseServer();
  FuseServer(const FuseServer&) = delete;
  FuseServer& operator=(const FuseServer&) = delete;

  Status Mount();
  // Agrees with the kernel and starts to answer. ENOTSUP: kRing, and there is none; the text says why. `make_thread` is
  // called here and by Wait; `make_reads`, if any, by carriers: then threads with rings that would wait for absent
  // pages at the same time do so together. REQUIRES: Mount succeeded; called once.
  Status Start(const ThreadFactory& make_thread, const FuseReads::Factory& make_reads = nullptr);
  // Readable once the kernel has ended the connection (somebody unmounted).
  int ended_fd() const { return ended_.get(); }
  // The path that leads to the mount now; "": none does, as somebody has unmounted it or mounted something over it.
  std::string Place() const;
  bool IsAt(const std::string& path) const;
  // What the mount table of this process says of the mount; nothing: it is not there any more.
  std::optional<MountEntry> Entry() const;
  // Detaches it from the name space wherever it is now, and nothing else, lazily when it is in use and `lazily` is set
  // (EBUSY otherwise). EBUSY, too: something is mounted over it. See "A mount ends where it is".
  Status Unmount(bool lazily);
  // The threads answer what they have and end. ETIMEDOUT: some did not within `limit`; the server must not be
  // destroyed.
  Status Stop(std::chrono::milliseconds limit);

  fuse_session* session() const { return session_; }
  uint64_t requests() const;       // answered so far
  uint64_t ring_requests() const;  // those that came over io_uring
  // What requests come over, by what has come: "io_uring" or "/dev/fuse".
  std::string_view transport() const { return ring_requests() > 0 ? "io_uring" : "/dev/fuse"; }

  // Of the serving thread that calls.
  static FuseThread& thread();
  static const RequestFacts& request();
  // Where the bytes of the write being answered lie, which libfuse gave as `data`: within thread().buffer().
  static std::span<const std::byte> Written(const char* data, size_t size);
  // A wait of the serving thread that constructs it which only another request may end. Meanwhile any signal for the
  // caller requests the thread's interruption, between Begin and End, and not only one that ends the caller.
  class Wait;
  // When the request was received.
  static std::chrono::steady_clock::time_point received();

 private:
  // What the threads with rings of one CPU share.
  struct RingQueue {
    explicit RingQueue(unsigned number) : cpu(number) {}
    const unsigned cpu;
    std::atomic<uint32_t> reading{0};            // threads that are answering a READ
    std::atomic<FuseCarrier*> carrier{nullptr};  // once somebody has wanted it
    Mutex mutex;
    std::unique_ptr<FuseCarrier> owned GUARDED_BY(mutex);
    std::chrono::steady_clock::time_point again GUARDED_BY(mutex);  // not tried before, after a failure
  };
  struct Worker {
    FuseServer* server = nullptr;
    std::unique_ptr<FuseThread> state;
    std::unique_ptr<std::byte[]> aside;   // where requests are moved to
    UniqueFd device;                      // a clone of the session's
    int cpu = -1;                         // whose queue it serves by a ring; -1: none
    RingQueue* queue = nullptr;           // that one; null: none
    std::unique_ptr<FuseRing> ring;       // of the worker's thread
    bool over_ring = false;               // the request that is being answered
    bool answered = false;                // that one
    int reply_fd = -1;                    // to answer it, if not over the ring
    FuseCarrier::Guest guest;             // a command only with a ring
    uint64_t seen_running = 0;            // by the watch
    std::atomic<bool> any_signal{false};  // may end what is being answered; this and the next: sequentially consistent
    std::atomic<uint64_t> signalled{0};   // the last request that the kernel has sent an interrupt for
    RequestFacts facts;
    bool rests = false;  // of rest_mutex_, as the next
    CondVar rested;
    std::atomic<bool> finished{false};
    std::thread thread;
  };
  // How far the threads and the kernel have come; each step is taken once.
  struct Agreement {
    unsigned prepared = 0;    // workers whose ring is there or cannot be
    unsigned registered = 0;  // workers whose ring the kernel has, or has refused
    unsigned refused = 0;     // of the registered
    bool offer = false;       // we would take rings
    bool answered = false;    // the kernel has our answer to INIT
    bool rings = false;       // it said and we said yes
    Status why_not;           // when not
  };

  // Threads that answer requests of one queue, by rings of a CPU or by the device (-1).
  struct Queue {
    size_t least = 0;    // as many as there were at first
    size_t serving = 0;  // those that do not wait
  };

  FuseServer() = default;
  // fuse_start.cc
  Result<UniqueFd> CloneDevice() const;
  Status AddWorker(const ThreadFactory& make_thread, int cpu);
  Status AddRingWorkers(const ThreadFactory& make_thread);
  Result<unsigned> LaunchAll(const ThreadFactory& make_thread, Status& why_not) EXCLUDES(stand_ins_mutex_, mutex_);
  // The threads of those workers. EAGAIN: not of all.
  Status Launch(size_t first);
  template <typename Condition>
  Status Await(const char* what, const Condition& done) REQUIRES(mutex_);
  Status Report(const Status& why_not) const;
  bool HasEnded() const;  // the kernel has ended the connection
  std::span<const std::unique_ptr<Worker>> workers() const {
    return {workers_.data(), launched_.load(std::memory_order_acquire)};
  }
  // fuse_stand_ins.cc
  Status BeginWait(const Worker& worker) EXCLUDES(stand_ins_mutex_);
  void EndWait(const Worker& worker) EXCLUDES(stand_ins_mutex_);
  Queue& QueueOf(const Worker& worker) REQUIRES(stand_ins_mutex_);
  // fuse_threads.cc
  static Status PrepareSignals();
  void Serve(Worker& worker);
  Status PrepareRing(Worker& worker);
  bool AwaitRegistration(Worker& worker, Status prepared) EXCLUDES(mutex_);
  void ServeDevice(Worker& worker);
  // Nothing but FORGET and INTERRUPT comes by the device.
  bool BesideRings() EXCLUDES(mutex_);
  void ServeRing(Worker& worker);
  // The facts of the request that the worker's command has brought, and its head in `aside`.
  static void Receive(Worker& worker);
  // fuse_carriers.cc
  // For the request that the worker has; null: its own thread should answer it.
  FuseCarrier* CarrierToUse(const Worker& worker);
  FuseCarrier* MakeCarrier(RingQueue& queue) EXCLUDES(queue.mutex);
  void StopCarriers();
  // fuse_threads.cc, too
  // Receives one request and answers it. False: there will be none any more.
  bool ServeOne(Worker& worker);
  // False: nothing is there.
  bool ServeBacklog(Worker& worker);
  void AnswerDevice(Worker& worker, std::span<std::byte> request);
  void AnswerRing(Worker& worker);
  // The request `worker.facts`, whole in `message`.
  void Process(Worker& worker, std::byte* message, size_t length);
  void AnswerRead(Worker& worker, const ReadArguments& arguments);
  // The kernel has ended the connection, or answers nothing sensible.
  void NoteEnd(ssize_t got);
  ssize_t Reply(Worker& worker, std::span<iovec> parts);
  static ssize_t WriteReply(int fd, iovec* parts, int count, void* userdata);
  static ssize_t ReadRequest(int fd, void* buffer, size_t size, void* userdata);

  // fuse_watch.cc
  Status StartWatch();
  void StopWatch();
  void Watch();
  void SleepUntilAllBusy();
  bool AllBusy() const { return busy_.load(std::memory_order_seq_cst) == readers_.load(std::memory_order_relaxed); }
  // Waits for a request for at most `limit` and puts it aside. False: the connection has ended.
  bool ReceiveAside(std::chrono::milliseconds limit);
  void WakeForBacklog();
  void LookAtCallers();
  // The kernel says that a signal came to who waits for this request.
  void Interrupt(uint64_t unique);
  // Whoever waits for it in place of the worker, too.
  static void Interrupt(const Worker& worker, uint64_t unique);
  void AnswerInterrupted(const FuseBacklog::Item& request);
  // A thread that reads the device has become busy, or is not any more.
  void EnterBusy() {
    busy_.fetch_add(1, std::memory_order_seq_cst);
    if (AllBusy() && watch_.asleep.load()) {
      WakeWatch();
    }
  }
  // fuse_rest.cc
  int64_t Receivers() const;
  void NoteBusy(std::chrono::steady_clock::time_point now) EXCLUDES(rest_mutex_);
  void RestIfMany(Worker& worker) EXCLUDES(rest_mutex_);
  void WakeOneThatRests() EXCLUDES(rest_mutex_);
  void WakeAllThatRest() EXCLUDES(rest_mutex_);
  void LeaveBusy() { busy_.fetch_sub(1, std::memory_order_relaxed); }
  void WakeWatch();

  Options options_;
  fuse_session* session_ = nullptr;
  bool reads_past_libfuse_ = false;  // the threads answer them
  bool mounted_ = false;
  bool unmounts_ = false;  // Unmount was called
  MountNumber mount_;      // what Mount has made
  UniqueFd ended_;
  std::atomic<bool> stopping_{false};  // relaxed: the signal that follows makes the threads look
  // Never more than it has room for from the start, so that others may look at those that are launched.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<size_t> launched_{0};
  Mutex stand_ins_mutex_;  // held by who changes workers_
  ThreadFactory make_thread_;
  std::map<int, Queue> queues_ GUARDED_BY(stand_ins_mutex_);
  FuseReads::Factory make_reads_;
  std::vector<std::unique_ptr<RingQueue>> ring_queues_;  // by CPU; does not change while threads serve
  FuseBacklog backlog_;
  std::atomic<size_t> readers_{0};         // workers that read the device
  std::atomic<size_t> busy_{0};            // of those
  std::atomic<int64_t> resting_count_{0};  // of resting_
  // The most that were busy at a time since then, and in the time before.
  std::atomic<std::chrono::steady_clock::time_point> lately_began_{};
  std::atomic<uint32_t> most_busy_{0};
  std::atomic<uint32_t> most_busy_before_{0};
  Mutex rest_mutex_;
  std::vector<Worker*> resting_ GUARDED_BY(rest_mutex_);  // the last is woken first
  struct WatchThread {
    UniqueFd wake;
    UniqueFd device;                  // as Worker's, non-blocking
    std::atomic<bool> asleep{false};  // until all are busy; pairs with busy_, both sequentially consistent
    std::atomic<bool> finished{false};
    std::unique_ptr<std::byte[]> buffer;
    std::thread thread;
  } watch_;
  Mutex mutex_;
  CondVar changed_;
  Agreement agreement_ GUARDED_BY(mutex_);
  static thread_local Worker* current_;
};

class FuseServer::Wait {
 public:
  Wait() = default;
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  // Before the first Begin: another thread serves in this one's place, or one more may. ENOLCK: none can be had.
  Status Prepare();
  void Begin();
  void End();

 private:
  Worker* worker_ = nullptr;  // prepared
};

}  // namespace termfs::mount
