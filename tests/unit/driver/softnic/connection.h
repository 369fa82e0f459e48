// SPDX-License-Identifier: Apache-2.0
//
// A software RNIC with one queue pair, for tests: two of them in one process, or one in each of two.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "driver/nic.h"
#include "driver/softnic/softnic.h"
#include "driver/verbs/verbs.h"
#include "tests/fakes/tls_acceptor.h"

namespace termfs::driver {

inline constexpr Access kAllAccess =
    Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic;

// A busy machine may keep the other side from running for seconds.
inline QueuePairOptions Patient() {
  QueuePairOptions options;
  options.rnr_timeout = std::chrono::seconds(60);
  return options;
}

// How the queue pairs of Sides made from now on are connected: over this address of the loopback interface, by "iwarp",
// inside "tls" and with both ends "polled" (NetworkPath) where that follows; empty: through shared memory.
inline std::optional<NetworkPath> test_path;
inline bool test_tls = false;
inline uint64_t test_records_of_key = TlsContext::kRecordsOfKey;
inline SoftNicOptions test_nic;

inline Gid GidOf(const std::string& address) {
  const std::string mapped = address.find(':') == std::string::npos ? "::ffff:" + address : address;
  Gid gid;
  TERMFS_CHECK(inet_pton(AF_INET6, mapped.c_str(), gid.data()) == 1);
  return gid;
}

// An RDMA device for tests, and another network of this machine in which the software RNIC is its peer: one of a
// kernel RNIC's own network would find its port taken. From the environment; without it there are no such tests.
struct TestDevice {
  std::string name, address;                 // TERMFS_TEST_DEVICE=rxe0,10.0.0.1
  std::string other_network, other_address;  // TERMFS_TEST_OTHER=/run/netns/other,10.0.0.2
  UniqueFd own_network;
};
inline const TestDevice* DeviceOfTests() {
  static const std::optional<TestDevice> device = []() -> std::optional<TestDevice> {
    const char* const device_text = std::getenv("TERMFS_TEST_DEVICE");
    const char* const other_text = std::getenv("TERMFS_TEST_OTHER");
    if (device_text == nullptr || other_text == nullptr) {
      return std::nullopt;
    }
    const std::string mine = device_text;
    const std::string other = other_text;
    return TestDevice{mine.substr(0, mine.find(',')), mine.substr(mine.find(',') + 1), other.substr(0, other.find(',')),
                      other.substr(other.find(',') + 1), UniqueFd(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC))};
  }();
  return device ? &*device : nullptr;
}

// Of the two ends that are made next, whether the client's and the server's is the RDMA device.
struct Ends {
  bool verbs[2];
};
inline std::optional<Ends> test_ends;

inline void SetPath(const std::string& path) {
  test_path.reset();
  test_ends.reset();
  test_tls = path.find("tls") != std::string::npos;
  test_nic.threads = path.find("threads") != std::string::npos ? 3 : 1;
  if (path.empty()) {
    return;
  }
  if (path.find(" to ") != std::string::npos) {
    test_ends = Ends{{path.starts_with("verbs"), path.ends_with("verbs")}};
    return;
  }
  const std::string address = path.substr(0, path.find(' '));
  const Gid gid = GidOf(address);
  test_path = {.local = gid, .remote = gid, .interface = 0};
  test_path->polled = path.ends_with("polled");
  test_path->wire = path.find("iwarp") != std::string::npos ? Wire::kIwarp : Wire::kRoce;
}

// The RNIC of an end, 0: the client, 1: the server; sets test_path, and the thread's network to that of the end.
inline std::unique_ptr<Nic> MakeNic(size_t end) {
  if (!test_ends) {
    return CreateSoftNic(test_nic).value();
  }
  const TestDevice& device = *DeviceOfTests();
  const bool verbs = test_ends->verbs[end];
  const bool peer_verbs = test_ends->verbs[1 - end];
  test_path = {.local = GidOf(verbs ? device.address : device.other_address),
               .remote = GidOf(peer_verbs ? device.address : device.other_address)};
  const UniqueFd other(open(device.other_network.c_str(), O_RDONLY | O_CLOEXEC));
  TERMFS_CHECK(setns(verbs ? device.own_network.get() : other.get(), CLONE_NEWNET) == 0);
  return verbs ? CreateVerbsNic(device.name).value() : CreateSoftNic(test_nic).value();
}

// Of one end, of the path that is set.
inline std::optional<NetworkPath> PathOf(size_t end) {
  std::optional<NetworkPath> path = test_path;
  if (path) {
    path->dials = end == 0;
  }
  if (test_tls && end == 0) {
    path->tls = TlsContext::ForClient(KeyOfTests(), test_records_of_key).value();
  }
  return path;
}

// Of an end that is dialled inside TLS, whose path it completes; else null.
inline std::unique_ptr<TlsAcceptor> AcceptorFor(Nic& nic, std::optional<NetworkPath>& path) {
  if (!test_tls || path->dials) {
    return nullptr;
  }
  const bool ipv4 = path->local == GidOf("127.0.0.1");
  UniqueFd listener(socket(ipv4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage address{};
  address.ss_family = ipv4 ? AF_INET : AF_INET6;
  socklen_t length = ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  TERMFS_CHECK(bind(listener.get(), any, length) == 0 && listen(listener.get(), 64) == 0 &&
               getsockname(listener.get(), any, &length) == 0);
  auto acceptor = std::make_unique<TlsAcceptor>(nic, std::move(listener), test_records_of_key);
  path->adopts = true;
  path->local_port = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);  // where sockaddr_in6 has it
  path->tls = acceptor->context();
  return acceptor;
}

// For tests of what holds on either path.
class AnyPath : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SetPath(GetParam()); }
  void TearDown() override { SetPath(""); }
  static bool over_network() { return *GetParam() != '\0'; }
  static bool over_iwarp() { return std::string_view(GetParam()).find("iwarp") != std::string_view::npos; }
};
inline std::string PathName(const testing::TestParamInfo<const char*>& info) {
  const std::string path = info.param;
  if (const size_t to = path.find(" to "); to != std::string::npos) {
    return path.substr(0, to) + "To" + path.substr(to + 4);
  }
  const std::string family = path.starts_with("::1") ? "Ipv6" : "Ipv4";
  const std::string wire = std::string(path.find("iwarp") != std::string::npos ? "Iwarp" : "") +
                           (path.find("tls") != std::string::npos ? "Tls" : "") +
                           (path.find("threads") != std::string::npos ? "Threads" : "");
  return path.empty() ? "SharedMemory" : family + wire + (path.ends_with("polled") ? "Polled" : "");
}
inline auto EveryPath() {
  std::vector<const char*> paths = {"",
                                    "::1",
                                    "127.0.0.1",
                                    "::1 polled",
                                    "127.0.0.1 polled",
                                    "::1 iwarp",
                                    "127.0.0.1 iwarp",
                                    "::1 iwarp polled",
                                    "::1 iwarp tls",
                                    "::1 iwarp threads",
                                    "127.0.0.1 iwarp tls threads",
                                    "127.0.0.1 iwarp tls polled"};
  if (DeviceOfTests() != nullptr) {
    paths.insert(paths.end(), {"verbs to verbs", "verbs to softnic", "softnic to verbs"});
  }
  return testing::ValuesIn(paths);
}

struct Side {
  explicit Side(QueuePairOptions wanted = Patient(), size_t end = 0) : options(wanted) {
    nic = MakeNic(end);
    options.network = PathOf(end);
    acceptor = AcceptorFor(*nic, options.network);
    domain = nic->CreateProtectionDomain().value();
    queue = nic->CreateCompletionQueue(1024).value();
    memory = nic->AllocateMemory({.bytes = 1 << 20}).value();
    region = domain->RegisterMemory(memory->data(), memory->size(), kAllAccess).value();
    options.send_cq = queue.get();
    options.recv_cq = queue.get();
    pair = domain->CreateQueuePair(options).value();
  }

  ScatterGather Local(size_t offset, uint32_t length) { return {memory->data() + offset, length, region->lkey()}; }

  Status Send(const SendWorkRequest& request) { return pair->PostSend({&request, 1}); }
  Status Receive(uint64_t id, size_t offset, uint32_t length) {
    const RecvWorkRequest request{id, Local(offset, length)};
    return pair->PostRecv({&request, 1});
  }
  SendWorkRequest Request(Opcode opcode, size_t offset, uint32_t length, RKey rkey, uint64_t remote_offset = 0) {
    SendWorkRequest request;
    request.id = next_id++;
    request.opcode = opcode;
    request.local = Local(offset, length);
    request.rkey = rkey;
    request.remote_offset = remote_offset;
    return request;
  }
  // The next completion; none within the time that only a defect takes. Sleeps when it does not come soon: on a busy
  // machine the other side needs this processor.
  std::optional<WorkCompletion> Wait(std::chrono::seconds patience = std::chrono::seconds(120)) {
    constexpr int kPolls = 2000;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    WorkCompletion completion;
    for (int polls = 0; std::chrono::steady_clock::now() < deadline; polls++) {
      if (queue->Poll({&completion, 1}) == 1) {
        return completion;
      }
      if (polls < kPolls || !queue->Arm()) {
        continue;
      }
      pollfd waiting{queue->fd(), POLLIN, 0};
      poll(&waiting, 1, 100);
      queue->Disarm();
    }
    ADD_FAILURE() << "no completion";
    return std::nullopt;
  }
  WcStatus WaitStatus() {
    const std::optional<WorkCompletion> completion = Wait();
    return completion ? completion->status : WcStatus::kFatalErr;
  }
  WcStatus Run(const SendWorkRequest& request) {
    EXPECT_TRUE(Send(request).ok());
    return WaitStatus();
  }

  QueuePairOptions options;
  std::unique_ptr<Nic> nic;
  std::unique_ptr<TlsAcceptor> acceptor;  // of a server inside TLS
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> pair;
  uint64_t next_id = 1;
};

inline void Connect(QueuePair& a, QueuePair& b) {
  Endpoint of_a = a.LocalEndpoint().value();
  Endpoint of_b = b.LocalEndpoint().value();
  ASSERT_TRUE(a.Connect(std::move(of_b)).ok());
  ASSERT_TRUE(b.Connect(std::move(of_a)).ok());
}

// Two RNICs in this process, connected. `client` works on the memory of `server`.
struct Connection {
  explicit Connection(const QueuePairOptions& options = Patient()) : client(options, 0), server(options, 1) {
    Connect(*client.pair, *server.pair);
  }
  Side client;
  Side server;
};

// Passes plain bytes and an Endpoint's descriptors over a Unix socket; both block.
inline void SendOver(int socket, const void* bytes, size_t size, const std::vector<UniqueFd>& fds = {}) {
  iovec data{const_cast<void*>(bytes), size};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* cmsg = CMSG_FIRSTHDR(&header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); i++) {
      const int fd = fds[i].get();
      memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(fd));
    }
  }
  ASSERT_EQ(sendmsg(socket, &header, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

// Returns the bytes received; 0 when the other side is gone.
inline size_t ReceiveOver(int socket, void* bytes, size_t size, std::vector<UniqueFd>* fds = nullptr) {
  iovec data{bytes, size};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  for (cmsghdr* cmsg = CMSG_FIRSTHDR(&header); got > 0 && cmsg != nullptr; cmsg = CMSG_NXTHDR(&header, cmsg)) {
    for (size_t i = 0; i < (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
      UniqueFd owned(fd);
      if (fds != nullptr) {
        fds->push_back(std::move(owned));
      }
    }
  }
  return got > 0 ? static_cast<size_t>(got) : 0;
}

// Connects `pair` with one in the process at the other end of `socket` (SOCK_SEQPACKET), which does the same.
inline void ConnectOver(int socket, QueuePair& pair) {
  {
    const Endpoint local = pair.LocalEndpoint().value();
    SendOver(socket, local.bytes.data(), local.bytes.size(), local.fds);
  }
  Endpoint remote;
  remote.bytes.resize(4096);
  remote.bytes.resize(ReceiveOver(socket, remote.bytes.data(), remote.bytes.size(), &remote.fds));
  ASSERT_TRUE(pair.Connect(std::move(remote)).ok());
}

}  // namespace termfs::driver
