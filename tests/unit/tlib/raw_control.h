// SPDX-License-Identifier: Apache-2.0
//
// A client that keeps to nothing, and a server whose other client must not notice.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"

namespace termfs::tlib {

// A control channel by hand.
class RawControl {
 public:
  explicit RawControl(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (path + "/socket").c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, O_NONBLOCK), 0);
  }

  void SendBytes(std::span<const std::byte> bytes) {
    [[maybe_unused]] const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  template <typename Body>
  void Send(Body body) {
    wire::ControlMessageT message;
    message.body.Set(std::move(body));
    [[maybe_unused]] const Status sent = SendFrame(socket_.get(), EncodeControl(message), {},
                                                   std::chrono::steady_clock::now() + std::chrono::seconds(120));
  }
  // The next message; its errno when it is an Error; nothing when the server hung up.
  Status Receive(wire::ControlMessageT& message, std::vector<UniqueFd>* fds = nullptr) {
    auto frame = reader_.Wait(socket_.get(), std::chrono::steady_clock::now() + std::chrono::seconds(120));
    RETURN_IF_ERROR(frame.status());
    RETURN_IF_ERROR(DecodeControl(frame->bytes, message));
    if (fds != nullptr) {
      *fds = std::move(frame->fds);
    }
    if (const auto* error = message.body.AsError(); error != nullptr) {
      return Status::Error(error->code, error->text);
    }
    return Status::Ok();
  }
  Status Receive() {
    wire::ControlMessageT message;
    return Receive(message);
  }
  bool HungUp() {
    return Eventually([&] {
      const Status received = Receive();
      return received.code() == ENOTCONN;
    });
  }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  FrameReader reader_;
};

class HostileTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    ASSERT_TRUE(volume_.Start().ok());
    ASSERT_TRUE(bystander_.Connect(volume_.path()).ok());
  }
  void TearDown() override {
    std::vector<std::byte> page(kPageSize);
    EXPECT_TRUE(bystander_.Read(0, page).ok());
    EXPECT_TRUE(bystander_.channel->Call({.opcode = kEcho, .body = {}, .in = {}, .out = {}}).ok());
    EXPECT_TRUE(Eventually([&] { return volume_.server().Sessions().size() == 1; }));
  }
  static wire::HelloT Hello() {
    wire::HelloT hello;
    hello.version = kControlVersion;
    return hello;
  }

  TestVolume volume_{{.pages = 256, .dram_ratio = 0.5}};
  TestClient bystander_;
};

}  // namespace termfs::tlib
