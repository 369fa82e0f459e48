// SPDX-License-Identifier: Apache-2.0
//
// A software RNIC whose peer is another process that says and stores anything: its endpoint, messages on both sockets,
// the slots and control words of both inboxes, the page table and frames behind a key, at any time in between the
// operations of this side. Nothing outside of the posted buffers changes, each request completes at most once, no
// receive gets more than it holds, and no memory leaves for a key that there is not.
//
// The input: a byte of flags (1: the endpoint's bytes replace the right ones), a byte with the length of the endpoint,
// so many bytes; then steps: a byte that says what to do, a byte with a length, so many bytes.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "driver/nic.h"
#include "driver/softnic/layout.h"
#include "driver/softnic/page_table.h"
#include "driver/softnic/softnic.h"

namespace termfs::driver::softnic {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint32_t kSlots = 8;
constexpr uint32_t kMessage = 1024;
constexpr size_t kRegionPages = 4;
constexpr size_t kMemory = size_t{32} << 10;
constexpr std::byte kUntouched{0xc5};
constexpr uint32_t kPeersKey = 1;
constexpr int kPatienceMs = 10'000;

// Memory of the peer, as a file that is sealed against shrinking and mapped here, too.
class PeerMemory {
 public:
  explicit PeerMemory(size_t bytes) : bytes_(bytes), fd_(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    TERMFS_CHECK(ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0 &&
                 fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    Map();
  }
  PeerMemory(UniqueFd fd, size_t bytes) : bytes_(bytes), fd_(std::move(fd)) { Map(); }
  ~PeerMemory() { munmap(data_, bytes_); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  UniqueFd Dup() const { return UniqueFd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }
  // The first two bytes of `bytes` say where the rest goes, in words of eight bytes.
  void Store(Bytes bytes) {
    if (bytes.size() > 2) {
      const size_t at = (size_t{bytes[0]} | size_t{bytes[1]} << 8) * 8 % bytes_;
      std::memcpy(data_ + at, bytes.data() + 2, std::min(bytes.size() - 2, bytes_ - at));
    }
  }
  void Clear() { std::memset(data_, 0, bytes_); }
  uint8_t* data() { return data_; }

 private:
  void Map() {
    void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    TERMFS_CHECK(mapped != MAP_FAILED);
    data_ = static_cast<uint8_t*>(mapped);
  }

  const size_t bytes_;
  const UniqueFd fd_;
  uint8_t* data_ = nullptr;
};

// What all inputs share.
struct Site {
  Site() {
    validity.Clear();
    const uint32_t serving = 1;
    std::memcpy(validity.data() + kServingOffset, &serving, sizeof(serving));
  }
  std::unique_ptr<Nic> nic = CreateSoftNic().value();
  std::unique_ptr<ProtectionDomain> domain = nic->CreateProtectionDomain().value();
  std::unique_ptr<CompletionQueue> queue = nic->CreateCompletionQueue(256).value();
  std::unique_ptr<Memory> memory = nic->AllocateMemory({.bytes = kMemory}).value();
  std::unique_ptr<MemoryRegion> region =
      domain->RegisterMemory(memory->data(), memory->size(), Access::kLocalWrite | Access::kRemoteRead).value();
  PeerMemory validity{kValidityBytes};
  PeerMemory inbox{InboxBytes(kSlots, kMessage)};
  PeerMemory table{PageTableBytes(kRegionPages)};
  PeerMemory frames{kRegionPages << kPageBits};
};

void SendMessageTo(int socket, Bytes bytes, const std::vector<UniqueFd>& fds) {
  iovec data{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); i++) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(fd));
    }
  }
  [[maybe_unused]] const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

SocketMessage MessageOf(Bytes bytes) {
  SocketMessage message;
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof(message)), reinterpret_cast<uint8_t*>(&message));
  return message;
}

Bytes BytesOf(const SocketMessage& message) { return {reinterpret_cast<const uint8_t*>(&message), sizeof(message)}; }

class Peer {
 public:
  explicit Peer(Site& site) : site_(site), allowed_(kMemory) {
    std::memset(site_.memory->data(), std::to_integer<int>(kUntouched), kMemory);
    for (PeerMemory* const memory : {&site_.inbox, &site_.table, &site_.frames}) {
      memory->Clear();
    }
    const uint64_t pages = kRegionPages;
    std::memcpy(site_.table.data(), &pages, sizeof(pages));
    QueuePairOptions options;
    options.send_cq = options.recv_cq = site_.queue.get();
    options.max_send = 16;
    options.max_recv = kSlots;
    options.max_message = kMessage;
    options.rnr_timeout = std::chrono::milliseconds(1);
    pair_ = site_.domain->CreateQueuePair(options).value();
  }

  ~Peer() {
    pair_.reset();
    std::array<WorkCompletion, 64> rest{};
    while (const size_t count = site_.queue->Poll(rest)) {
      CheckCompletions({rest.data(), count});
    }
    for (size_t i = 0; i < kMemory; i++) {
      TERMFS_CHECK(allowed_[i] || site_.memory->data()[i] == kUntouched);
    }
  }

  bool Connect(Bytes bytes, bool replaces) {
    Endpoint local = pair_->LocalEndpoint().value();
    TERMFS_CHECK(local.bytes.size() == sizeof(EndpointBytes) && local.fds.size() == kEndpointFds);
    own_inbox_.emplace(std::move(local.fds[kInboxFd]), InboxBytes(kSlots, kMessage));
    requests_ = std::move(local.fds[kRequestSocketFd]);
    EndpointBytes endpoint{
        .magic = kEndpointMagic, .version = kVersion, .qp_num = 7, .slots = kSlots, .max_message = kMessage};
    Endpoint remote;
    remote.bytes.resize(replaces ? bytes.size() : sizeof(endpoint));
    std::copy_n(replaces ? bytes.data() : reinterpret_cast<const uint8_t*>(&endpoint), remote.bytes.size(),
                reinterpret_cast<uint8_t*>(remote.bytes.data()));
    std::array<int, 2> ends{};
    TERMFS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    answers_ = UniqueFd(ends[0]);
    remote.fds.resize(kEndpointFds);
    remote.fds[kInboxFd] = site_.inbox.Dup();
    remote.fds[kRequestSocketFd] = UniqueFd(ends[1]);
    remote.fds[kValidityFd] = site_.validity.Dup();
    const size_t given = remote.bytes.size();
    if (given == sizeof(endpoint)) {
      std::memcpy(&endpoint, remote.bytes.data(), sizeof(endpoint));
    }
    const Status connected = pair_->Connect(std::move(remote));
    if (!connected.ok()) {
      TERMFS_CHECK(connected.code() == EPROTO);
      return false;
    }
    TERMFS_CHECK(given == sizeof(endpoint) && endpoint.magic == kEndpointMagic && endpoint.version == kVersion);
    TERMFS_CHECK(std::has_single_bit(endpoint.slots) &&
                 InboxBytes(endpoint.slots, endpoint.max_message) <= InboxBytes(kSlots, kMessage));
    return true;
  }

  void Step(uint8_t what, Bytes bytes) {
    switch (what % 12) {
      case 0:
        return own_inbox_->Store(bytes);
      case 1:
        return PutMessage(bytes);
      case 2:
        return SendMessageTo(answers_.get(), bytes, {});
      case 3:
        return AnswerKey(bytes);
      case 4: {
        SocketMessage done = MessageOf(bytes);
        done.type = static_cast<uint32_t>(MessageType::kFaultDone);
        done.rkey = kPeersKey;
        return SendMessageTo(answers_.get(), BytesOf(done), {});
      }
      case 5:
        return PostSend(bytes);
      case 6:
        return PostReceive(bytes);
      case 7:
        return site_.table.Store(bytes);
      case 8:
        return site_.inbox.Store(bytes);
      case 9:
        return Ask(bytes);
      case 10:
        return ReadNow(bytes);
      default:
        return Poll();
    }
  }

 private:
  // The next slot as a peer would fill it, but for what the bytes say.
  void PutMessage(Bytes bytes) {
    std::array<uint8_t, 4 * sizeof(uint32_t)> words{};
    std::copy_n(bytes.begin(), std::min(bytes.size(), words.size()), words.begin());
    uint8_t* const at = own_inbox_->data() + kSlotsOffset + put_ % kSlots * kSlotStride;
    auto& slot = *reinterpret_cast<SlotHeader*>(at);
    const auto word = [&](size_t index) {
      uint32_t value = 0;
      std::memcpy(&value, words.data() + index * sizeof(value), sizeof(value));
      return value;
    };
    slot.kind.store(word(0) % 5);
    slot.length.store(word(1));
    slot.imm.store(word(2));
    slot.large.store(word(3));
    slot.sequence.store(++put_);
  }

  void AnswerKey(Bytes bytes) {
    SocketMessage answer = MessageOf(bytes);
    const uint32_t fds = answer.type % 3;
    answer.type = static_cast<uint32_t>(MessageType::kResolved);
    answer.rkey = kPeersKey;
    std::vector<UniqueFd> sent;
    for (const PeerMemory* const memory : {&site_.table, &site_.frames}) {
      if (sent.size() < fds) {
        sent.push_back(memory->Dup());
      }
    }
    SendMessageTo(answers_.get(), BytesOf(answer), sent);
  }

  ScatterGather Local(size_t index, uint32_t length) {
    const size_t offset = index % (kMemory / kMessage) * kMessage;
    return {site_.memory->data() + offset, length, site_.region->lkey()};
  }
  void Allow(const ScatterGather& local) {
    const auto first = static_cast<const std::byte*>(local.addr) - site_.memory->data();
    std::fill_n(allowed_.begin() + first, local.length, true);
  }

  void PostSend(Bytes bytes) {
    if (bytes.size() < 8) {
      return;
    }
    constexpr std::array<Opcode, 6> kKinds = {Opcode::kRdmaRead, Opcode::kRdmaWrite,        Opcode::kSend,
                                              Opcode::kFetchAdd, Opcode::kRdmaWriteWithImm, Opcode::kCompareSwap};
    SendWorkRequest request;
    request.id = next_id_;
    request.opcode = kKinds[bytes[0] % kKinds.size()];
    const bool atomic = request.opcode == Opcode::kFetchAdd || request.opcode == Opcode::kCompareSwap;
    request.local = Local(bytes[1], atomic ? 8 : 1 + (bytes[2] | uint32_t{bytes[3]} << 8) % kMessage);
    request.rkey = RKey{kPeersKey};
    std::memcpy(&request.remote_offset, bytes.data() + 4, std::min<size_t>(bytes.size() - 4, 8));
    if (pair_->PostSend({&request, 1}).ok()) {
      pending_[next_id_++] = {};
      if (request.opcode == Opcode::kRdmaRead || atomic) {
        Allow(request.local);
      }
    }
  }

  void PostReceive(Bytes bytes) {
    if (bytes.size() < 3) {
      return;
    }
    const RecvWorkRequest request{next_id_, Local(bytes[0], 1 + (bytes[1] | uint32_t{bytes[2]} << 8) % kMessage)};
    if (pair_->PostRecv({&request, 1}).ok()) {
      pending_[next_id_++] = request.local.length;
      Allow(request.local);
    }
  }

  void ReadNow(Bytes bytes) {
    if (bytes.size() < 8) {
      return;
    }
    uint64_t offset = 0;
    std::memcpy(&offset, bytes.data(), sizeof(offset));
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(64, kPageSize - offset % kPageSize));
    std::array<std::byte, 65> to{};
    to[length] = kUntouched;
    [[maybe_unused]] const bool done = pair_->ReadNow(to.data(), length, offset, RKey{kPeersKey});
    TERMFS_CHECK(to[length] == kUntouched);
  }

  // A request of the peer's, which the RNIC's thread answers, or hangs up.
  void Ask(Bytes bytes) {
    SocketMessage request = MessageOf(bytes);
    if (bytes.size() == 1) {
      request = {.type = static_cast<uint32_t>(MessageType::kResolve), .rkey = site_.region->rkey().value};
    }
    SendMessageTo(requests_.get(), bytes.size() == 1 ? BytesOf(request) : bytes, {});
    const bool whole = bytes.size() == 1 || bytes.size() == sizeof(request);
    const bool known = request.type == static_cast<uint32_t>(MessageType::kResolve) ||
                       request.type == static_cast<uint32_t>(MessageType::kFault);
    SocketMessage answer;
    std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    iovec data{&answer, sizeof(answer)};
    ssize_t got = 0;
    do {  // wake-ups come this way, too
      pollfd waiting{.fd = requests_.get(), .events = POLLIN, .revents = 0};
      TERMFS_CHECK(poll(&waiting, 1, kPatienceMs) == 1);
      msghdr header{};
      header.msg_iov = &data;
      header.msg_iovlen = 1;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      got = recvmsg(requests_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      const cmsghdr* const rights = got > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
      if (rights != nullptr) {
        const UniqueFd object(*reinterpret_cast<const int*>(CMSG_DATA(rights)));
        TERMFS_CHECK(answer.ok == 1 && answer.rkey == site_.region->rkey().value);
      }
    } while (got > 0 && answer.type == static_cast<uint32_t>(MessageType::kWake));
    TERMFS_CHECK(got <= 0 || (whole && known && answer.rkey == request.rkey));
    TERMFS_CHECK(got <= 0 || answer.ok == 0 || request.rkey == site_.region->rkey().value);
  }

  void Poll() {
    std::array<WorkCompletion, 8> completions{};
    for (int polls = 0; polls < 3; polls++) {
      const size_t count = site_.queue->Poll(completions);
      CheckCompletions({completions.data(), count});
    }
  }

  void CheckCompletions(std::span<const WorkCompletion> completions) {
    for (const WorkCompletion& completion : completions) {
      const auto found = pending_.find(completion.id);
      TERMFS_CHECK(found != pending_.end());
      if (completion.status == WcStatus::kSuccess && found->second.has_value()) {
        TERMFS_CHECK(completion.opcode == Opcode::kRecv);
        TERMFS_CHECK(completion.has_imm || completion.byte_len <= *found->second);
      }
      pending_.erase(found);
    }
  }

  Site& site_;
  std::unique_ptr<QueuePair> pair_;
  std::optional<PeerMemory> own_inbox_;
  UniqueFd answers_;   // to what this side asks
  UniqueFd requests_;  // of the peer's, and their answers
  uint64_t put_ = 0;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::optional<uint32_t>> pending_;  // of a receive: what it holds
  std::vector<bool> allowed_;                            // to change
};

void Try(Site& site, Bytes input) {
  if (input.size() < 2) {
    return;
  }
  const size_t bytes = std::min<size_t>(input[1], input.size() - 2);
  Peer peer(site);
  if (!peer.Connect(input.subspan(2, bytes), (input[0] & 1) != 0)) {
    return;
  }
  input = input.subspan(2 + bytes);
  for (int steps = 0; input.size() >= 2 && steps < 40; steps++) {
    const size_t length = std::min<size_t>(input[1], input.size() - 2);
    peer.Step(input[0], input.subspan(2, length));
    input = input.subspan(2 + length);
  }
}

}  // namespace
}  // namespace termfs::driver::softnic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const site = [] {  // lives to the end: its thread is none of an input's
    TERMFS_CHECK(termfs::StartLog(termfs::LogLevel::kError).ok());
    return new termfs::driver::softnic::Site;
  }();
  termfs::driver::softnic::Try(*site, {data, size});
  return 0;
}
