// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/callback_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::tlib::client {
namespace {

constexpr uint64_t kSendBit = uint64_t{1} << 32;  // of a work request's id; below it: the buffer's index
constexpr size_t kMaxErrorText = 256;
constexpr std::chrono::seconds kReadsEnd{4};  // of what the server takes back; it waits a little longer

}  // namespace

Result<std::unique_ptr<CallbackThread>> CallbackThread::Start(std::shared_ptr<SessionCore> core,
                                                              CallbackHandler* handler) {
  std::unique_ptr<CallbackThread> thread(new CallbackThread(std::move(core), handler));
  RETURN_IF_ERROR(thread->Init());
  ASSIGN_OR_RETURN(thread->thread_, StartThread([raw = thread.get()] { raw->Run(); }));
  return thread;
}

Status CallbackThread::Init() {
  stop_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  const size_t bytes = 2 * size_t{kChannelCredits} * max_send_;
  messages_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  ASSIGN_OR_RETURN(messages_region_,
                   core_->domain().RegisterMemory(messages_.get(), bytes, driver::Access::kLocalWrite));
  ASSIGN_OR_RETURN(queue_, core_->nic().CreateCompletionQueue(4 * kChannelCredits));
  ASSIGN_OR_RETURN(auto opened, core_->OpenQueuePair(wire::Purpose::Callback, {.send_cq = queue_.get(),
                                                                               .recv_cq = queue_.get(),
                                                                               .max_send = 2 * kChannelCredits,
                                                                               .max_recv = kChannelCredits,
                                                                               .max_message = max_send_}));
  pair_ = std::move(opened.pair);
  seal_ = std::move(opened.seal);
  for (uint32_t i = 0; i < kChannelCredits; i++) {
    RETURN_IF_ERROR(PostReceive(i));
  }
  return core_->RefreshRegion();
}

CallbackThread::~CallbackThread() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(stop_event_.get(), &one, sizeof(one));  // an empty eventfd takes it
    thread_.join();
  }
  pair_.reset();
  queue_.reset();
}

Status CallbackThread::PostReceive(uint32_t index) {
  const driver::RecvWorkRequest receive{
      .id = index, .local = {.addr = receive_bytes(index), .length = max_send_, .lkey = messages_region_->lkey()}};
  return pair_->PostRecv({&receive, 1});
}

void CallbackThread::Run() {
  while (true) {
    bool any = false;
    if (Status polled = PollOnce(&any); !polled.ok()) {
      core_->MarkLost(polled);
    }
    if (!any && !Sleep()) {
      break;
    }
  }
  pair_->Close();
}

bool CallbackThread::Sleep() {
  if (!queue_->Arm()) {
    return true;
  }
  pollfd waited[3] = {{.fd = queue_->fd(), .events = POLLIN, .revents = 0},
                      {.fd = core_->lost_fd(), .events = POLLIN, .revents = 0},
                      {.fd = stop_event_.get(), .events = POLLIN, .revents = 0}};
  const int ready = poll(waited, 3, 10'000);
  queue_->Disarm();
  if (ready < 0 && errno != EINTR) {
    core_->MarkLost(ErrnoStatus("wait for the server's calls"));
    return false;
  }
  if (ready > 0 && waited[2].revents != 0) {
    return false;
  }
  if (ready > 0 && waited[1].revents != 0) {
    if (handler_ != nullptr) {
      handler_->SessionLost(core_->why_lost());
    }
    return false;
  }
  return true;
}

Status CallbackThread::PollOnce(bool* any) {
  std::array<driver::WorkCompletion, 1> completion;  // one at a time: the others wait in the queue
  if (queue_->Poll(completion) == 0) {
    return Status::Ok();
  }
  if (completion[0].status != driver::WcStatus::kSuccess) {
    // *any stays false: the thread goes to sleep, and finds the session lost.
    return Status::Error(ENOTCONN,
                         "the callback connection broke: " + std::string(driver::ToString(completion[0].status)));
  }
  *any = true;
  if ((completion[0].id & kSendBit) != 0) {
    return PostReceive(static_cast<uint32_t>(completion[0].id & ~kSendBit));  // its reply is out
  }
  return HandleMessage(completion[0]);
}

Status CallbackThread::HandleMessage(const driver::WorkCompletion& completion) {
  if (completion.has_imm) {  // a WRITE: its length says nothing of the receive
    return Status::Error(EPROTO, "the server sent a WRITE with immediate");
  }
  const auto index = static_cast<uint32_t>(completion.id);
  std::span<std::byte> message(receive_bytes(index), completion.byte_len);
  if (seal_ != nullptr) {
    ASSIGN_OR_RETURN(message, seal_->Open(message));
  }
  ASSIGN_OR_RETURN(const DecodedRequest request, DecodeRequest(message, seal_ != nullptr));
  if (request.header.epoch != core_->epoch()) {
    return SendReply(index, request.header.call, Status::Error(ESTALE, "another epoch"));
  }
  return SendReply(index, request.header.call, Dispatch(request));
}

Result<std::vector<std::byte>> CallbackThread::Dispatch(const DecodedRequest& request) {
  if (request.header.opcode == kSetPattern) {
    RETURN_IF_ERROR(TakePatterns(request.body));
    return std::vector<std::byte>();
  }
  if (request.header.opcode == kRevokeChunks) {
    RETURN_IF_ERROR(TakeRevocation(request.body));
    return std::vector<std::byte>();
  }
  if (handler_ == nullptr || request.header.opcode < kFirstServiceOpcode) {
    return Status::Error(ENOSYS, "this client takes no such call");
  }
  return handler_->HandleCallback(request.header.opcode, request.body);
}

Status CallbackThread::TakePatterns(std::span<const std::byte> body) {
  PatternBody message;
  if (body.size() != sizeof(message)) {
    return Status::Error(EPROTO, "malformed pattern");
  }
  std::memcpy(&message, body.data(), sizeof(message));
  std::vector<driver::Pattern> patterns(message.has_former != 0 ? 2 : 1);
  std::memcpy(patterns[0].line.data(), message.current, sizeof(message.current));
  if (message.has_former != 0) {
    std::memcpy(patterns[1].line.data(), message.former, sizeof(message.former));
  }
  core_->patterns().Set(std::move(patterns));
  return Status::Ok();
}

Status CallbackThread::TakeRevocation(std::span<const std::byte> body) {
  RevokeChunksBody message;
  if (body.size() != sizeof(message)) {
    return Status::Error(EPROTO, "malformed revocation");
  }
  std::memcpy(&message, body.data(), sizeof(message));
  return core_->chunks().Revoke(message.epoch, std::chrono::steady_clock::now() + kReadsEnd);
}

Status CallbackThread::SendReply(uint32_t index, uint64_t call, const Result<std::vector<std::byte>>& reply) {
  constexpr size_t kMaxBody = kMaxMessage - sizeof(ReplyHeader);
  Status error = reply.status();
  if (error.ok() && reply.value().size() > kMaxBody) {
    error = Status::Error(EMSGSIZE, "reply too long");
  }
  const std::string text = error.ToString().substr(0, kMaxErrorText);
  const std::span<const std::byte> body =
      error.ok() ? std::span<const std::byte>(reply.value()) : std::as_bytes(std::span(text));
  const ReplyHeader header{.call = call, .error = error.code(), .body_bytes = static_cast<uint32_t>(body.size())};
  uint32_t length = EncodeMessage(header, body, reply_bytes(index));
  if (seal_ != nullptr) {
    ASSIGN_OR_RETURN(length, seal_->Seal(reply_bytes(index), length));
  }
  driver::SendWorkRequest send{.id = kSendBit | index, .opcode = driver::Opcode::kSend};
  send.local = {.addr = reply_bytes(index), .length = length, .lkey = messages_region_->lkey()};
  return pair_->PostSend({&send, 1});
}

}  // namespace termfs::tlib::client
