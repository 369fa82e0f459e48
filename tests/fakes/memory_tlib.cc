// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/memory_tlib.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "tests/fakes/memory_channel.h"
#include "tests/fakes/memory_session.h"

namespace termfs {

using tlib::server::SessionId;
using tlib::server::Task;

namespace {

class ClientSession final : public tlib::client::Session {
 public:
  ClientSession(std::shared_ptr<MemorySession> session, uint64_t epoch, std::function<void()> close,
                std::function<Result<std::unique_ptr<tlib::client::Channel>>(size_t)> open, uint64_t pages,
                std::string volume)
      : session_(std::move(session)),
        epoch_(epoch),
        close_(std::move(close)),
        open_(std::move(open)),
        pages_(pages),
        volume_(std::move(volume)) {}
  ~ClientSession() override { close_(); }
  Result<std::unique_ptr<tlib::client::Channel>> OpenChannel(const tlib::client::ChannelOptions& options) override {
    if (session_->lost || session_->closing) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    return open_(options.buffer_bytes);
  }
  Result<std::vector<std::byte>> Admin(uint16_t, std::span<const std::byte>) override {
    return Status::Error(ENOSYS, "no control channel");
  }
  Status Goodbye(std::chrono::milliseconds) override {
    session_->goodbye = true;
    return Status::Ok();
  }
  void Abandon(const Status&) override {
    session_->lost = true;
    close_();
  }
  uint64_t id() const override { return session_->id; }
  uint64_t epoch() const override { return epoch_; }
  driver::RegionKind kind() const override { return driver::RegionKind::kTerm; }
  uint64_t pages() const override { return pages_; }
  uint64_t max_pages() const override { return uint64_t{1} << 30; }
  std::string transport() const override { return "memory"; }
  driver::ReadWay way() const override { return driver::ReadWay::kTranslated; }
  std::string volume() const override { return volume_; }
  bool lost() const override { return session_->lost; }
  std::vector<MetricValue> Metrics() const override { return {}; }

 private:
  const std::shared_ptr<MemorySession> session_;
  const uint64_t epoch_;
  const std::function<void()> close_;
  const std::function<Result<std::unique_ptr<tlib::client::Channel>>(size_t)> open_;
  const uint64_t pages_;
  const std::string volume_;
};

}  // namespace

MemoryServer::MemoryServer(uint64_t pages) : bytes_(pages << kPageBits), flushed_(pages << kPageBits) {
  auto worker = tlib::server::Worker::Create({});
  TERMFS_CHECK(worker.ok());
  worker_ = std::move(worker).value();
  worker_->Start();
}

Result<std::vector<std::byte>> MemoryServer::Carry(MemorySession& session, const tlib::client::CallRequest& request,
                                                   uint32_t& out_bytes) {
  TERMFS_CHECK(request.body.size() <= tlib::kMaxMessage - sizeof(tlib::RequestHeader));
  Mutex mutex;
  CondVar ended;
  std::optional<Result<std::vector<std::byte>>> result;
  MemoryCall call(session, request);
  session.BeginRequest();
  if (session.closing || session.lost) {
    session.EndRequest();
    return Status::Error(ENOTCONN, "the session is lost");
  }
  worker_->Spawn([&] {
    auto reply = service_.load()->Handle(call);
    MutexLock lock(mutex);
    result.emplace(std::move(reply));
    ended.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!result.has_value()) {
      ended.WaitFor(mutex, std::chrono::seconds(1));
    }
  }
  session.EndRequest();
  out_bytes = call.out_bytes;
  return *std::move(result);
}

void MemoryServer::Deliver(std::shared_ptr<MemoryPost> posted) {
  {
    MutexLock lock(mutex_);
    if (holding_posts_) {
      held_posts_.push_back(std::move(posted));
      return;
    }
  }
  CarryPost(*posted);
}

void MemoryServer::CarryPost(MemoryPost& posted) {
  uint32_t out_bytes = 0;
  posted.reply = Carry(*posted.session, posted.request, out_bytes);
  if (const auto loss = Take(&MemoryServer::loss_, posted.request.opcode)) {
    posted.session->lost = true;
    posted.reply.reset();
    loss();
  }
  posted.answered = true;
}

void MemoryServer::Withdraw(const std::shared_ptr<MemoryPost>& posted) {
  MutexLock lock(mutex_);
  std::erase(held_posts_, posted);
}

void MemoryServer::HoldPosts() {
  MutexLock lock(mutex_);
  holding_posts_ = true;
}

std::vector<std::shared_ptr<MemoryPost>> MemoryServer::TakePosts() {
  MutexLock lock(mutex_);
  holding_posts_ = false;
  return std::exchange(held_posts_, {});
}

size_t MemoryServer::DeliverPosts() {
  const auto held = TakePosts();
  for (const auto& posted : held) {
    CarryPost(*posted);
  }
  return held.size();
}

size_t MemoryServer::DeliverPostsTheOtherWayRound() {
  const auto held = TakePosts();
  std::vector<std::thread> carriers;
  for (auto posted = held.rbegin(); posted != held.rend(); ++posted) {
    carriers.emplace_back([this, &post = **posted] { CarryPost(post); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it is there first
  }
  for (std::thread& carrier : carriers) {
    carrier.join();
  }
  return held.size();
}

MemoryServer::~MemoryServer() {
  const Status stopped = Stop();
  TERMFS_CHECK(stopped.ok());
}

void MemoryServer::Serve(tlib::server::Service& service, uint64_t epoch) {
  MutexLock lock(mutex_);
  service_ = &service;
  epoch_ = epoch;
  dead_ = false;
}

Result<std::unique_ptr<tlib::client::Session>> MemoryServer::Connect(tlib::client::CallbackHandler* handler,
                                                                     uint64_t client, uint32_t reconnect_seconds) {
  auto session = std::make_shared<MemorySession>(next_session_++, handler);
  std::string volume;
  uint64_t epoch = 0;
  {
    MutexLock lock(mutex_);  // nobody dies meanwhile
    if (dead_) {
      return Status::Error(ECONNREFUSED, "no server runs");
    }
    RETURN_IF_ERROR(service_.load()->SessionOpened({.id = {session->id},
                                                    .program = "test",
                                                    .transport = "memory",
                                                    .client = client,
                                                    .reconnect_seconds = client != 0 ? reconnect_seconds : 0U}));
    sessions_[session->id] = session;
    volume = volume_;
    epoch = epoch_;
  }
  return std::unique_ptr<tlib::client::Session>(std::make_unique<ClientSession>(
      session, epoch,
      [this, session] {
        using How = tlib::server::SessionEnd::How;
        Close(session, session->goodbye ? How::kGoodbye : How::kLost);
        session->StopCallbacks();
      },
      [this, session](size_t bytes) -> Result<std::unique_ptr<tlib::client::Channel>> {
        if (const int code = cut_off_-- > 0 ? unreachable_.load() : 0; code != 0) {
          return Status::Error(code, "there is no way to the server");
        }
        return std::unique_ptr<tlib::client::Channel>(std::make_unique<MemoryChannel>(*this, session, bytes));
      },
      region_pages(), volume));
}

void MemoryServer::Rename(const std::string& volume) {
  MutexLock lock(mutex_);
  volume_ = volume;
}

void MemoryServer::LoseReplyOf(uint16_t opcode, std::function<void()> then) {
  MutexLock lock(mutex_);
  loss_ = {.opcode = opcode, .then = std::move(then)};
}

void MemoryServer::AnswerReads() {
  holding_ = false;
  const uint64_t one = 1;
  TERMFS_CHECK(write(answers_.get(), &one, sizeof(one)) == sizeof(one));
}

void MemoryServer::DelayReplyOf(uint16_t opcode, std::function<void()> then) {
  MutexLock lock(mutex_);
  delay_ = {.opcode = opcode, .then = std::move(then)};
}

std::function<void()> MemoryServer::Take(Strike MemoryServer::*strike, uint16_t opcode) {
  MutexLock lock(mutex_);
  return opcode == (this->*strike).opcode ? std::exchange(this->*strike, {}).then : nullptr;
}

void MemoryServer::Die() {
  std::map<uint64_t, std::shared_ptr<MemorySession>> all;
  {
    MutexLock lock(mutex_);
    dead_ = true;
    all.swap(sessions_);
  }
  for (const auto& [id, session] : all) {
    session->lost = true;
    session->closing = true;
    session->WaitUntilQuiet();
  }
}

std::shared_ptr<MemorySession> MemoryServer::Find(uint64_t session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second;
}

bool MemoryServer::IsLost(uint64_t session) {
  const std::shared_ptr<MemorySession> found = Find(session);
  return found == nullptr || found->lost;
}

void MemoryServer::Close(const std::shared_ptr<MemorySession>& session, tlib::server::SessionEnd::How how) {
  if (session->closing.exchange(true)) {
    return;
  }
  session->WaitUntilQuiet();
  service_.load()->SessionClosed({session->id}, {.how = how});
  MutexLock lock(mutex_);
  sessions_.erase(session->id);
}

void MemoryServer::Mute(uint64_t session) {
  if (const auto found = Find(session)) {
    found->mute = true;
  }
}

void MemoryServer::BreakCallbacks(uint64_t session) {
  if (const auto found = Find(session)) {
    found->broken = true;
  }
}

Status MemoryServer::Stop() {
  std::vector<std::thread> closers;
  {
    MutexLock lock(mutex_);
    closers.swap(closers_);
  }
  for (std::thread& closer : closers) {
    closer.join();
  }
  worker_->Stop();
  return Status::Ok();
}

Status MemoryServer::RunInCoroutine(std::function<Status()> task) {
  Mutex mutex;
  CondVar ended;
  std::optional<Status> result;
  worker_->Spawn([&] {
    Status status = task();
    MutexLock lock(mutex);
    result = std::move(status);
    ended.NotifyAll();
  });
  MutexLock lock(mutex);
  while (!result.has_value()) {
    ended.WaitFor(mutex, std::chrono::seconds(1));
  }
  return *result;
}

Result<std::vector<std::byte>> MemoryServer::CallClient(SessionId session, uint16_t opcode,
                                                        std::span<const std::byte> body,
                                                        std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::shared_ptr<MemorySession> found = Find(session.value);
  if (found == nullptr || found->lost || found->broken) {
    return Status::Error(ENOTCONN, "no such session");
  }
  const auto callback = std::make_shared<MemoryCallback>();
  callback->opcode = opcode;
  callback->body.assign(body.begin(), body.end());
  {
    MutexLock lock(callback->mutex);
    callback->waiter = &Task::Current();
  }
  if (!found->mute) {
    found->Push(callback);
  }
  while (true) {
    {
      MutexLock lock(callback->mutex);
      if (callback->answer.has_value()) {
        return std::move(*callback->answer);
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        callback->waiter = nullptr;
        return Status::Error(ETIMEDOUT, "the client does not answer");
      }
    }
    Task::ParkUntil(deadline);
  }
}

void MemoryServer::Expel(SessionId session, const std::string&) {
  End(session, tlib::server::SessionEnd::How::kExpelled);
}

void MemoryServer::Lose(SessionId session, const std::string&) { End(session, tlib::server::SessionEnd::How::kLost); }

void MemoryServer::End(SessionId session, tlib::server::SessionEnd::How how) {
  const std::shared_ptr<MemorySession> found = Find(session.value);
  if (found == nullptr) {
    return;
  }
  found->lost = true;
  MutexLock lock(mutex_);
  closers_.emplace_back([this, found, how] { Close(found, how); });
}

Status MemoryServer::WriteFrom(tlib::server::Call& call, RegionOffset offset, uint32_t in_offset, uint32_t length,
                               const std::function<Status()>& check) {
  const auto& memory_call = static_cast<MemoryCall&>(call);
  TERMFS_CHECK(in_offset <= memory_call.in().length && length <= memory_call.in().length - in_offset);
  Task::Yield();  // as the pull would
  return ForPages(offset, length, [&](std::byte* page, uint64_t done, uint64_t part) -> Status {
    RETURN_IF_ERROR(check());
    if (pages_until_failure_ >= 0 && pages_until_failure_-- == 0) {
      return Status::Error(EIO, "injected: the device refuses");
    }
    std::memcpy(page, memory_call.request_.in.data() + in_offset + done, part);
    return Status::Ok();
  });
}

Status MemoryServer::ReadTo(tlib::server::Call& call, RegionOffset offset, uint32_t out_offset, uint32_t length) {
  const auto& memory_call = static_cast<MemoryCall&>(call);
  TERMFS_CHECK(out_offset <= memory_call.out().length && length <= memory_call.out().length - out_offset);
  Task::Yield();
  return Read(offset, memory_call.request_.out.subspan(out_offset, length));
}

}  // namespace termfs
