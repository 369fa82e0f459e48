// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/memory_tlib.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace termfs {

using tlib::RemoteBuffer;
using tlib::server::SessionId;
using tlib::server::Task;

namespace {

// One callback under way: made by a task, answered by the session's callback thread.
struct Callback {
  uint16_t opcode;
  std::vector<std::byte> body;
  Mutex mutex;
  std::optional<Result<std::vector<std::byte>>> answer GUARDED_BY(mutex);
  Task* waiter GUARDED_BY(mutex) = nullptr;
};

}  // namespace

class MemorySession {
 public:
  MemorySession(uint64_t number, tlib::client::CallbackHandler* handler) : id(number), handler_(handler) {
    thread_ = std::thread([this] { Run(); });
  }
  ~MemorySession() { StopCallbacks(); }

  void StopCallbacks() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void Push(std::shared_ptr<Callback> callback) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(callback));
    changed_.NotifyAll();
  }
  void BeginRequest() {
    MutexLock lock(mutex_);
    ++running_;
  }
  void EndRequest() {
    MutexLock lock(mutex_);
    --running_;
    changed_.NotifyAll();
  }
  void WaitUntilQuiet() {
    MutexLock lock(mutex_);
    while (running_ > 0) {
      changed_.WaitFor(mutex_, std::chrono::seconds(1));
    }
  }

  const uint64_t id;
  std::atomic<bool> lost{false};
  std::atomic<bool> mute{false};
  std::atomic<bool> closing{false};
  std::atomic<bool> goodbye{false};

 private:
  void Run() {
    while (true) {
      std::shared_ptr<Callback> next;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stopping_) {
          changed_.WaitFor(mutex_, std::chrono::seconds(1));
        }
        if (stopping_) {
          return;
        }
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      auto answer = handler_->HandleCallback(next->opcode, next->body);
      MutexLock lock(next->mutex);
      next->answer = std::move(answer);
      if (next->waiter != nullptr) {
        next->waiter->Unpark();
      }
    }
  }

  tlib::client::CallbackHandler* const handler_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  int running_ GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Callback>> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

class MemoryCall final : public tlib::server::Call {
 public:
  MemoryCall(MemorySession& session, const tlib::client::CallRequest& request)
      : session_(session), request_(request), body_(request.body.begin(), request.body.end()) {
    in_.length = static_cast<uint32_t>(request.in.size());
    out_.length = static_cast<uint32_t>(request.out.size());
  }
  SessionId session() const override { return {session_.id}; }
  uint16_t opcode() const override { return request_.opcode; }
  std::span<const std::byte> body() const override { return body_; }
  const RemoteBuffer& in() const override { return in_; }
  const RemoteBuffer& out() const override { return out_; }
  tlib::RequestMark mark() const override { return request_.mark; }
  Status PullBulk(std::span<std::byte> into) override {
    TERMFS_CHECK(into.size() == in_.length);
    std::memcpy(into.data(), request_.in.data(), into.size());
    return Status::Ok();
  }
  Status PushBulk(std::span<const std::byte> from) override {
    if (from.size() > out_.length) {
      return Status::Error(ERANGE, "bulk does not fit");
    }
    std::copy(from.begin(), from.end(), request_.out.begin());
    std::fill(request_.out.begin() + static_cast<ptrdiff_t>(from.size()), request_.out.end(), std::byte{0xee});
    out_bytes = static_cast<uint32_t>(from.size());
    return Status::Ok();
  }
  void RunBlocking(std::function<void()> task) override {
    Task& waiter = Task::Current();
    std::atomic<bool> done{false};
    std::thread thread([&] {
      task();
      done.store(true);
      waiter.Unpark();
    });
    while (!done.load()) {
      Task::Park();
    }
    thread.join();
  }

  uint32_t out_bytes = 0;

 private:
  friend class MemoryServer;
  MemorySession& session_;
  const tlib::client::CallRequest& request_;
  const std::vector<std::byte> body_;
  RemoteBuffer in_;
  RemoteBuffer out_;
};

struct MemoryPost {
  std::shared_ptr<MemorySession> session;
  tlib::client::CallRequest request;
  std::vector<std::byte> body;
  std::vector<std::byte> in;
  tlib::client::LateReply late;
  std::optional<Result<std::vector<std::byte>>> reply;  // set before `answered`
  std::atomic<bool> answered{false};

  void Tell() {
    if (const auto told = std::exchange(late, nullptr)) {
      told(!reply.has_value() ? Result<std::span<const std::byte>>(Status::Error(ENOTCONN, "no reply will come"))
           : reply->ok()      ? Result<std::span<const std::byte>>(**reply)
                              : reply->status());
    }
  }
};

class MemoryChannel final : public tlib::client::Channel {
 public:
  MemoryChannel(MemoryServer& server, std::shared_ptr<MemorySession> session, size_t bytes)
      : server_(server), session_(std::move(session)), buffer_(bytes) {}
  ~MemoryChannel() override { Drop(); }

  std::span<std::byte> buffer() override { return buffer_; }

  Status Read(std::span<const tlib::client::ReadRequest> reads) override {
    for (const auto& read : reads) {
      if (session_->lost) {
        return Status::Error(ENOTCONN, "the session is lost");
      }
      const auto at = static_cast<size_t>(read.destination - buffer_.data());
      TERMFS_CHECK(at <= buffer_.size() && read.length <= buffer_.size() - at && read.length > 0);
      RETURN_IF_ERROR(server_.Read(read.offset, {read.destination, read.length}));
    }
    return Status::Ok();
  }

  Status BeginRead(std::span<const tlib::client::ReadRequest> reads, std::vector<std::byte*>& under_way) override {
    if (broken_) {
      return Status::Error(ENOTCONN, "injected: the channel is broken");
    }
    if (!server_.holding_ || session_->lost) {
      return Read(reads);
    }
    for (const auto& read : reads) {
      under_way_.push_back(read);
      under_way.push_back(read.destination);
    }
    return Status::Ok();
  }
  Status AwaitReads(std::vector<std::byte*>& done) override {
    while (!under_way_.empty() && !HasNews()) {
      pollfd answers{.fd = server_.answers_.get(), .events = POLLIN, .revents = 0};
      poll(&answers, 1, 1);  // a loss wakes nobody here
    }
    return PollReads(done);
  }
  Status PollReads(std::vector<std::byte*>& done) override {
    const int failure = under_way_.empty() ? 0 : server_.reads_failure_.exchange(0);
    if (failure == EINTR) {
      return Status::Error(EINTR, "injected: interrupted");
    }
    if (failure == ETIMEDOUT) {
      done.push_back(under_way_.front().destination);
    }
    broken_ = broken_ || failure == ENOTCONN;
    if (failure != 0 || session_->lost) {
      VoidUnderWay();
      return failure != 0 ? Status::Error(failure, "injected") : Status::Error(ENOTCONN, "the session is lost");
    }
    if (server_.holding_) {
      return Status::Ok();
    }
    RETURN_IF_ERROR(Read(under_way_));
    for (const auto& read : std::exchange(under_way_, {})) {
      done.push_back(read.destination);
    }
    return Status::Ok();
  }
  bool ArmReads(tlib::client::ReadsFds& fds) override {
    fds = {server_.answers_.get(), -1};
    return !HasNews();
  }
  void DisarmReads() override {}
  void DropReads() override {
    if (!under_way_.empty()) {
      VoidUnderWay();
    }
  }
  size_t ReadRoom() override {
    return tlib::kChannelCredits - std::min<size_t>(under_way_.size(), tlib::kChannelCredits);
  }
  uint64_t voids() const override { return voids_; }
  Status Post(const tlib::client::CallRequest& request, tlib::client::LateReply late) override {
    if (session_->closing || session_->lost) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    auto posted = std::make_shared<MemoryPost>();
    posted->session = session_;
    posted->request = request;
    posted->body.assign(request.body.begin(), request.body.end());
    posted->request.body = posted->body;
    posted->in.assign(request.in.begin(), request.in.end());
    posted->request.in = posted->in;
    posted->late = std::move(late);
    posted_.push_back(posted);
    server_.Deliver(std::move(posted));
    return Status::Ok();
  }
  Status AwaitPosted() override {
    while (!posted_.empty() && !session_->lost) {
      TakeAnswers();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return session_->lost ? Status::Error(ENOTCONN, "the session is lost") : Status::Ok();
  }
  void AfterGivenUp(tlib::client::LateReply late) override {
    if (!late_.has_value()) {
      return late(Status::Error(ENOTCONN, "nothing is given up here"));
    }
    const Result<std::vector<std::byte>> reply = *std::exchange(late_, std::nullopt);
    if (!reply.ok()) {
      return late(reply.status());
    }
    late(std::span<const std::byte>(*reply));
  }
  // Nobody delivers what was not: its bytes are gone.
  void Drop() {
    TakeAnswers();
    for (const auto& posted : std::exchange(posted_, {})) {
      server_.Withdraw(posted);
      posted->Tell();
    }
  }
  void Detach() override {
    Drop();
    server_.detached_ += std::exchange(detached_, true) ? 0U : 1U;
  }
  Status Write(RegionOffset, std::span<const std::byte>) override { return Status::Error(EACCES, "not allowed"); }

  Result<tlib::client::CallReply> Call(const tlib::client::CallRequest& request) override {
    TakeAnswers();
    uint32_t out_bytes = 0;
    auto result = std::optional(server_.Carry(*session_, request, out_bytes));
    if (const auto delay = server_.Take(&MemoryServer::delay_, request.opcode)) {
      delay();
    }
    if (const auto loss = server_.Take(&MemoryServer::loss_, request.opcode)) {
      session_->lost = true;
      loss();
    }
    if (session_->lost) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    if (uint16_t expected = request.opcode; server_.given_up_opcode_.compare_exchange_strong(expected, 0)) {
      late_ = std::move(result);
      VoidUnderWay();
      return Status::Error(ETIMEDOUT, "given up");
    }
    RETURN_IF_ERROR(result->status());
    reply_ = std::move(*result).value();
    TERMFS_CHECK(reply_.size() <= tlib::kMaxMessage - sizeof(tlib::ReplyHeader));
    return tlib::client::CallReply{.body = reply_, .out_bytes = out_bytes};
  }

 private:
  // As a channel does that is used again.
  void TakeAnswers() {
    std::erase_if(posted_, [](const std::shared_ptr<MemoryPost>& posted) {
      if (!posted->answered) {
        return false;
      }
      posted->Tell();
      return true;
    });
  }
  bool HasNews() const { return !server_.holding_ || session_->lost || server_.reads_failure_ != 0; }
  void VoidUnderWay() {
    if (!under_way_.empty()) {
      under_way_.clear();
      buffer_ = std::vector<std::byte>(buffer_.size());
      voids_++;
    }
  }

  MemoryServer& server_;
  const std::shared_ptr<MemorySession> session_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> reply_;
  std::vector<tlib::client::ReadRequest> under_way_;
  bool broken_ = false;  // for BeginRead
  uint64_t voids_ = 0;
  bool detached_ = false;
  std::optional<Result<std::vector<std::byte>>> late_;
  std::vector<std::shared_ptr<MemoryPost>> posted_;
};

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
        if (const int code = unreachable_.exchange(0); code != 0) {
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
  if (found == nullptr || found->lost) {
    return Status::Error(ENOTCONN, "no such session");
  }
  const auto callback = std::make_shared<Callback>();
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
  const std::shared_ptr<MemorySession> found = Find(session.value);
  if (found == nullptr) {
    return;
  }
  found->lost = true;
  MutexLock lock(mutex_);
  closers_.emplace_back([this, found] { Close(found, tlib::server::SessionEnd::How::kExpelled); });
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
