// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/session.h"

#include "tlib/client/callback_thread.h"
#include "tlib/client/channel.h"
#include "tlib/client/session_core.h"
#include "tlib/client/session_thread.h"

namespace termfs::tlib::client {
namespace {

class SessionImpl final : public Session {
 public:
  static Result<std::unique_ptr<Session>> Connect(driver::Nic& nic, const ServerAddress& address,
                                                  const SessionOptions& options, CallbackHandler* handler) {
    std::unique_ptr<SessionImpl> session(new SessionImpl);
    ASSIGN_OR_RETURN(session->core_, SessionCore::Connect(nic, address, options));
    // The callback thread first: from the moment the session can READ, the server can tell it of new patterns.
    ASSIGN_OR_RETURN(session->callbacks_, CallbackThread::Start(session->core_, handler));
    ASSIGN_OR_RETURN(session->thread_, SessionThread::Start(session->core_));
    return std::unique_ptr<Session>(std::move(session));
  }

  ~SessionImpl() override {
    thread_.reset();
    callbacks_.reset();
    if (core_ != nullptr) {
      core_->MarkLost(Status::Error(ENOTCONN, "closed"));  // channels may live on
      core_->control().Shutdown();
    }
  }

  Result<std::unique_ptr<Channel>> OpenChannel(const ChannelOptions& options) override {
    if (core_->patterns().lost()) {
      return core_->why_lost();
    }
    return ChannelImpl::Open(core_, options);
  }

  Result<std::vector<std::byte>> Admin(uint16_t opcode, std::span<const std::byte> body) override {
    if (core_->patterns().lost()) {
      return core_->why_lost();
    }
    const auto* data = reinterpret_cast<const uint8_t*>(body.data());
    wire::AdminT request;
    request.opcode = opcode;
    request.body.assign(data, data + body.size());
    ASSIGN_OR_RETURN(const auto reply,
                     core_->control().Call<wire::AdminReplyT>(std::move(request), core_->CallDeadline()));
    const auto* out = reinterpret_cast<const std::byte*>(reply.body.data());
    return std::vector<std::byte>(out, out + reply.body.size());
  }

  Status Goodbye(std::chrono::milliseconds timeout) override {
    if (core_->patterns().lost()) {
      return core_->why_lost();
    }
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    return core_->control().Call<wire::DoneT>(wire::GoodbyeT(), deadline).status();
  }

  void Abandon(const Status& why) override {
    core_->MarkLost(why);
    core_->control().Shutdown();
  }

  uint64_t id() const override { return core_->id(); }
  uint64_t epoch() const override { return core_->epoch(); }
  driver::RegionKind kind() const override { return core_->region().kind; }
  uint64_t pages() const override { return core_->region_bytes() >> kPageBits; }
  uint64_t max_pages() const override { return core_->region().max_pages; }
  driver::ReadWay way() const override { return core_->region().way; }
  std::string transport() const override { return core_->transport(); }
  std::string volume() const override { return core_->volume(); }
  bool lost() const override { return core_->patterns().lost(); }
  std::vector<MetricValue> Metrics() const override { return core_->Metrics(); }

 private:
  SessionImpl() = default;
  std::shared_ptr<SessionCore> core_;
  std::unique_ptr<CallbackThread> callbacks_;
  std::unique_ptr<SessionThread> thread_;
};

}  // namespace

Result<std::unique_ptr<Session>> Session::Connect(driver::Nic& nic, const ServerAddress& address,
                                                  const SessionOptions& options, CallbackHandler* handler) {
  return SessionImpl::Connect(nic, address, options, handler);
}

}  // namespace termfs::tlib::client
