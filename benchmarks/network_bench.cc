// SPDX-License-Identifier: Apache-2.0
//
// network_bench serve ADDRESS PORT
// network_bench measure ADDRESS PORT [PAIRS [SECONDS]]
//
// Between two hosts: pages of 4 KiB that are READ at queue depth 32, by RoCE and by iWARP, inside TLS and not, beside
// the same asked for over TCP or TLS, pipelined, with epoll at both ends; and of 1 MiB, beside one stream of these.
// Turns of these alternate. What no transport over UDP with RoCE's packets can pass is measured in the same turns:
// pages asked for and sent in bare datagrams of their sizes, put together as far as the kernel does, which are neither
// numbered, checked, repeated, nor put where they belong. Prints JSON: bytes moved in each turn per second, and per
// second of processor time that the whole machine spent, on which both hosts must be.
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/page.h"
#include "base/random.h"
#include "benchmarks/must.h"
#include "benchmarks/network/datagrams.h"
#include "benchmarks/network/over_tls.h"
#include "benchmarks/network/sockets.h"
#include "driver/checksum.h"
#include "driver/softnic/softnic.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::benchmarks {
namespace {

using std::chrono::steady_clock;

constexpr size_t kLargeDepth = 4;
constexpr size_t kChecked = 64 << 10;  // of a stream with CRCs, at a time

// Of the whole machine, since it was started.
double CpuSeconds() {
  std::FILE* const file = std::fopen("/proc/stat", "re");
  CheckIo(file != nullptr, "/proc/stat");
  std::array<unsigned long long, 8> ticks{};
  const int got = std::fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1], &ticks[2],
                              &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]);
  std::fclose(file);
  CheckIo(got == 8, "/proc/stat");
  const unsigned long long busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];  // neither idle nor stolen
  return static_cast<double>(busy) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// ---------------------------------------------------------------------------------------------------------------
// The server.

struct Store {
  Store() : nic(Must(driver::CreateSoftNic())), domain(Must(nic->CreateProtectionDomain())) {
    driver::TermRegionOptions options;
    options.pages = options.max_pages = kRegionPages;
    region = Must(domain->RegisterTermRegion(options));
    Must(region->Commit({0}, kRegionPages));
    for (uint32_t page = 0; page < kRegionPages; page++) {
      std::memset(region->frame({page}), static_cast<int>(page), kPageSize);
      region->Publish({page}, {page});
    }
  }
  std::unique_ptr<driver::Nic> nic;
  std::unique_ptr<driver::ProtectionDomain> domain;
  std::unique_ptr<driver::TermRegion> region;
};

// The frames lie one behind the other.
std::byte* BytesOf(Store& store, uint64_t offset) { return store.region->frame({0}) + offset; }

// `tls`: its connection comes to this port, too, and is handed on by Serve.
void ServeRdma(Store& store, int socket, driver::Wire wire, std::shared_ptr<const TlsContext> tls = nullptr) {
  const auto queue = Must(store.nic->CreateCompletionQueue(16));
  driver::QueuePairOptions options;
  options.send_cq = options.recv_cq = queue.get();
  options.max_send = options.max_recv = 4;
  options.network = Must(tlib::NetworkPathOf(socket));
  options.network->wire = wire;
  options.network->adopts = tls != nullptr;
  options.network->tls = std::move(tls);
  const auto pair = Must(store.domain->CreateQueuePair(options));
  const driver::Endpoint local = Must(pair->LocalEndpoint());
  driver::Endpoint remote;
  remote.bytes.resize(local.bytes.size());
  CheckIo(ReceiveAll(socket, remote.bytes.data(), remote.bytes.size()), "an endpoint");
  Must(pair->Connect(std::move(remote)));
  SendAll(socket, local.bytes.data(), local.bytes.size());
  const uint32_t rkey = store.region->rkey().value;
  SendAll(socket, &rkey, sizeof(rkey));
  char end = 0;
  ReceiveAll(socket, &end, 1);
}

// All of `pieces`, which change.
bool WriteAll(int socket, std::span<iovec> pieces) {
  while (!pieces.empty()) {
    ssize_t sent = writev(socket, pieces.data(), static_cast<int>(pieces.size()));
    if (sent < 0 && errno == EAGAIN) {
      WaitToWrite(socket);
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    while (!pieces.empty() && static_cast<size_t>(sent) >= pieces.front().iov_len) {
      sent -= static_cast<ssize_t>(pieces.front().iov_len);
      pieces = pieces.subspan(1);
    }
    if (sent > 0) {
      pieces.front().iov_base = static_cast<char*>(pieces.front().iov_base) + sent;
      pieces.front().iov_len -= static_cast<size_t>(sent);
    }
  }
  return true;
}

// Requests are offsets of pages; as many as have come are answered together, out of the frames. `checked`: each with a
// CRC32C behind it.
void ServeRequests(Store& store, int socket, bool checked) {
  const UniqueFd epoll = Watch(socket);
  std::array<uint64_t, 4 * kDepth> requests{};
  std::array<uint32_t, 4 * kDepth> crcs{};
  size_t have = 0;  // bytes of them
  while (true) {
    WaitToRead(epoll.get());
    auto* const bytes = reinterpret_cast<char*>(requests.data());
    const ssize_t got = recv(socket, bytes + have, sizeof(requests) - have, 0);
    if (got <= 0) {
      return;
    }
    have += static_cast<size_t>(got);
    const size_t count = have / sizeof(uint64_t);
    std::vector<iovec> replies;
    for (size_t i = 0; i < count; i++) {
      std::byte* const page = BytesOf(store, requests[i]);
      replies.push_back({page, kSmall});
      if (checked) {
        crcs[i] = driver::Crc32c({page, kSmall});
        replies.push_back({&crcs[i], sizeof(crcs[i])});
      }
    }
    if (!WriteAll(socket, replies)) {
      return;
    }
    have -= count * sizeof(uint64_t);
    std::memmove(bytes, bytes + count * sizeof(uint64_t), have);
  }
}

// While it is told to: one byte, and what it asked for, over and over.
void ServeStream(Store& store, int socket, bool checked) {
  uint64_t bytes = 0;
  while (ReceiveAll(socket, &bytes, sizeof(bytes))) {
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t offset = done % (kRegionPages << kPageBits);
      const uint64_t part = std::min<uint64_t>(checked ? kChecked : kLarge, bytes - done);
      if (checked) {
        CheckIo(driver::Crc32c({BytesOf(store, offset), part}) != 0, "a CRC");
      }
      const ssize_t sent = send(socket, BytesOf(store, offset), part, MSG_NOSIGNAL);
      if (sent <= 0) {
        return;
      }
      done += static_cast<uint64_t>(sent);
    }
  }
}

char PeekByte(int socket) {
  char first = 0;
  recv(socket, &first, 1, MSG_PEEK);
  return first;
}

void GiveToRnic(Store& store, UniqueFd socket, const TlsContext& tls) {
  driver::AcceptedConnection accepted{.socket = std::move(socket), .tls = Must(TlsSession::Accept(tls))};
  accepted.early = Secure(accepted.socket.get(), *accepted.tls);
  store.nic->Adopt(std::move(accepted));
}

int Serve(const tlib::HostPort& place) {
  Store store;
  const TlsKey key = BenchKey();
  const auto tls = Must(TlsContext::ForServer({&key, 1}, kProtocols));
  const std::vector<UniqueFd> listeners = Must(tlib::ListenTcp(place));
  std::puts("ready");
  std::fflush(stdout);
  while (true) {
    pollfd waiting{listeners.front().get(), POLLIN, 0};
    poll(&waiting, 1, -1);
    UniqueFd socket(accept4(listeners.front().get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      continue;
    }
    std::thread([&store, &tls, socket = std::move(socket)]() mutable {
      Must(tlib::SetTcpOptions(socket.get()));
      const auto session = Must(TlsSession::Accept(*tls));
      if (constexpr char kHandshake = 0x16; PeekByte(socket.get()) == kHandshake) {
        CheckIo(fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0, "fcntl");
        GiveToRnic(store, std::move(socket), *tls);
        return;
      }
      Mode mode{};
      if (!ReceiveAll(socket.get(), &mode, sizeof(mode))) {
        return;
      }
      mode == Mode::kRdma          ? ServeRdma(store, socket.get(), driver::Wire::kRoce)
      : mode == Mode::kIwarp       ? ServeRdma(store, socket.get(), driver::Wire::kIwarp)
      : mode == Mode::kIwarpTls    ? ServeRdma(store, socket.get(), driver::Wire::kIwarp, tls)
      : mode == Mode::kTlsRequests ? ServeTlsRequests(BytesOf(store, 0), socket.get(), *session)
      : mode == Mode::kTlsStream   ? ServeTlsStream(BytesOf(store, 0), socket.get(), *session)
      : mode == Mode::kRequests || mode == Mode::kCheckedRequests
          ? ServeRequests(store, socket.get(), mode == Mode::kCheckedRequests)
      : mode == Mode::kDatagrams ? ServeDatagrams(BytesOf(store, 0), socket.get())
                                 : ServeStream(store, socket.get(), mode == Mode::kCheckedStream);
    }).detach();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The client.

class Rdma {
 public:
  Rdma(const tlib::HostPort& place, driver::Wire wire, bool secure = false)
      : socket_(Dial(place, secure                        ? Mode::kIwarpTls
                            : wire == driver::Wire::kRoce ? Mode::kRdma
                                                          : Mode::kIwarp)),
        nic_(Must(driver::CreateSoftNic())),
        domain_(Must(nic_->CreateProtectionDomain())),
        memory_(Must(nic_->AllocateMemory({.bytes = kLargeDepth * kLarge}))),
        memory_region_(Must(domain_->RegisterMemory(memory_->data(), memory_->size(), driver::Access::kLocalWrite))),
        queue_(Must(nic_->CreateCompletionQueue(128))) {
    driver::QueuePairOptions options;
    options.send_cq = options.recv_cq = queue_.get();
    options.network = Must(tlib::NetworkPathOf(socket_.get()));
    options.network->polled = true;  // as clients have it
    options.network->wire = wire;
    options.network->dials = true;
    options.network->tls = secure ? Must(TlsContext::ForClient(BenchKey())) : nullptr;
    pair_ = Must(domain_->CreateQueuePair(options));
    const driver::Endpoint local = Must(pair_->LocalEndpoint());
    SendAll(socket_.get(), local.bytes.data(), local.bytes.size());
    driver::Endpoint remote;
    remote.bytes.resize(local.bytes.size());
    CheckIo(ReceiveAll(socket_.get(), remote.bytes.data(), remote.bytes.size()), "an endpoint");
    Must(pair_->Connect(std::move(remote)));
    CheckIo(ReceiveAll(socket_.get(), &rkey_, sizeof(rkey_)), "a key");
  }

  // Bytes READ.
  uint64_t Run(uint32_t size, size_t depth, double seconds) {
    const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
    std::array<driver::SendWorkRequest, kDepth> requests;
    std::array<driver::WorkCompletion, kDepth> completions;
    for (size_t i = 0; i < depth; i++) {
      requests[i] = Request(i, size);
    }
    Must(pair_->PostSend(std::span(requests).first(depth)));
    uint64_t done = 0;
    size_t under_way = depth;
    while (under_way > 0) {
      const size_t got = queue_->Poll(completions);
      if (got == 0) {
        Sleep();
        continue;
      }
      under_way -= got;
      done += got;
      const bool more = steady_clock::now() < end;
      for (size_t i = 0; i < got; i++) {
        CheckIo(completions[i].status == driver::WcStatus::kSuccess, "READ");
        requests[i] = Request(completions[i].id, size);
      }
      if (more) {
        Must(pair_->PostSend(std::span(requests).first(got)));
        under_way += got;
      }
    }
    return done * size;
  }

 private:
  driver::SendWorkRequest Request(uint64_t slot, uint32_t size) {
    driver::SendWorkRequest request;
    request.id = slot;
    request.opcode = driver::Opcode::kRdmaRead;
    request.local = {memory_->data() + slot * size, size, memory_region_->lkey()};
    request.remote_offset = random_.Below((kRegionPages << kPageBits) / size) * size;
    request.rkey = {rkey_};
    return request;
  }
  void Sleep() {
    if (queue_->Arm()) {
      pollfd waiting{queue_->fd(), POLLIN, 0};
      poll(&waiting, 1, -1);
      queue_->Disarm();
    }
  }

  UniqueFd socket_;
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<driver::ProtectionDomain> domain_;
  std::unique_ptr<driver::Memory> memory_;
  std::unique_ptr<driver::MemoryRegion> memory_region_;
  std::unique_ptr<driver::CompletionQueue> queue_;
  std::unique_ptr<driver::QueuePair> pair_;
  uint32_t rkey_ = 0;
  Random random_{1};
};

// As many requests are under way as depth says; those that are answered make room for new ones, sent together.
class TcpRequests {
 public:
  TcpRequests(const tlib::HostPort& place, bool checked)
      : slot_(kSmall + (checked ? sizeof(uint32_t) : 0)),
        checked_(checked),
        socket_(Dial(place, checked ? Mode::kCheckedRequests : Mode::kRequests)),
        epoll_(Watch(socket_.get())),
        buffer_(kDepth * slot_) {}

  uint64_t Run(size_t depth, double seconds) {
    const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
    Ask(depth);
    uint64_t asked = depth;
    uint64_t bytes = 0;
    while (bytes < asked * slot_) {
      WaitToRead(epoll_.get());
      // The answers' slots, the one that is being filled first, to the end of the buffer and round.
      const size_t at = bytes % buffer_.size();
      const std::array<iovec, 2> slots = {{{buffer_.data() + at, buffer_.size() - at}, {buffer_.data(), at}}};
      const ssize_t got = readv(socket_.get(), slots.data(), slots.size());
      CheckIo(got > 0, "a reply");
      const uint64_t first = bytes / slot_;
      bytes += static_cast<uint64_t>(got);
      const uint64_t answered = bytes / slot_ - first;
      for (uint64_t i = 0; checked_ && i < answered; i++) {
        Check((first + i) % kDepth);
      }
      if (answered > 0 && steady_clock::now() < end) {
        Ask(answered);
        asked += answered;
      }
    }
    return asked * kSmall;
  }

 private:
  void Check(uint64_t slot) const {
    const std::byte* const page = buffer_.data() + slot * slot_;
    uint32_t crc = 0;
    std::memcpy(&crc, page + kSmall, sizeof(crc));
    CheckIo(driver::Crc32c({page, kSmall}) == crc, "a CRC");
  }
  void Ask(size_t count) {
    std::array<uint64_t, kDepth> requests;
    for (size_t i = 0; i < count; i++) {
      requests[i] = random_.Below(kRegionPages) << kPageBits;
    }
    SendAll(socket_.get(), requests.data(), count * sizeof(uint64_t));
  }

  const size_t slot_;
  const bool checked_;
  UniqueFd socket_;
  UniqueFd epoll_;
  std::vector<std::byte> buffer_;
  Random random_{1};
};

class TcpStream {
 public:
  TcpStream(const tlib::HostPort& place, bool checked)
      : checked_(checked),
        socket_(Dial(place, checked ? Mode::kCheckedStream : Mode::kStream)),
        buffer_(checked ? kChecked : kLarge) {}

  uint64_t Run(double seconds) {
    const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
    uint64_t bytes = 0;
    while (steady_clock::now() < end) {
      const uint64_t wanted = 256 * kLarge;  // so many that the way back does not count
      SendAll(socket_.get(), &wanted, sizeof(wanted));
      for (uint64_t left = wanted; left > 0;) {
        const ssize_t got = recv(socket_.get(), buffer_.data(), std::min<uint64_t>(buffer_.size(), left), 0);
        CheckIo(got > 0, "the stream");
        if (checked_) {
          CheckIo(driver::Crc32c({buffer_.data(), static_cast<size_t>(got)}) != 0, "a CRC");
        }
        left -= static_cast<uint64_t>(got);
      }
      bytes += wanted;
    }
    return bytes;
  }

 private:
  const bool checked_;
  UniqueFd socket_;
  std::vector<std::byte> buffer_;
};

struct Turn {
  double per_second = 0;
  double per_cpu_second = 0;
};

Turn Measure(const std::function<uint64_t()>& run) {
  const double cpu = CpuSeconds();
  const auto begin = steady_clock::now();
  const auto bytes = static_cast<double>(run());
  const double took = std::chrono::duration<double>(steady_clock::now() - begin).count();
  return {bytes / took, bytes / std::max(CpuSeconds() - cpu, 0.01)};
}

using Way = std::pair<const char*, std::function<uint64_t()>>;

void Compare(const char* name, int pairs, const std::vector<Way>& ways, bool last) {
  for (const Way& way : ways) {
    way.second();
  }
  std::printf("\"%s\": [", name);
  for (int i = 0; i < pairs; i++) {
    const char* separator = i == 0 ? "{" : ", {";
    for (const Way& way : ways) {
      const Turn turn = Measure(way.second);
      std::printf("%s\"%s\": [%.4g, %.4g]", std::exchange(separator, ", "), way.first, turn.per_second,
                  turn.per_cpu_second);
    }
    std::printf("}");
  }
  std::puts(last ? "]}" : "],");
  std::fflush(stdout);
}

int MeasureAll(const tlib::HostPort& place, int pairs, double seconds) {
  Rdma rdma(place, driver::Wire::kRoce);
  Rdma iwarp(place, driver::Wire::kIwarp);
  TcpRequests requests(place, false);
  TcpRequests checked_requests(place, true);
  Rdma secure(place, driver::Wire::kIwarp, /*secure=*/true);
  TlsRequests tls_requests(place);
  TlsStream tls_stream(place);
  TcpStream stream(place, false);
  TcpStream checked_stream(place, true);
  Datagrams datagrams(place);
  std::printf("{");
  Compare("requests_4k", pairs,
          {{"rdma", [&] { return rdma.Run(kSmall, kDepth, seconds); }},
           {"iwarp", [&] { return iwarp.Run(kSmall, kDepth, seconds); }},
           {"iwarp_tls", [&] { return secure.Run(kSmall, kDepth, seconds); }},
           {"tls", [&] { return tls_requests.Run(kDepth, seconds); }},
           {"tcp", [&] { return requests.Run(kDepth, seconds); }},
           {"tcp_crc", [&] { return checked_requests.Run(kDepth, seconds); }},
           {"datagrams", [&] { return datagrams.Run(seconds); }}},
          false);
  Compare("one_4k", pairs,
          {{"iwarp", [&] { return iwarp.Run(kSmall, 1, seconds); }},
           {"iwarp_tls", [&] { return secure.Run(kSmall, 1, seconds); }},
           {"tls", [&] { return tls_requests.Run(1, seconds); }},
           {"tcp_crc", [&] { return checked_requests.Run(1, seconds); }}},
          false);
  Compare("stream_1m", pairs,
          {{"rdma", [&] { return rdma.Run(kLarge, kLargeDepth, seconds); }},
           {"iwarp", [&] { return iwarp.Run(kLarge, kLargeDepth, seconds); }},
           {"iwarp_tls", [&] { return secure.Run(kLarge, kLargeDepth, seconds); }},
           {"tls", [&] { return tls_stream.Run(seconds); }},
           {"tcp", [&] { return stream.Run(seconds); }},
           {"tcp_crc", [&] { return checked_stream.Run(seconds); }}},
          true);
  return 0;
}

}  // namespace
}  // namespace termfs::benchmarks

int main(int argc, char** argv) {
  using namespace termfs::benchmarks;
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc < 4 || (mode != "serve" && mode != "measure")) {
    std::fputs("usage: network_bench serve|measure ADDRESS PORT [PAIRS [SECONDS]]\n", stderr);
    return 2;
  }
  const termfs::tlib::HostPort place{argv[2], static_cast<uint16_t>(std::atoi(argv[3]))};
  return mode == "serve" ? Serve(place)
                         : MeasureAll(place, argc > 4 ? std::atoi(argv[4]) : 7, argc > 5 ? std::atof(argv[5]) : 1);
}
