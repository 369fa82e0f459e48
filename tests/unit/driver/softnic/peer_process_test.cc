// SPDX-License-Identifier: Apache-2.0
//
// Peers in processes of their own: killed at any instant, and hostile ones. The parent makes its RNIC after fork, so
// that a child inherits nothing of it.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>

#include "base/random.h"
#include "driver/softnic/layout.h"
#include "tests/unit/driver/softnic/child.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) {
    count++;
  }
  closedir(dir);
  return count;
}

size_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  }
  return count;
}

struct Keys {
  uint32_t rkey;
  uint32_t term_rkey;
};

// A peer that does everything at once, for ever: sends, receives, READs of the other side's memory.
void BusyPeer(int socket) {
  QueuePairOptions options = Patient();
  options.max_recv = 8;
  Side side(options);
  ConnectOver(socket, *side.pair);
  Keys keys{};
  ReceiveOver(socket, &keys, sizeof(keys));
  const Keys own{side.region->rkey().value, 0};
  SendOver(socket, &own, sizeof(own));
  for (int i = 0; i < 8; i++) {
    TERMFS_CHECK(side.Receive(1, 0, 64).ok());
  }
  for (;;) {
    SendWorkRequest requests[3] = {side.Request(Opcode::kSend, 0, 64, {}),
                                   side.Request(Opcode::kRdmaWrite, 64, 4096, RKey{keys.rkey}, 8192),
                                   side.Request(Opcode::kRdmaRead, 64, 4096, RKey{keys.rkey}, 0)};
    if (!side.pair->PostSend(requests).ok()) {
      _exit(0);
    }
    for (int done = 0; done < 3;) {
      const auto completion = side.Wait();
      if (!completion || completion->status != WcStatus::kSuccess) {
        _exit(0);
      }
      if (completion->opcode == Opcode::kRecv) {
        TERMFS_CHECK(side.Receive(1, 0, 64).ok());
      } else {
        done++;
      }
    }
  }
}

// Works with a peer until it is killed after `operations` completions; then everything must end with an error.
void UntilKilled(uint64_t operations) {
  Child child(BusyPeer);
  QueuePairOptions options = Patient();
  options.max_recv = 8;
  Side side(options);
  ConnectOver(child.socket(), *side.pair);
  const Keys own{side.region->rkey().value, 0};
  SendOver(child.socket(), &own, sizeof(own));
  Keys keys{};
  ReceiveOver(child.socket(), &keys, sizeof(keys));
  uint32_t receives = 0;
  for (; receives < 8; receives++) {
    ASSERT_TRUE(side.Receive(100, 0, 64).ok());
  }
  uint32_t sends = 0;
  uint64_t completions = 0;
  bool lost = false;
  while (receives + sends > 0) {
    if (!lost && sends == 0) {
      const SendWorkRequest requests[2] = {side.Request(Opcode::kSend, 0, 64, {}),
                                           side.Request(Opcode::kRdmaRead, 64, 4096, RKey{keys.rkey}, 0)};
      ASSERT_TRUE(side.pair->PostSend(requests).ok());
      sends += 2;
    }
    const auto completion = side.Wait();
    ASSERT_TRUE(completion) << "hangs with " << receives << " receives and " << sends << " sends";
    (completion->opcode == Opcode::kRecv ? receives : sends)--;
    if (++completions == operations) {
      child.Kill();
    }
    if (completion->status != WcStatus::kSuccess) {
      lost = true;
      EXPECT_TRUE(completion->status == WcStatus::kWrFlushErr || completion->status == WcStatus::kRetryExcErr)
          << ToString(completion->status);
      if (completion->opcode == Opcode::kRecv) {
        EXPECT_EQ(completion->status, WcStatus::kWrFlushErr);
      }
    } else if (completion->opcode == Opcode::kRecv && !lost) {
      ASSERT_TRUE(side.Receive(100, 0, 64).ok());
      receives++;
    }
  }
  EXPECT_TRUE(lost);
  EXPECT_FALSE(side.pair->connected());
}

TEST(PeerProcess, Killed_AtAnyInstantEverythingEndsAndNothingLeaks) {
  { Side warm_up; }
  const size_t descriptors = OpenDescriptors();
  const size_t mappings = SharedMappings();
  Random random(3);
  for (int round = 0; round < 30; round++) {  // half of them while everything begins
    UntilKilled(1 + random.Below(round % 2 == 0 ? 20 : 200));
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), mappings);
}

TEST(PeerProcess, Killed_WhileWeSleepWakesUsUp) {
  Child child(BusyPeer);
  Side side;
  ConnectOver(child.socket(), *side.pair);
  ASSERT_TRUE(side.Receive(1, 0, 64).ok());
  WorkCompletion completion;
  while (side.queue->Poll({&completion, 1}) == 0 && side.queue->Arm()) {
    pollfd waiting{side.queue->fd(), POLLIN, 0};
    child.Kill();
    ASSERT_EQ(poll(&waiting, 1, 60'000), 1);
    side.queue->Disarm();
  }
}

// --- A peer that closes the connection, or dies, and nothing that would tell of it runs on our side: as in a process
// that was stopped meanwhile, and whose thread that READs goes on first.

struct Owned {
  uint32_t plain;
  uint32_t pages;
};

// Has us READ its memory, and READs an absent page of ours, whose fault our RNIC thread does not get done with. Closes
// when it is told to.
void OwnerThatKeepsItsPeerBusy(int socket) {
  Side side;
  ConnectOver(socket, *side.pair);
  TermRegionOptions options;
  options.pages = options.max_pages = 16;
  const auto pages = side.domain->RegisterTermRegion(options).value();
  TERMFS_CHECK(pages->Commit({0}, 16).ok());
  pages->Publish(PageIndex{1}, FrameIndex{2});
  const Owned own{side.region->rkey().value, pages->rkey().value};
  SendOver(socket, &own, sizeof(own));
  uint32_t absent = 0;
  ReceiveOver(socket, &absent, sizeof(absent));
  TERMFS_CHECK(side.Send(side.Request(Opcode::kRdmaRead, 0, 64, RKey{absent}, 0)).ok());
  char told = 0;
  while (recv(socket, &told, 1, MSG_DONTWAIT) < 0) {
    WorkCompletion completion;
    side.queue->Poll({&completion, 1});
    sched_yield();
  }
  side.pair->Close();
  SendOver(socket, &told, 1);
  pause();
}

void ReadOfAPeerThatIsGone(const std::function<void(Child&)>& gone) {
  Child child(OwnerThatKeepsItsPeerBusy);
  Side side;
  ConnectOver(child.socket(), *side.pair);
  Owned keys{};
  ReceiveOver(child.socket(), &keys, sizeof(keys));
  ASSERT_EQ(side.Run(side.Request(Opcode::kRdmaRead, 0, 64, RKey{keys.plain}, 0)), WcStatus::kSuccess);
  ASSERT_EQ(side.Run(side.Request(Opcode::kRdmaRead, 0, 64, RKey{keys.pages}, kPageSize)), WcStatus::kSuccess);
  std::byte bytes[64];
  ASSERT_TRUE(side.pair->ReadNow(bytes, sizeof(bytes), kPageSize, RKey{keys.pages}));

  std::atomic<bool> busy{false};
  std::atomic<bool> done{false};
  TermRegionOptions options;
  options.pages = options.max_pages = 16;
  options.kind = RegionKind::kOdp;
  options.fault_handler = [&](PageIndex) {
    busy = true;
    while (!done) {
      usleep(1000);
    }
  };
  const auto absent = side.domain->RegisterTermRegion(options).value();
  const uint32_t rkey = absent->rkey().value;
  SendOver(child.socket(), &rkey, sizeof(rkey));
  while (!busy) {
    usleep(1000);
  }
  gone(child);
  EXPECT_FALSE(side.pair->ReadNow(bytes, sizeof(bytes), kPageSize, RKey{keys.pages}));
  EXPECT_FALSE(side.pair->ReadNow(bytes, sizeof(bytes), 0, RKey{keys.pages})) << "an absent page";
  EXPECT_EQ(side.Run(side.Request(Opcode::kRdmaRead, 0, 64, RKey{keys.pages}, kPageSize)), WcStatus::kRetryExcErr);
  done = true;
}

TEST(PeerProcess, Closed_UnheardNothingIsReadAnyMore) {
  ReadOfAPeerThatIsGone([](Child& child) {
    char word = 1;
    SendOver(child.socket(), &word, 1);
    ReceiveOver(child.socket(), &word, 1);
  });
}

TEST(PeerProcess, Killed_UnheardNothingIsReadAnyMore) {
  ReadOfAPeerThatIsGone([](Child& child) { child.Kill(); });
}

// --- A peer that knows the layout and does what it likes.

struct RawPeer {
  explicit RawPeer(int socket) : nic(CreateSoftNic().value()), domain(nic->CreateProtectionDomain().value()) {
    // An honest endpoint for the other side to connect to, of which we keep everything.
    queue = nic->CreateCompletionQueue(256).value();
    QueuePairOptions options = Patient();
    options.send_cq = options.recv_cq = queue.get();
    pair = domain->CreateQueuePair(options).value();
    {
      const Endpoint local = pair->LocalEndpoint().value();
      SendOver(socket, local.bytes.data(), local.bytes.size(), local.fds);
    }
    remote.bytes.resize(4096);
    remote.bytes.resize(ReceiveOver(socket, remote.bytes.data(), remote.bytes.size(), &remote.fds));
    memcpy(&endpoint, remote.bytes.data(), sizeof(endpoint));
    inbox_bytes = softnic::InboxBytes(endpoint.slots, endpoint.max_message);
    void* mapped = mmap(nullptr, inbox_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, remote.fds[0].get(), 0);
    TERMFS_CHECK(mapped != MAP_FAILED);
    inbox = static_cast<std::byte*>(mapped);
  }
  int request_socket() const { return remote.fds[softnic::kRequestSocketFd].get(); }

  std::unique_ptr<Nic> nic;
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<QueuePair> pair;
  Endpoint remote;
  softnic::EndpointBytes endpoint{};
  size_t inbox_bytes = 0;
  std::byte* inbox = nullptr;
};

// Scribbles plausible and implausible messages into the other side's inbox, and garbage into its sockets.
void HostilePeer(int socket, uint64_t seed) {
  RawPeer peer(socket);
  Random random(seed);
  for (int i = 0; i < 20000; i++) {
    const uint64_t index = random.Below(peer.endpoint.slots);
    auto* slot =
        reinterpret_cast<softnic::SlotHeader*>(peer.inbox + softnic::kSlotsOffset + index * softnic::kSlotStride);
    slot->large = static_cast<uint32_t>(random.Below(500) == 0 ? random() : random.Below(peer.endpoint.slots));
    slot->length = static_cast<uint32_t>(random.Below(500) == 0 ? random() : random.Below(101));
    slot->kind = static_cast<uint32_t>(random.Below(1000) == 0 ? random() : random.Below(2) + 1);
    slot->receive_length = static_cast<uint32_t>(random());
    slot->sequence = random.Below(50) == 0 ? random() : index + 1 + peer.endpoint.slots * random.Below(3);
    if (i > 10000 && random.Below(50) == 0) {  // such a message ends the connection, so not at first
      softnic::SocketMessage message;
      message.type = static_cast<uint32_t>(random.Below(7));
      message.rkey = static_cast<uint32_t>(random());
      message.page = random();
      send(peer.request_socket(), &message, random.Below(3) == 0 ? random.Below(sizeof(message)) : sizeof(message),
           MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (random.Below(20) == 0) {
      const uint64_t word = random();
      memcpy(peer.inbox + random.Below(peer.inbox_bytes / 8) * 8, &word, sizeof(word));
    }
    // What the owner maps must stay mapped, whatever is tried.
    if (ftruncate(peer.remote.fds[0].get(), 0) == 0) {
      _exit(9);
    }
    if (i == 1000) {
      fallocate(peer.remote.fds[0].get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(peer.inbox_bytes));
      fcntl(peer.request_socket(), F_SETFL, 0);
    }
  }
  _exit(0);
}

TEST(PeerProcess, Hostile_CanOnlyBreakItsOwnConnection) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    Child child([seed](int socket) { HostilePeer(socket, seed); });
    Connection honest;
    Side victim;
    ConnectOver(child.socket(), *victim.pair);
    // Receives of every size, with guards behind them.
    memset(victim.memory->data(), 0x3c, 1 << 16);
    uint32_t posted = 0;
    const auto post = [&] {
      while (posted < 32 && victim.Receive(posted, 4096, 100).ok()) {
        posted++;
      }
    };
    post();
    ASSERT_TRUE(victim.Send(victim.Request(Opcode::kSend, 0, 64, {})).ok());
    WorkCompletion completion;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (victim.pair->connected() && std::chrono::steady_clock::now() < deadline) {
      if (victim.queue->Poll({&completion, 1}) == 1) {
        ASSERT_LE(completion.byte_len, completion.has_imm ? ~0u : 100u);
        if (completion.opcode == Opcode::kRecv) {
          posted--;
        }
        post();
      }
    }
    ASSERT_EQ(victim.memory->data()[4096 + 100], std::byte{0x3c});
    ASSERT_EQ(victim.memory->data()[4095], std::byte{0x3c});
    EXPECT_EQ(honest.client.Run(honest.client.Request(Opcode::kRdmaRead, 0, 64, honest.server.region->rkey(), 0)),
              WcStatus::kSuccess);
    victim.pair->Close();
    child.Kill();
  }
}

struct Lie {
  uint32_t length;
  uint32_t kind;
  WcStatus status;
};
constexpr Lie kLies[] = {{100, 1, WcStatus::kSuccess},        {101, 1, WcStatus::kLocLenErr},
                         {4097, 1, WcStatus::kLocLenErr},     {~0u, 1, WcStatus::kLocLenErr},
                         {8, 3, WcStatus::kLocLenErr},        {8, 0, WcStatus::kFatalErr},
                         {8, 0x77777777, WcStatus::kFatalErr}};

void OneLie(int socket, const Lie& lie) {
  RawPeer peer(socket);
  auto* slot = reinterpret_cast<softnic::SlotHeader*>(peer.inbox + softnic::kSlotsOffset);
  memset(reinterpret_cast<std::byte*>(slot) + sizeof(*slot), 0x5d, 4096);
  slot->length = lie.length;
  slot->kind = lie.kind;
  slot->sequence = 1;
  char end = 0;
  ReceiveOver(socket, &end, 1);
  _exit(0);
}

void PointBeyondTheInbox(int socket) {
  RawPeer peer(socket);
  auto* slot = reinterpret_cast<softnic::SlotHeader*>(peer.inbox + softnic::kSlotsOffset);
  slot->length = 4000;
  slot->large = peer.endpoint.slots;
  slot->kind = static_cast<uint32_t>(softnic::SlotKind::kSend);
  slot->sequence = 1;
  char end = 0;
  ReceiveOver(socket, &end, 1);
  _exit(0);
}

TEST(PeerProcess, Hostile_LargePayloadBeyondTheInboxIsNone) {
  Child child(&PointBeyondTheInbox);
  Side victim;
  ConnectOver(child.socket(), *victim.pair);
  ASSERT_TRUE(victim.Receive(1, 0, 4096).ok());
  EXPECT_EQ(victim.WaitStatus(), WcStatus::kFatalErr);
  child.Kill();
}

TEST(PeerProcess, Hostile_MessageThatDoesNotFitTouchesNothing) {
  for (const Lie& lie : kLies) {
    Child child([&lie](int socket) { OneLie(socket, lie); });
    Side victim;
    ConnectOver(child.socket(), *victim.pair);
    memset(victim.memory->data(), 0x3c, 1 << 16);
    ASSERT_TRUE(victim.Receive(1, 4096, 100).ok());
    EXPECT_EQ(victim.WaitStatus(), lie.status) << lie.length;
    EXPECT_EQ(victim.memory->data()[4096], std::byte{lie.status == WcStatus::kSuccess ? uint8_t{0x5d} : uint8_t{0x3c}});
    EXPECT_EQ(victim.memory->data()[4096 + 100], std::byte{0x3c});
  }
}

// --- The mapping is the protection.

// Asks for `rkey` by hand, as a hostile peer would; returns the descriptors of the answer.
std::vector<UniqueFd> AskFor(int request_socket, uint32_t rkey) {
  softnic::SocketMessage request;
  request.type = static_cast<uint32_t>(softnic::MessageType::kResolve);
  request.rkey = rkey;
  SendOver(request_socket, &request, sizeof(request));
  pollfd waiting{request_socket, POLLIN, 0};
  std::vector<UniqueFd> fds;
  if (poll(&waiting, 1, 60'000) == 1) {
    softnic::SocketMessage answer;
    ReceiveOver(request_socket, &answer, sizeof(answer), &fds);
  }
  return fds;
}

bool Writable(int fd) {
  void* mapped = mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) {
    return true;
  }
  mapped = mmap(nullptr, kPageSize, PROT_READ, MAP_SHARED, fd, 0);
  const bool upgraded = mapped != MAP_FAILED && mprotect(mapped, kPageSize, PROT_READ | PROT_WRITE) == 0;
  munmap(mapped, kPageSize);
  return upgraded || pwrite(fd, "x", 1, 0) == 1 || ftruncate(fd, 0) == 0 ||
         fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageSize) == 0;
}

bool WritableWhenReopened(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const UniqueFd reopened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return reopened.valid() && Writable(reopened.get());
}

// Exit codes name the descriptor that could be written.
void ThiefPeer(int socket) {
  RawPeer peer(socket);
  struct {
    uint32_t read_only;
    uint32_t read_only_memory;
    uint32_t writable;
    uint32_t term;
    uint32_t bitmap;
    uint32_t rpc;
    uint32_t other_domain;
  } keys{};
  ReceiveOver(socket, &keys, sizeof(keys));
  const auto read_only = AskFor(peer.request_socket(), keys.read_only);
  const auto read_only_memory = AskFor(peer.request_socket(), keys.read_only_memory);
  const auto writable = AskFor(peer.request_socket(), keys.writable);
  const auto term = AskFor(peer.request_socket(), keys.term);
  const auto bitmap = AskFor(peer.request_socket(), keys.bitmap);
  if (read_only.size() != 1 || read_only_memory.size() != 1 || writable.size() != 1 || term.size() != 2 ||
      bitmap.size() != 1) {
    _exit(1);
  }
  if (!AskFor(peer.request_socket(), keys.rpc).empty() || !AskFor(peer.request_socket(), keys.other_domain).empty()) {
    _exit(2);
  }
  int code = 10;
  for (const int fd : {read_only[0].get(), term[0].get(), term[1].get(), bitmap[0].get(), read_only_memory[0].get(),
                       peer.remote.fds[softnic::kValidityFd].get()}) {
    if (Writable(fd)) {
      _exit(code);
    }
    code++;
  }
  // Sealed: not even root gets a writable mapping.
  for (const int fd :
       {term[0].get(), bitmap[0].get(), read_only_memory[0].get(), peer.remote.fds[softnic::kValidityFd].get()}) {
    if (WritableWhenReopened(fd)) {
      _exit(code);
    }
    code++;
  }
  if (!Writable(writable[0].get())) {
    _exit(3);
  }
  // What cannot be sealed is kept by its mode from every other user.
  if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
    _exit(4);
  }
  if (getuid() == 65534 && (WritableWhenReopened(term[1].get()) || WritableWhenReopened(read_only[0].get()))) {
    _exit(5);
  }
  _exit(0);
}

TEST(PeerProcess, Thief_CannotMapReadOnlyMemoryWritable) {
  Child child(ThiefPeer);
  Side side;
  ConnectOver(child.socket(), *side.pair);
  auto sealed = side.nic->AllocateMemory({.bytes = 4096, .name = "sealed", .peers_may_write = false}).value();
  auto sealed_region = side.domain->RegisterMemory(sealed->data(), 4096, Access::kRemoteRead).value();
  auto read_only = side.domain->RegisterMemory(side.memory->data(), 4096, Access::kRemoteRead).value();
  TermRegionOptions options;
  options.pages = options.max_pages = 16;
  auto term = side.domain->RegisterTermRegion(options).value();
  options.kind = RegionKind::kRpc;
  auto rpc = side.domain->RegisterTermRegion(options).value();
  auto other_domain = side.nic->CreateProtectionDomain().value();
  auto other = other_domain->RegisterMemory(side.memory->data(), 4096, kAllAccess).value();
  const uint32_t keys[7] = {read_only->rkey().value, sealed_region->rkey().value, side.region->rkey().value,
                            term->rkey().value,      term->bitmap_rkey().value,   rpc->rkey().value,
                            other->rkey().value};
  SendOver(child.socket(), keys, sizeof(keys));
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace termfs::driver
