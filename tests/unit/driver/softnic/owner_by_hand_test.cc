// SPDX-License-Identifier: Apache-2.0
//
// The owner of memory says what it likes of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <chrono>

#include "driver/softnic/layout.h"
#include "driver/softnic/page_table.h"
#include "tests/unit/driver/softnic/child.h"

namespace termfs::driver {
namespace {

// The owner of memory, who answers for its keys itself.
class OwnerByHand {
 public:
  explicit OwnerByHand(int socket) {
    Endpoint local = side_.pair->LocalEndpoint().value();
    int ends[2];
    TERMFS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    requests_ = UniqueFd(ends[0]);
    local.fds[softnic::kRequestSocketFd] = UniqueFd(ends[1]);
    SendOver(socket, local.bytes.data(), local.bytes.size(), local.fds);
    local.fds.clear();
    remote_.bytes.resize(4096);
    remote_.bytes.resize(ReceiveOver(socket, remote_.bytes.data(), remote_.bytes.size(), &remote_.fds));
  }

  softnic::SocketMessage NextRequest() {
    TERMFS_CHECK(IsAskedWithin(std::chrono::minutes(1)));
    softnic::SocketMessage request;
    TERMFS_CHECK(ReceiveOver(requests_.get(), &request, sizeof(request)) == sizeof(request));
    return request;
  }
  bool IsAskedWithin(std::chrono::milliseconds time) {
    pollfd waiting{.fd = requests_.get(), .events = POLLIN, .revents = 0};
    return poll(&waiting, 1, static_cast<int>(time.count())) == 1;
  }
  void Answer(const softnic::SocketMessage& answer, const std::vector<UniqueFd>& fds = {}) {
    SendOver(requests_.get(), &answer, sizeof(answer), fds);
  }

 private:
  Side side_;
  UniqueFd requests_;
  Endpoint remote_;  // its descriptors stay open
};

// An owner that lies about its region must not make us read outside of it.
void LyingOwner(int socket) {
  OwnerByHand owner(socket);
  softnic::SocketMessage lie = owner.NextRequest();
  uint32_t what = 0;
  ReceiveOver(socket, &what, sizeof(what));
  lie.type = static_cast<uint32_t>(softnic::MessageType::kResolved);
  lie.ok = 1;
  lie.access = ~0u;
  lie.size = 4096;
  lie.validity_slot = 100;  // nothing was ever there: generation 0 is valid
  std::vector<UniqueFd> fds;
  fds.emplace_back(memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TERMFS_CHECK(ftruncate(fds[0].get(), 8192) == 0);
  TERMFS_CHECK(what == 0 || fcntl(fds[0].get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  if (what == 1) {
    lie.size = uint64_t{1} << 40;
  } else if (what == 2) {
    lie.offset = ~uint64_t{0} - 4095;
  } else if (what == 3) {
    lie.validity_slot = softnic::kValiditySlots;
  } else if (what == 4) {
    fds.clear();
  } else if (what == 5) {
    lie.has_pages = 1;
    lie.max_pages = uint64_t{1} << 20;
    fds.emplace_back(fcntl(fds[0].get(), F_DUPFD_CLOEXEC, 0));
  } else if (what == 6) {  // true sizes, but an entry that names a frame far outside
    lie.has_pages = 1;
    lie.max_pages = 1;
    lie.region_kind = static_cast<uint32_t>(RegionKind::kTerm);
    fds.emplace_back(fcntl(fds[0].get(), F_DUPFD_CLOEXEC, 0));
    const uint64_t words[2] = {1000, 0x12345};
    TERMFS_CHECK(pwrite(fds[0].get(), &words[0], 8, 0) == 8 && pwrite(fds[0].get(), &words[1], 8, 4096) == 8);
  }
  owner.Answer(lie, fds);
  char end = 0;
  ReceiveOver(socket, &end, 1);
  _exit(0);
}

TEST(PeerProcess, Liar_IsRefused) {
  for (uint32_t what = 0; what < 7; what++) {
    Child child(LyingOwner);
    Side side;
    ConnectOver(child.socket(), *side.pair);
    SendOver(child.socket(), &what, sizeof(what));
    const WcStatus status = side.Run(side.Request(Opcode::kRdmaRead, 0, 64, RKey{1}, 0));
    EXPECT_EQ(status, what == 6 ? WcStatus::kRemOpErr : WcStatus::kRemAccessErr) << what;
  }
}

// A region whose pages fault, with one page, which is absent.
std::vector<UniqueFd> FaultingRegion(softnic::SocketMessage& answer) {
  answer.type = static_cast<uint32_t>(softnic::MessageType::kResolved);
  answer.ok = 1;
  answer.access = ~0u;
  answer.size = kPageSize;
  answer.validity_slot = 100;
  answer.has_pages = 1;
  answer.max_pages = 1;
  answer.region_kind = static_cast<uint32_t>(RegionKind::kOdp);
  std::vector<UniqueFd> fds;
  for (const char* name : {"table", "frames"}) {
    fds.emplace_back(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    TERMFS_CHECK(ftruncate(fds.back().get(), 2 * kPageSize) == 0);
  }
  const uint64_t pages = 1;
  const uint64_t absent = kMagicFrame;
  TERMFS_CHECK(pwrite(fds[0].get(), &pages, sizeof(pages), 0) == sizeof(pages) &&
               pwrite(fds[0].get(), &absent, sizeof(absent), softnic::kEntriesOffset) == sizeof(absent));
  for (const UniqueFd& fd : fds) {
    TERMFS_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  }
  return fds;
}

// Says once more what its key is, while it is asked for a page of it.
void RepeatingOwner(int socket) {
  OwnerByHand owner(socket);
  softnic::SocketMessage answer = owner.NextRequest();
  owner.Answer(answer, FaultingRegion(answer));
  softnic::SocketMessage fault = owner.NextRequest();
  if (fault.type != static_cast<uint32_t>(softnic::MessageType::kFault)) {
    _exit(1);
  }
  owner.Answer(answer, FaultingRegion(answer));
  if (owner.IsAskedWithin(std::chrono::milliseconds(300))) {
    _exit(2);  // it was taken for the answer
  }
  fault.type = static_cast<uint32_t>(softnic::MessageType::kFaultDone);
  fault.ok = 0;
  owner.Answer(fault);
  char end = 0;
  ReceiveOver(socket, &end, 1);
  _exit(0);
}

TEST(PeerProcess, Owner_SecondAnswerForAKeyIsIgnored) {
  Child child(RepeatingOwner);
  Side side;
  ConnectOver(child.socket(), *side.pair);
  EXPECT_EQ(side.Run(side.Request(Opcode::kRdmaRead, 0, 64, RKey{1}, 0)), WcStatus::kRemOpErr);
  const char end = 0;
  SendOver(child.socket(), &end, 1);
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace termfs::driver
