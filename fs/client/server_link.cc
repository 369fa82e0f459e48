// SPDX-License-Identifier: Apache-2.0
#include "fs/client/server_link.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/page.h"
#include "base/random.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using tlib::client::Session;

namespace {

constexpr milliseconds kFirstPause{10};  // between attempts to connect; doubled each time
constexpr milliseconds kLongestPause{1000};

// Mounts that a server's restart has all sent off at once do not come back at once: from a half to one and a half of
// it.
steady_clock::duration Spread(milliseconds pause, Random& random) {
  return pause / 2 + std::chrono::microseconds(random.Below(static_cast<uint64_t>(pause.count()) * 1000));
}

Random RandomOfThisMount() {
  uint64_t seed = 0;
  [[maybe_unused]] const Status good_enough = SecureRandom(&seed, sizeof(seed));
  return Random(seed);
}
constexpr milliseconds kGoodbyePatience{2000};

uint64_t SecondsSince(steady_clock::time_point begin) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - begin).count());
}

}  // namespace

// Answers for the session of one generation.
class ServerLink::Handler final : public tlib::client::CallbackHandler {
 public:
  Handler(ServerLink& link, uint64_t generation) : link_(link), generation_(generation) {}
  Result<std::vector<std::byte>> HandleCallback(uint16_t opcode, std::span<const std::byte> body) override {
    return link_.listener_.HandleCallback(generation_, opcode, body);
  }
  void SessionLost(const Status& why) override { link_.ReportLost(generation_, why); }

 private:
  ServerLink& link_;
  const uint64_t generation_;
};

// The session ends before its handler.
struct ServerLink::Joined {
  std::unique_ptr<Handler> handler;
  std::unique_ptr<Session> session;
};

Result<std::unique_ptr<ServerLink>> ServerLink::Connect(Connector connect, std::chrono::seconds reconnect,
                                                        Listener& listener, KeptByKernel& kept) {
  std::unique_ptr<ServerLink> link(new ServerLink(std::move(connect), reconnect, listener, kept));
  constexpr uint64_t kFirst = 1;
  listener.BeginGeneration(kFirst);
  ASSIGN_OR_RETURN(const SessionPtr session, link->Open(kFirst));
  {
    MutexLock lock(link->mutex_);
    link->session_ = session;
    link->generation_ = kFirst;
    link->volume_ = session->volume();
    link->transport_ = session->transport();
    link->max_pages_ = session->max_pages();
    link->start_ = session->epoch();
  }
  link->thread_ = std::thread([raw = link.get()] { raw->Run(); });
  return link;
}

Result<ServerLink::SessionPtr> ServerLink::Open(uint64_t generation) {
  auto joined = std::make_shared<Joined>();
  joined->handler = std::make_unique<Handler>(*this, generation);
  ASSIGN_OR_RETURN(joined->session, connect_(joined->handler.get()));
  Session* const session = joined->session.get();
  return SessionPtr(std::move(joined), session);
}

ServerLink::~ServerLink() {
  SessionPtr session;
  bool goodbye = false;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    goodbye = state_ == State::kUp;
    session = session_;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  if (session != nullptr && goodbye) {
    if (const Status said = session->Goodbye(kGoodbyePatience); !said.ok()) {
      LOG_DEBUG("taking leave of the server: {}", said.ToString());
    }
  }
  {
    MutexLock lock(mutex_);
    session_.reset();
  }
  session.reset();
}

Status ServerLink::GivenUpStatus() const {
  return Status::Error(EIO, "the server has been gone for " + std::to_string(reconnect_.count()) + " s or more");
}

void ServerLink::ReportLost(uint64_t generation, const Status& why) {
  MutexLock lock(mutex_);
  lost_generation_ = std::max(lost_generation_, generation);
  if (generation != generation_ || state_ != State::kUp || stopping_) {
    return;
  }
  state_ = State::kDown;
  why_ = why;
  down_since_ = steady_clock::now();
  LOG_WARNING("the connection to the server is lost: {}; reconnecting for {} s", why.ToString(), reconnect_.count());
  changed_.NotifyAll();
}

void ServerLink::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && state_ != State::kDown) {
        changed_.WaitFor(mutex_, std::chrono::seconds(10));
      }
      if (stopping_) {
        return;
      }
    }
    Reconnect();
  }
}

void ServerLink::Reconnect() {
  SessionPtr lost;
  uint64_t generation = 0;
  TimePoint deadline;
  Status why;
  {
    MutexLock lock(mutex_);
    lost = std::exchange(session_, nullptr);
    generation = generation_;
    deadline = down_since_ + reconnect_;
    why = why_;
  }
  if (lost != nullptr) {
    lost->Abandon(why);  // the lanes' calls return; the server sees that this session has ended
    lost.reset();
  }
  milliseconds pause = kFirstPause;
  Random random = RandomOfThisMount();
  while (true) {
    listener_.BeginGeneration(++generation);
    DetachIdle(generation);
    {
      MutexLock lock(mutex_);
      if (stopping_ || state_ == State::kAbandoned) {
        return;
      }
    }
    if (steady_clock::now() >= deadline) {
      GiveUp(why);
    }
    const Status attempted = Attempt(generation);
    if (attempted.ok()) {
      DetachIdle(generation);  // those that were in use before
      return;
    }
    LOG_DEBUG("reconnecting: {}", attempted.ToString());
    if (attempted.code() == EMEDIUMTYPE) {
      GiveUp(attempted);
    }
    MutexLock lock(mutex_);
    if (stopping_ || state_ == State::kAbandoned) {
      return;
    }
    const auto until = steady_clock::now() + Spread(state_ == State::kGivenUp ? kLongestPause : pause, random);
    while (!stopping_ && state_ != State::kAbandoned && steady_clock::now() < until &&
           (state_ == State::kGivenUp || steady_clock::now() < deadline)) {
      changed_.WaitFor(mutex_, std::chrono::duration_cast<milliseconds>(until - steady_clock::now()) + milliseconds(1));
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

Status ServerLink::Attempt(uint64_t generation) {
  ASSIGN_OR_RETURN(const SessionPtr session, Open(generation));
  std::string volume;
  uint64_t last_start = 0;
  {
    MutexLock lock(mutex_);
    volume = volume_;
    last_start = start_;
  }
  if (session->volume() != volume) {
    [[maybe_unused]] const Status said = session->Goodbye(kGoodbyePatience);
    return Status::Error(EMEDIUMTYPE,
                         "another volume is served here now, " + session->volume() + " in place of " + volume);
  }
  {
    MutexLock lock(mutex_);
    resuming_ = session;
    resuming_generation_ = generation;
  }
  Status done = Resume(session, generation, last_start);
  if (!done.ok()) {
    session->Abandon(done);
  }
  MutexLock lock(mutex_);
  resuming_.reset();
  if (!done.ok()) {
    lost_generation_ = std::max(lost_generation_, generation);
  }
  return done;
}

Status ServerLink::Resume(const SessionPtr& session, uint64_t generation, uint64_t last_start) {
  ASSIGN_OR_RETURN(const auto channel, session->OpenChannel({.buffer_bytes = kPageSize}));
  ASSIGN_OR_RETURN(const Resumption resumption, listener_.Resume(*channel, generation));
  wire::ResumedT resumed;
  resumed.start = last_start;
  const auto encoded = Encode<wire::Resumed>(resumed);
  ASSIGN_OR_RETURN(const auto reply, channel->Call({.opcode = kFsResumed, .body = encoded, .in = {}, .out = {}}));
  ASSIGN_OR_RETURN(const wire::MemoryT memory, Decode<wire::Memory>(reply.body));
  if (!memory.kept) {
    listener_.WritesLost(generation);
    LOG_ERROR("the server has lost its memory: what was written and not synced is lost; fsync of such files will fail");
  }
  uint64_t seconds = 0;
  {
    MutexLock lock(mutex_);
    if (lost_generation_ >= generation || stopping_ || state_ == State::kAbandoned) {
      return Status::Error(ENOTCONN, "lost again");
    }
    session_ = session;
    generation_ = generation;
    transport_ = session_->transport();
    max_pages_ = session_->max_pages();
    start_ = session_->epoch();
    state_ = State::kUp;
    seconds = SecondsSince(down_since_);
    ++reconnections_;
    memory_losses_ += memory.kept ? 0 : 1;
    resumed_.files_reopened += resumption.files_reopened;
    resumed_.files_lost += resumption.files_lost;
    changed_.NotifyAll();
  }
  LOG_INFO("reconnected to the server after {} s; files reopened: {}, lost: {}", seconds, resumption.files_reopened,
           resumption.files_lost);
  listener_.Resumed(*channel, generation);
  return Status::Ok();
}

void ServerLink::GiveUp(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kDown) {
      return;
    }
    state_ = State::kGivenUp;
    why_ = why;
    changed_.NotifyAll();
  }
  const uint64_t files = listener_.GiveUp();
  {
    MutexLock lock(mutex_);
    resumed_.files_lost += files;
  }
  LOG_ERROR("the server is given up: {}; requests fail with EIO until it is back, and {} open files for ever",
            why.ToString(), files);
}

void ServerLink::Abandon(const std::string& why) {
  std::array<SessionPtr, 2> sessions;
  {
    MutexLock lock(mutex_);
    state_ = State::kAbandoned;
    why_ = Status::Error(ENOTCONN, why);
    sessions = {session_, resuming_};
    changed_.NotifyAll();
  }
  for (const SessionPtr& session : sessions) {
    if (session != nullptr) {
      session->Abandon(Status::Error(ENOTCONN, why));
    }
  }
}

uint64_t ServerLink::generation() const {
  MutexLock lock(mutex_);
  return generation_;
}

bool ServerLink::waiting() const {
  MutexLock lock(mutex_);
  return state_ == State::kDown;
}

std::string ServerLink::transport() const {
  MutexLock lock(mutex_);
  return transport_;
}

std::vector<MetricValue> ServerLink::Metrics() const {
  SessionPtr session;
  std::vector<MetricValue> values;
  {
    MutexLock lock(mutex_);
    session = session_;
    const bool up = state_ == State::kUp;
    values = {{"link_up", up ? 1U : 0U},
              {"link_given_up", state_ == State::kGivenUp ? 1U : 0U},
              {"link_down_seconds", up ? 0 : SecondsSince(down_since_)},
              {"link_reconnections_total", reconnections_},
              {"link_files_reopened_total", resumed_.files_reopened},
              {"link_files_lost_total", resumed_.files_lost},
              {"link_memory_losses_total", memory_losses_}};
  }
  if (session != nullptr) {
    for (MetricValue& value : session->Metrics()) {
      values.push_back(std::move(value));
    }
  }
  return values;
}

}  // namespace termfs::fs::client
