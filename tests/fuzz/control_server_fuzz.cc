// SPDX-License-Identifier: Apache-2.0
//
// A client that speaks the whole control channel to a live server: hellos, queue pairs, descriptors, heat,
// administrator's requests, raw bytes, hang-ups, in any order. After each input another client is answered, and no
// session is left over.
//
// The input is a row of steps: a byte that says what to do, a byte with a length, so many bytes.
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>

#include "base/check.h"
#include "base/log.h"
#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"

namespace termfs::tlib {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class Channel {
 public:
  explicit Channel(const std::string& directory) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", directory.c_str());
    TERMFS_CHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    timeval patience{.tv_sec = 5, .tv_usec = 0};
    TERMFS_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0);
  }

  void SendRaw(std::span<const uint8_t> bytes) { (void)!send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void SendFramed(std::span<const uint8_t> bytes) {
    (void)SendFrame(socket_.get(), std::as_bytes(bytes), {}, steady_clock::now() + seconds(5)).ok();
  }
  template <typename Body>
  void Send(Body body, size_t descriptors = 0) {
    wire::ControlMessageT message;
    message.body.Set(std::move(body));
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < descriptors; i++) {
      fds.emplace_back(dup(STDERR_FILENO));
    }
    (void)SendFrame(socket_.get(), EncodeControl(message), fds, steady_clock::now() + seconds(5)).ok();
  }
  Status Receive() {
    ASSIGN_OR_RETURN(const Frame frame, reader_.Wait(socket_.get(), steady_clock::now() + seconds(10)));
    wire::ControlMessageT message;
    return DecodeControl(frame.bytes, message);
  }
  void HalfClose() { shutdown(socket_.get(), SHUT_WR); }

 private:
  UniqueFd socket_;
  FrameReader reader_;
};

wire::HelloT Hello() {
  wire::HelloT hello;
  hello.version = kControlVersion;
  return hello;
}

struct Site {
  Site() {
    TERMFS_CHECK(volume.Format().ok() && volume.Start().ok());
    witness = std::make_unique<Channel>(volume.path());
    witness->Send(Hello());
    TERMFS_CHECK(witness->Receive().ok());
  }
  TestVolume volume{{.pages = 256, .dram_ratio = 0.5}, /*workers=*/1};
  std::unique_ptr<Channel> witness;
};

void Step(Channel& channel, uint8_t what, std::span<const uint8_t> bytes) {
  const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  switch (what % 9) {
    case 0:
      return channel.SendRaw(bytes);
    case 1:
      return channel.SendFramed(bytes);
    case 2:
      return channel.Send(Hello());
    case 3: {
      wire::OpenQueuePairT open;
      open.purpose = copy.size() % 2 == 0 ? wire::Purpose::Data : wire::Purpose::Callback;
      open.endpoint = copy;
      return channel.Send(std::move(open), copy.empty() ? 0 : copy[0] % 9);
    }
    case 4: {
      wire::ExportHeatT heat;
      if (!copy.empty()) {
        std::memcpy(&heat.bytes, copy.data(), std::min(copy.size(), sizeof(heat.bytes)));
      }
      heat.rkey = copy.empty() ? 0 : copy.back();
      return channel.Send(std::move(heat));
    }
    case 5:
      return channel.Send(wire::GetRegionInfoT(), copy.size() % 9);
    case 6: {
      wire::AdminT admin;
      admin.opcode = copy.empty() ? 0 : copy[0];
      admin.body = copy;
      return channel.Send(std::move(admin));
    }
    case 7: {
      wire::RegionInfoT answer;  // which only a server sends
      answer.pattern = copy;
      return channel.Send(std::move(answer));
    }
    default:
      return channel.HalfClose();
  }
}

void Try(Site& site, std::span<const uint8_t> input) {
  {
    Channel channel(site.volume.path());
    for (int steps = 0; input.size() >= 2 && steps < 20; steps++) {
      const uint8_t what = input[0];
      const size_t length = std::min<size_t>(input[1], input.size() - 2);
      Step(channel, what, input.subspan(2, length));
      input = input.subspan(2 + length);
    }
  }
  site.witness->Send(wire::GetRegionInfoT());
  TERMFS_CHECK(site.witness->Receive().ok());
  TERMFS_CHECK(Eventually([&] { return site.volume.server().Sessions().size() == 1; }));
}

}  // namespace
}  // namespace termfs::tlib

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const site = [] {  // lives to the end: its threads are none of an input's
    TERMFS_CHECK(termfs::StartLog(termfs::LogLevel::kError).ok());
    return new termfs::tlib::Site;
  }();
  termfs::tlib::Try(*site, {data, size});
  return 0;
}
