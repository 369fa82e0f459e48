// SPDX-License-Identifier: Apache-2.0
//
// SoftQueuePair: one end of a connection between two software RNICs.
//
// A posted send is executed at once, by the thread that posts it, unless it has to wait: for the peer's RNIC thread
// (the rkey is not known yet, a page of an ODP region is absent) or for a receive. Then it and all that follows it
// stay in the send queue, and polling the completion queue carries on with them; that keeps their order and keeps
// PostSend from blocking.
//
//            Connect             an operation fails, Close, the peer is gone
//   kInit ------------> kReady ------------------------------------------------> kError
//
// Thread-safety: one thread, that of its completion queues. The RNIC thread sees only the Port.
// Ownership:     completion queues outlive it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "driver/nic.h"
#include "driver/softnic/completion_queue.h"
#include "driver/softnic/layout.h"
#include "driver/softnic/local_keys.h"
#include "driver/softnic/mapping.h"
#include "driver/softnic/port.h"
#include "driver/softnic/registry.h"
#include "driver/softnic/remote_region.h"
#include "driver/softnic/rnic_thread.h"
#include "driver/softnic/shared_receives.h"

namespace termfs::driver::softnic {

class Network;

// What all objects of one Nic share.
struct NicParts {
  std::shared_ptr<Registry> registry;
  std::shared_ptr<RnicThread> rnic;
  std::shared_ptr<Network> network;
  std::shared_ptr<MappingCache> mappings;
};

class SoftQueuePair final : public QueuePair, public QueuePairCounts {
 public:
  static Result<std::unique_ptr<QueuePair>> Create(const NicParts& parts, uint32_t domain,
                                                   const QueuePairOptions& options);
  ~SoftQueuePair() override;

  uint32_t number() const override { return number_; }
  Result<Endpoint> LocalEndpoint() override;
  Status Connect(Endpoint remote) override;
  Status PostSend(std::span<const SendWorkRequest> requests) override;
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;
  bool ReadNow(std::byte* to, uint32_t length, uint64_t remote_offset, RKey rkey) override;
  Result<std::span<const std::byte>> SharedView(RKey rkey) override;
  void Close() override;
  bool connected() const override { return state_ == State::kReady && !port_->broken(); }

  // --- For the completion queue.

  // Carries on with what waits; puts at most about `limit` completions of received messages into `queue`.
  void Progress(SoftCompletionQueue& queue, size_t limit);
  // False: there is something to poll. Else lowers `deadline` to when there may be without a wake-up.
  bool PrepareToSleep(SoftCompletionQueue& queue, SoftCompletionQueue::TimePoint* deadline);
  void StayAwake(SoftCompletionQueue& queue);
  // True: it had nothing since the last call, and rests: a message to it wakes it. REQUIRES: it does not rest.
  bool Rest(SoftCompletionQueue& queue);
  // False: it did not rest.
  bool StopResting(SoftCompletionQueue& queue);
  // Whether who sleeps until there is a completion in `queue` waits for messages and nothing else.
  bool SleepsForMessages(const SoftCompletionQueue& queue) const {
    return state_ == State::kReady && &queue == receive_queue_ && &queue != send_queue_;
  }
  // Wakes the peer if it sleeps until there is a message.
  void WakePeer();
  int socket() const { return port_->request_fd(); }
  // Takes in answers and wake-ups, as many as `most`.
  void ReadSocket(int most = 16);

 private:
  using TimePoint = SoftCompletionQueue::TimePoint;
  enum class State { kInit, kReady, kError };
  enum class Wait : uint8_t { kNone, kReceive, kResolve, kFault, kUnstable };
  enum class Outcome { kDone, kBlocked };

  // A send in execution: how far it is, and what it waits for.
  struct Progressing {
    uint32_t done = 0;  // bytes of a READ
    Wait wait = Wait::kNone;
    bool failed = false;  // the answer it waited for was no
    PageIndex page;       // kFault
    TimePoint deadline{};
    WcStatus status = WcStatus::kSuccess;  // valid with Outcome::kDone
  };
  struct QueuedSend {
    SendWorkRequest request;
    Progressing progress;
  };

  SoftQueuePair(const NicParts& parts, uint32_t domain, const QueuePairOptions& options);
  Status AttachToQueues();
  Status MapPeer(const Endpoint& remote, const EndpointBytes& bytes);

  // queue_pair.cc: the send queue, completions, the error state.
  size_t RunBatch(std::span<const SendWorkRequest> requests);
  void RunQueue();
  Outcome Execute(const SendWorkRequest& request, Progressing& progress);
  Outcome Done(Progressing& progress, WcStatus status) {
    progress.status = status;
    return Outcome::kDone;
  }
  Outcome Block(Progressing& progress, Wait wait, std::chrono::nanoseconds patience);
  bool Expired(const Progressing& progress) const;
  void FinishSend(const SendWorkRequest& request, WcStatus status);
  void CompleteSend(const SendWorkRequest& request, WcStatus status);
  void CompleteReceive(const RecvWorkRequest& request, WcStatus status, uint32_t length, bool has_imm, uint32_t imm);
  void EnterError(WcStatus first_send_status);
  void NoticeLoss();

  // queue_pair_one_sided.cc: operations on the peer's memory.
  Outcome Read(const SendWorkRequest& request, Progressing& progress);
  Outcome ReadPages(RemoteRegion& region, const SendWorkRequest& request, Progressing& progress);
  Outcome AbsentPage(RemoteRegion& region, PageIndex page, PageCopy copy, Progressing& progress);
  Outcome Write(const SendWorkRequest& request, Progressing& progress);
  Outcome Atomic(const SendWorkRequest& request, Progressing& progress);
  void PrefetchEntry(std::span<const SendWorkRequest> requests, size_t index) const;
  void PrefetchFrame(std::span<const SendWorkRequest> requests, size_t index) const;
  const RemoteRegion* PagesOf(const SendWorkRequest& request) const;
  // Whether the peer still looked after what was just copied from its memory. Once it has closed the connection, or has
  // died and was replaced, the memory may hold anything; and a process that was stopped meanwhile reads on at once.
  bool PeerServes() const;
  RemoteRegion* FindRemote(RKey rkey);
  RemoteRegion* FindRemoteSlow(RKey rkey);
  // Unmaps the regions that the peer has deregistered, but for those that SharedView has shown. Whoever still names one
  // is told that by the peer. REQUIRES: no operation is in the middle of one.
  void ForgetRegions();
  // The region behind the request's key, ready for `access` to its range; null: see the outcome.
  RemoteRegion* Reach(const SendWorkRequest& request, uint64_t length, Access access, Progressing& progress,
                      Outcome* outcome);
  Outcome Resolve(RKey rkey, Progressing& progress);
  void TakeAnswer(const SocketMessage& message, std::span<const UniqueFd> fds);

  // queue_pair_messages.cc: SEND, RECV and the immediate of a WRITE.
  Outcome Send(const SendWorkRequest& request, Progressing& progress);
  bool HaveCredit();
  // False: no large payload of the peer's is free, though it has posted a receive: not a peer that works.
  bool FindLarge();
  void PutMessage(SlotKind kind, std::span<const std::byte> payload, uint32_t length, uint32_t imm);
  void OfferSharedReceives();
  void ShowPosted();
  void TakeMessages(size_t limit);
  bool TakeMessage();
  WcStatus TakePayload(const SlotHeader& slot, uint32_t length, const RecvWorkRequest& request);
  bool MessageWaits(std::memory_order order) const;
  bool HasReceive() const { return shared_ == nullptr || !shared_->empty(); }
  SlotHeader& OwnSlot(uint64_t number) const {
    return *reinterpret_cast<SlotHeader*>(inbox_->data() + kSlotsOffset + (number & (slots_ - 1)) * kSlotStride);
  }
  SlotHeader& PeerSlot(uint64_t number) const {
    return *reinterpret_cast<SlotHeader*>(outbox_->data() + kSlotsOffset + (number & (peer_slots_ - 1)) * kSlotStride);
  }
  std::byte* OwnLarge(uint32_t index) const {
    return inbox_->data() + LargeOffset(slots_) + index * LargeStride(options_.max_message);
  }
  std::byte* PeerLarge(uint32_t index) const {
    return outbox_->data() + LargeOffset(peer_slots_) + index * LargeStride(peer_max_message_);
  }
  InboxControl& own_control() const { return *reinterpret_cast<InboxControl*>(inbox_->data()); }
  InboxControl& peer_control() const { return *reinterpret_cast<InboxControl*>(outbox_->data()); }

  const NicParts parts_;
  const uint32_t domain_;
  const QueuePairOptions options_;
  const uint32_t number_;
  SoftCompletionQueue* const send_queue_;
  SoftCompletionQueue* const receive_queue_;
  LocalSharedReceives* const shared_;  // null: receives of its own
  bool send_attached_ = false;
  bool receive_attached_ = false;
  State state_ = State::kInit;
  // What the next send that is posted into the error state completes with.
  WcStatus next_send_status_ = WcStatus::kWrFlushErr;
  std::shared_ptr<Port> port_;

  std::deque<QueuedSend> sends_;  // those that wait

  LocalKeys local_keys_;
  std::array<RemoteRegion*, 16> remote_cache_{};
  std::unordered_map<uint32_t, std::unique_ptr<RemoteRegion>> remote_;
  size_t forget_at_ = 0;       // when there are so many, those that are gone are looked for
  std::vector<RKey> shown_;    // by SharedView
  uint32_t awaited_rkey_ = 0;  // of the request on its way; 0: none
  bool answer_failed_ = false;

  // The inbox, which the peer writes; slots_ is our own copy.
  std::shared_ptr<SharedObject> inbox_;
  const uint32_t slots_;
  std::vector<RecvWorkRequest> receives_;  // receive number n at n % slots_; none with shared ones
  uint64_t posted_ = 0;                    // receives; with shared ones: messages that the peer may have sent
  uint64_t received_ = 0;                  // messages
  bool resting_ = false;                   // the queue does not look at the inbox
  uint64_t seen_received_ = 0;             // messages received and sent, when the queue asked the last time
  uint64_t seen_sent_ = 0;

  // The peer's inbox.
  std::shared_ptr<Mapping> outbox_;
  std::shared_ptr<Mapping> validity_;
  uint32_t peer_slots_ = 0;
  uint32_t peer_max_message_ = 0;
  struct Large {
    uint64_t message;  // that lies there
    uint32_t index;
  };
  std::vector<Large> large_;          // in use, in order
  std::vector<uint32_t> free_large_;  // have been in use; the last one is used next
  uint32_t touched_large_ = 0;        // those beyond have never been
  bool wakes_later_ = false;          // the send queue knows
  uint64_t sent_ = 0;
  uint64_t credit_ = 0;  // receives that the peer is known to have posted
};

}  // namespace termfs::driver::softnic
