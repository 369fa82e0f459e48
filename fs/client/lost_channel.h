// SPDX-License-Identifier: Apache-2.0
//
// LostChannel: the channel of a session that was lost before the channel was opened. It has a buffer, which no server
// reaches, and every call fails with why the session was lost; so a lane can be there while no server is.
//
// Thread-safety, ownership and errors: Channel's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

class LostChannel final : public tlib::client::Channel {
 public:
  // `why`: ENOTCONN.
  static Result<std::unique_ptr<tlib::client::Channel>> Create(Status why, size_t buffer_bytes);
  ~LostChannel() override;

  std::span<std::byte> buffer() override { return buffer_; }
  Status Read(std::span<const tlib::client::ReadRequest>) override { return why_; }
  Status BeginRead(std::span<const tlib::client::ReadRequest>, std::vector<std::byte*>&) override { return why_; }
  Status AwaitReads(std::vector<std::byte*>&) override { return why_; }
  Status PollReads(std::vector<std::byte*>&) override { return why_; }
  bool ArmReads(tlib::client::ReadsFds&) override { return false; }
  void DisarmReads() override {}
  void DropReads() override {}
  size_t ReadRoom() override { return 0; }
  uint64_t voids() const override { return 0; }
  Status Write(RegionOffset, std::span<const std::byte>) override { return why_; }
  Result<tlib::client::CallReply> Call(const tlib::client::CallRequest&) override { return why_; }
  bool unsent() const override { return true; }
  Status Post(const tlib::client::CallRequest&, tlib::client::LateReply) override { return why_; }
  Status AwaitPosted() override { return why_; }
  void AfterGivenUp(tlib::client::LateReply late) override { late(why_); }
  void Detach() override {}

 private:
  explicit LostChannel(Status why) : why_(std::move(why)) {}

  const Status why_;
  std::span<std::byte> buffer_;
};

}  // namespace termfs::fs::client
