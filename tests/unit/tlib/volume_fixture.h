// SPDX-License-Identifier: Apache-2.0
//
// What tests of tlib as a whole share: a directory of their own, a service that answers simply, a server and clients on
// software RNICs.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "driver/softnic/softnic.h"
#include "tests/unit/eventually.h"
#include "tlib/client/session.h"
#include "tlib/rpc/tcp_socket.h"
#include "tlib/server/server.h"
#include "tlib/server/task.h"

namespace termfs::tlib {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "termfs-tlib-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

enum TestOpcode : uint16_t {
  kEcho = kFirstServiceOpcode,  // the body comes back; bulk in comes back as bulk out
  kFail,                        // EXDEV
  kBlock,                       // waits on a blocking thread until `withheld` is false
  kWithhold,                    // waits until `withheld` is false, then fills bulk out with 0xee
  kCallBack,                    // calls the client that asks: the body goes there and comes back
  kHoldPage,                    // of which the body is the index: nobody gets at it until `withheld` is false; EPERM
};

class TestService final : public server::Service {
 public:
  Result<std::vector<std::byte>> Handle(server::Call& call) override {
    const std::vector<std::byte> body(call.body().begin(), call.body().end());
    switch (call.opcode()) {
      case kEcho: {
        std::vector<std::byte> bulk(call.in().length);
        RETURN_IF_ERROR(call.PullBulk(bulk));
        ++echoes;
        RETURN_IF_ERROR(call.PushBulk(bulk));
        return body;
      }
      case kFail:
        return Status::Error(EXDEV, "as asked");
      case kBlock:
        call.RunBlocking([&] {
          withholding++;
          EXPECT_TRUE(Eventually([&] { return !withheld; }));
          withholding--;
        });
        return body;
      case kWithhold: {
        WaitWithheld();
        RETURN_IF_ERROR(call.PushBulk(std::vector<std::byte>(call.out().length, std::byte{0xee})));
        return body;
      }
      case kCallBack:
        return server->CallClient(call.session(), kEcho, body, std::chrono::milliseconds(callback_timeout));
      case kHoldPage: {
        uint32_t page = 0;
        std::memcpy(&page, body.data(), sizeof(page));
        return server->region()
            .WriteFrom(call, {page * kPageSize}, 0, 1,
                       [this] {
                         WaitWithheld();
                         return Status::Error(EPERM, "as asked");
                       })
            .WithContext("held");
      }
      default:
        return Status::Error(ENOSYS, "unknown");
    }
  }
  Result<std::vector<std::byte>> HandleAdmin(uint16_t opcode, std::span<const std::byte> body) override {
    if (opcode == 1) {
      return Status::Error(EDOM, "as asked");
    }
    return std::vector<std::byte>(body.begin(), body.end());
  }
  Status SessionOpened(const server::SessionInfo&) override {
    opened++;
    return Status::Ok();
  }
  void SessionClosed(server::SessionId, const server::SessionEnd& end) override {
    last_end = end.how;
    closed++;
  }
  bool AllowsRawWrites() const override { return allow_writes; }

  void WaitWithheld() {
    withholding++;
    while (withheld) {
      server::Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    }
    withholding--;
  }

  server::Server* server = nullptr;
  std::atomic<int> callback_timeout{60'000};
  std::atomic<bool> allow_writes{true};
  std::atomic<bool> withheld{true};
  std::atomic<int> withholding{0};
  std::atomic<uint64_t> echoes{0};  // that have their bytes
  std::atomic<int> opened{0};
  std::atomic<int> closed{0};
  std::atomic<server::SessionEnd::How> last_end{};  // of those closed
};

inline std::vector<std::byte> BytesOf(uint32_t value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline uint64_t MetricOf(const std::vector<MetricValue>& values, std::string_view name) {
  for (const MetricValue& value : values) {
    if (value.name == name) {
      return value.value;
    }
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

// A port of this host that is free now.
inline uint16_t FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return LocalPlaceOf(fd.get()).port;
}

// A formatted region with a server on it.
class TestVolume {
 public:
  explicit TestVolume(server::RegionOptions region, uint32_t workers = 2) {
    region.device = directory_.path() + "/region";
    region.written_log = directory_.path() + "/written";
    options_.region = region;
    options_.socket_directory = directory_.path();
    options_.workers = workers;
    options_.epoch = 7;
  }
  ~TestVolume() { Stop(); }

  Status Format() { return server::Server::FormatRegion(options_.region, nullptr); }
  Status Start() {
    ASSIGN_OR_RETURN(nic_, driver::CreateSoftNic(nic_options_));
    ASSIGN_OR_RETURN(server_, server::Server::Start(*nic_, options_, service_));
    service_.server = server_.get();
    return Status::Ok();
  }
  void Stop() {
    server_.reset();
    nic_.reset();
  }

  const std::string& path() const { return directory_.path(); }
  server::Server& server() { return *server_; }
  TestService& service() { return service_; }
  server::ServerOptions& options() { return options_; }
  driver::SoftNicOptions& nic_options() { return nic_options_; }

 private:
  TemporaryDirectory directory_;
  server::ServerOptions options_;
  driver::SoftNicOptions nic_options_;
  TestService service_;
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<server::Server> server_;
};

// A session with one channel.
struct TestClient {
  std::unique_ptr<driver::Nic> nic;
  std::unique_ptr<client::Session> session;
  std::unique_ptr<client::Channel> channel;

  Status Connect(const ServerAddress& address, const client::SessionOptions& options = {},
                 client::CallbackHandler* handler = nullptr) {
    ASSIGN_OR_RETURN(nic, driver::CreateSoftNic());
    ASSIGN_OR_RETURN(session, client::Session::Connect(*nic, address, options, handler));
    ASSIGN_OR_RETURN(channel, session->OpenChannel({}));
    return Status::Ok();
  }
  Status Read(uint64_t offset, std::span<std::byte> to) {
    const client::ReadRequest read{
        .offset = {offset}, .length = static_cast<uint32_t>(to.size()), .destination = channel->buffer().data()};
    RETURN_IF_ERROR(channel->Read({&read, 1}));
    std::memcpy(to.data(), channel->buffer().data(), to.size());
    return Status::Ok();
  }
  Status Write(uint64_t offset, std::span<const std::byte> from) {
    std::memcpy(channel->buffer().data(), from.data(), from.size());
    return channel->Write({offset}, {channel->buffer().data(), from.size()});
  }
};

}  // namespace termfs::tlib
