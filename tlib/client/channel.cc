// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/channel.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib::client {
namespace {

bool IsService(uint16_t opcode) { return opcode >= kFirstServiceOpcode && opcode < kInline; }

using std::chrono::steady_clock;

constexpr uint64_t kSampleHits = 64;  // one hit in so many is timed
constexpr uint64_t kSampleCalls = 8;  // and one call
// A queue pair for a CPU is worth no long wait, which nothing interrupts: without it things are slower, and that is
// all.
constexpr std::chrono::milliseconds kPatienceForCpu{500};

uint64_t NanosecondsSince(steady_clock::time_point begin) {
  return static_cast<uint64_t>((steady_clock::now() - begin).count());
}

// -1: it may run on several.
int CpuOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) != 1) {
    return -1;
  }
  int cpu = 0;
  while (!CPU_ISSET(cpu, &set)) {
    cpu++;
  }
  return cpu;
}

}  // namespace

Result<std::unique_ptr<Channel>> ChannelImpl::Open(std::shared_ptr<SessionCore> core, const ChannelOptions& options) {
  std::unique_ptr<ChannelImpl> channel(new ChannelImpl(std::move(core), options));
  RETURN_IF_ERROR(channel->Init());
  return std::unique_ptr<Channel>(std::move(channel));
}

Status ChannelImpl::Init() {
  counters_ = core_->AddChannel();
  ASSIGN_OR_RETURN(buffer_,
                   RegisteredBuffer::Create(core_->nic(), core_->domain(), options_.buffer_bytes, core_->sealed()));
  ASSIGN_OR_RETURN(port_, RpcPort::Open(core_, options_.interruption, -1, options_.patience));
  if (core_->region().way == driver::ReadWay::kValidated) {
    ASSIGN_OR_RETURN(validated_, ValidatedReader::Create(core_, *port_, *counters_));
    validated_->SetBuffer(buffer_);
  } else if (core_->region().way == driver::ReadWay::kTranslated) {
    ASSIGN_OR_RETURN(reader_, OneSidedReader::Create(core_, *port_, *counters_));
    reader_->SetBuffer(buffer_);
    RETURN_IF_ERROR(reader_->Prepare());
  }
  if (options_.patience.count() > 0) {
    FetchPort();  // not when the first page is absent
  }
  return Status::Ok();
}

ChannelImpl::~ChannelImpl() {
  reader_.reset();
  validated_.reset();
  if (counters_ != nullptr) {
    core_->RemoveChannel(counters_);
  }
}

void ChannelImpl::AfterGivenUp(LateReply late) {
  if (port_ == nullptr) {
    return late(core_->why_lost());
  }
  port_->WhenAnswered(std::move(late));
}

void ChannelImpl::Detach() {
  TERMFS_CHECK(core_->patterns().lost());
  reader_.reset();
  validated_.reset();
  ForgetUnderWay();
  bound_port_.reset();
  if (port_ != nullptr) {
    messages_ = port_->messages();  // the channel's thread may be reading the last reply
    port_.reset();
  }
}

Status ChannelImpl::Read(std::span<const ReadRequest> reads) {
  counters_->read_calls.Add();
  if (counters_->read_calls.value() % kSampleHits != 0 && reads.size() == 1 && reader_ != nullptr &&
      reader_->TryHit(reads.front())) [[likely]] {
    return Status::Ok();
  }
  return ReadInFull(reads);
}

Status ChannelImpl::ReadInFull(std::span<const ReadRequest> reads) {
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  if (counters_->read_calls.value() % kSampleHits != 0) {
    RETURN_IF_ERROR(ReadOneSided(reads));
    return missing_.empty() ? Status::Ok() : Fetch(reads, steady_clock::now());
  }
  const auto begin = steady_clock::now();
  missing_.clear();
  if (reads.size() != 1 || reader_ == nullptr || !reader_->TryHit(reads.front())) {
    RETURN_IF_ERROR(ReadOneSided(reads));
  }
  if (!missing_.empty()) {
    return Fetch(reads, begin);
  }
  hit_latency_.Record(NanosecondsSince(begin));
  return Status::Ok();
}

Status ChannelImpl::ReadOneSided(std::span<const ReadRequest> reads) {
  missing_.clear();
  counters_->slow_calls.Add();
  RETURN_IF_ERROR(reader_ != nullptr      ? reader_->Read(reads, missing_)
                  : validated_ != nullptr ? validated_->Read(reads, missing_)
                                          : AllAreMissing(reads));
  counters_->reads.Add(reads.size());
  return Status::Ok();
}

Status ChannelImpl::AllAreMissing(std::span<const ReadRequest> reads) {
  for (uint32_t i = 0; i < reads.size(); i++) {
    const ReadRequest& read = reads[i];
    if (read.length == 0 || read.length > kMaxTransfer || !buffer_->Contains(read.destination, read.length)) {
      return Status::Error(EINVAL, "read too much, or outside of the channel's buffer");
    }
    RETURN_IF_ERROR(core_->CheckInRegion(read.offset, read.length));
    const PageSpan pages(read.offset.value, read.length);
    counters_->read_pages.Add(pages.count());
    MissingPages& all = missing_.emplace_back(MissingPages{.read = i});
    for (uint32_t page = 0; page < pages.count(); page++) {
      all.bits[page / 64] |= uint64_t{1} << (page % 64);
    }
  }
  return Status::Ok();
}

Status ChannelImpl::Fetch(std::span<const ReadRequest> reads, TimePoint begin) {
  // All calls are in flight together, as far as credits go; they end in the order in which they began. After an error
  // nothing new begins, but what is in flight is waited for: the server may still write to the destinations. After a
  // timeout or an interruption the others' waits end at once with the same, and the buffer is replaced.
  Deadline deadline(core_->call_timeout());
  tickets_.clear();
  Status result;
  size_t ended = 0;
  const auto end_next = [&] {
    const MissingPages& pages = missing_[ended];
    Status end = EndFetch(reads[pages.read], pages, tickets_[ended++], deadline);
    if (result.ok() || GivenUp(end)) {
      result = std::move(end);
    }
  };
  for (const MissingPages& pages : missing_) {
    while (!FetchPort().has_credit() && ended < tickets_.size()) {
      end_next();
    }
    if (result.ok()) {
      result = MakeRoom(FetchPort(), deadline);
    }
    if (!result.ok()) {
      break;
    }
    auto ticket = BeginFetch(reads[pages.read], pages, deadline);
    if (!ticket.ok()) {
      result = std::move(ticket).status();
      break;
    }
    tickets_.push_back(*ticket);
  }
  while (ended < tickets_.size()) {
    end_next();
  }
  if (!result.ok()) {
    if (GivenUp(result)) {
      ReplaceBuffer();
    }
    return result;
  }
  miss_latency_.Record(NanosecondsSince(begin));
  return Status::Ok();
}

Status ChannelImpl::BeginRead(std::span<const ReadRequest> reads, std::vector<std::byte*>& under_way) {
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  counters_->read_calls.Add();
  if (options_.patience.count() > 0) {
    for (const ReadRequest& read : reads) {  // the readers' own look finds it, and asks nobody
      RETURN_IF_ERROR(core_->CheckInRegion(read.offset, read.length, options_.patience));
    }
  }
  if (reads.size() == 1 && reader_ != nullptr && reader_->TryHit(reads.front())) [[likely]] {
    return Status::Ok();
  }
  Status status = ReadOneSided(reads);
  if (status.ok() && !missing_.empty()) {
    status = BeginFetches(reads, under_way);
  }
  return status.ok() ? status : VoidUnderWay(std::move(status));
}

Status ChannelImpl::BeginFetches(std::span<const ReadRequest> reads, std::vector<std::byte*>& under_way) {
  Deadline deadline(core_->call_timeout());
  for (const MissingPages& pages : missing_) {
    const ReadRequest& read = reads[pages.read];
    RETURN_IF_ERROR(MakeRoom(FetchPort(), deadline));
    const auto begin = steady_clock::now();
    ASSIGN_OR_RETURN(const RpcPort::Ticket ticket, BeginFetch(read, pages, deadline));
    under_way_.push_back({.read = read, .pages = pages, .ticket = ticket, .begin = begin});
    under_way.push_back(read.destination);
  }
  return Status::Ok();
}

Status ChannelImpl::AwaitReads(std::vector<std::byte*>& done) {
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  if (ended_.empty() && read_failed_.ok() && !under_way_.empty()) {
    Deadline deadline(OldestBegin() + core_->call_timeout());
    Status answered = FetchPort().AwaitAny(deadline);
    if (answered.code() == EINTR) {
      return answered;
    }
    if (!answered.ok() && answered.code() != ETIMEDOUT) {
      return VoidUnderWay(std::move(answered));
    }
  }
  return NameEnded(done);
}

Status ChannelImpl::PollReads(std::vector<std::byte*>& done) {
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  if (!under_way_.empty()) {
    FetchPort().PollReplies();
  }
  const size_t before = done.size();
  RETURN_IF_ERROR(NameEnded(done));
  if (done.size() != before || under_way_.empty()) {
    return Status::Ok();
  }
  Status why = WhyNoAnswers();
  return why.ok() ? why : VoidUnderWay(std::move(why));
}

Status ChannelImpl::NameEnded(std::vector<std::byte*>& done) {
  EndAnswered();
  if (!read_failed_.ok()) {
    return VoidUnderWay(std::exchange(read_failed_, Status::Ok()));
  }
  const size_t before = done.size();
  NameLate(done);  // first: the others may go on for ever
  if (done.size() != before) {
    return VoidUnderWay(Status::Error(ETIMEDOUT, "the server does not answer in time"));
  }
  done.insert(done.end(), ended_.begin(), ended_.end());
  ended_.clear();
  return Status::Ok();
}

void ChannelImpl::NameLate(std::vector<std::byte*>& late) {
  const auto begun_before = steady_clock::now() - core_->call_timeout();
  if (under_way_.empty() || OldestBegin() > begun_before) {
    return;
  }
  FetchPort().PollReplies();
  EndAnswered();
  for (const UnderWay& read : under_way_) {
    if (read.begin <= begun_before) {
      late.push_back(read.read.destination);
    }
  }
}

ChannelImpl::TimePoint ChannelImpl::OldestBegin() const {
  const auto oldest = std::min_element(under_way_.begin(), under_way_.end(),
                                       [](const UnderWay& a, const UnderWay& b) { return a.begin < b.begin; });
  return oldest->begin;
}

Status ChannelImpl::WhyNoAnswers() {
  if (core_->patterns().lost()) {
    return core_->why_lost();
  }
  if (FetchPort().broken()) {
    return FetchPort().why_broken();
  }
  return Status::Ok();
}

bool ChannelImpl::ArmReads(ReadsFds& fds) {
  if (port_ == nullptr || !ended_.empty() || !read_failed_.ok()) {
    return false;
  }
  if (under_way_.empty()) {
    fds.fill(-1);
    return true;
  }
  RpcPort& port = FetchPort();
  driver::CompletionQueue& queue = port.recv_queue();
  if (port.has_answers() || port.broken() || !queue.Arm()) {
    return false;
  }
  fds = {queue.fd(), core_->lost_fd()};
  return true;
}

void ChannelImpl::DisarmReads() {
  if (port_ != nullptr && !under_way_.empty()) {
    FetchPort().recv_queue().Disarm();
  }
}

void ChannelImpl::DropReads() {
  if (!under_way_.empty() || !ended_.empty()) {
    ReplaceBuffer();
  }
}

size_t ChannelImpl::ReadRoom() {
  if (port_ != nullptr && !FetchPort().broken()) {
    FetchPort().PollReplies();
    EndAnswered();
  }
  if (port_ == nullptr || FetchPort().broken()) {
    return kChannelCredits;  // BeginRead says why not; what was given up does not come back
  }
  return FetchPort().credits();
}

void ChannelImpl::EndAnswered() {
  const auto now = steady_clock::now();
  for (size_t i = 0; i < under_way_.size();) {
    if (!FetchPort().IsAnswered(under_way_[i].ticket)) {
      i++;
      continue;
    }
    const UnderWay ended = under_way_[i];
    under_way_[i] = under_way_.back();
    under_way_.pop_back();
    Deadline deadline(core_->call_timeout());  // not needed: the answer is there
    Status status = EndFetch(ended.read, ended.pages, ended.ticket, deadline);
    if (status.ok()) {
      miss_latency_.Record(static_cast<uint64_t>((now - ended.begin).count()));
      ended_.push_back(ended.read.destination);
    } else if (read_failed_.ok()) {
      read_failed_ = std::move(status);
    }
  }
}

Status ChannelImpl::MakeRoom(RpcPort& port, Deadline& deadline) {
  while (!under_way_.empty() && &port == &FetchPort() && !port.has_credit()) {
    RETURN_IF_ERROR(port.AwaitAny(deadline));
    EndAnswered();
  }
  return Status::Ok();
}

Status ChannelImpl::VoidUnderWay(Status why) {
  if (!under_way_.empty() || !ended_.empty() || GivenUp(why)) {
    ReplaceBuffer();
  }
  return why;
}

void ChannelImpl::ForgetUnderWay() {
  for (const UnderWay& read : under_way_) {
    FetchPort().Forget(read.ticket);
  }
  under_way_.clear();
  ended_.clear();
  read_failed_ = Status::Ok();
  voids_++;
}

RpcPort& ChannelImpl::FetchPort() {
  if (!std::exchange(bound_port_asked_for_, true)) {
    const int cpu = CpuOfThisThread();
    auto opened = cpu >= 0 ? RpcPort::Open(core_, options_.interruption, cpu, kPatienceForCpu)
                           : Status::Error(ENOTSUP, "not bound");
    if (opened.ok()) {
      bound_port_ = std::move(*opened);
    } else {
      LOG_DEBUG("absent pages are asked for like everything else: {}", opened.status().ToString());
    }
  }
  return bound_port_ != nullptr ? *bound_port_ : *port_;
}

Result<RpcPort::Ticket> ChannelImpl::BeginFetch(const ReadRequest& read, const MissingPages& pages,
                                                Deadline& deadline) {
  const PageSpan span(read.offset.value, read.length);
  const ReadBody body{.offset = read.offset.value, .length = read.length, .words = span.words()};
  core_->bell().Ring();
  return FetchPort().Begin({.opcode = kRead,
                            .head = std::as_bytes(std::span(&body, 1)),
                            .tail = std::as_bytes(std::span(pages.bits.data(), span.words())),
                            .in = {},
                            .out = buffer_->DescribeRoom(read.destination, read.length)},
                           buffer_, deadline);
}

Status ChannelImpl::EndFetch(const ReadRequest& read, const MissingPages& pages, const RpcPort::Ticket& ticket,
                             Deadline& deadline) {
  ASSIGN_OR_RETURN(const DecodedReply reply, FetchPort().Await(ticket, deadline, /*soon=*/false));
  const PageSpan span(read.offset.value, read.length);
  ReadBitmap present{};
  RETURN_IF_ERROR(DecodePresence(reply, span.words(), present));
  uint64_t fetched = 0;
  for (uint32_t i = 0; i < span.words(); i++) {
    fetched += static_cast<uint64_t>(std::popcount(pages.bits[i]));
  }
  if (core_->sealed()) {
    RETURN_IF_ERROR(TakeFetched(read, pages, ticket, reply));
  }
  counters_->rpc_reads.Add();
  counters_->rpc_read_pages.Add(fetched);
  if (reader_ != nullptr) {
    reader_->Learn(read, pages.bits, present);
  } else if (validated_ != nullptr) {
    validated_->Learn(read, pages.bits, present);
  }
  return Status::Ok();
}

Status ChannelImpl::TakeFetched(const ReadRequest& read, const MissingPages& pages, const RpcPort::Ticket& ticket,
                                const DecodedReply& reply) {
  const PageSpan span(read.offset.value, read.length);
  std::vector<std::span<std::byte>> pieces;
  for (uint32_t page = 0; page < span.count(); page++) {
    if (((pages.bits[page / 64] >> (page % 64)) & 1) != 0) {
      const PagePart part = span.part(page);
      pieces.emplace_back(read.destination + part.offset, part.length);
    }
  }
  return FetchPort().TakeBulk(ticket, reply, *buffer_, pieces);
}

void ChannelImpl::ReplaceBuffer() {
  ForgetUnderWay();
  if (core_->patterns().lost() || (port_->broken() && (bound_port_ == nullptr || bound_port_->broken()))) {
    return;  // nothing will be read into it again
  }
  auto fresh = RegisteredBuffer::Create(core_->nic(), core_->domain(), options_.buffer_bytes, core_->sealed());
  if (!fresh.ok()) {
    for (RpcPort* port : {port_.get(), bound_port_.get()}) {
      if (port != nullptr) {
        [[maybe_unused]] const Status why =
            port->Break(Status::Error(ENOTCONN, "no memory for a new buffer after a call was given up"));
      }
    }
    return;
  }
  buffer_ = std::move(*fresh);
  if (reader_ != nullptr) {
    reader_->SetBuffer(buffer_);
  }
  if (validated_ != nullptr) {
    validated_->SetBuffer(buffer_);
  }
}

Result<DecodedReply> ChannelImpl::Exchange(const RpcPort::Request& request, Deadline& deadline) {
  if (port_ == nullptr) {
    unsent_ = true;
    return core_->why_lost();
  }
  counters_->calls.Add();
  const bool timed = ++exchanges_ % kSampleCalls == 0;
  const TimePoint begin = timed ? steady_clock::now() : TimePoint{};
  const bool bulk = request.in.length != 0 || request.out.length != 0;
  bool sent = false;
  const auto exchange = [&]() -> Result<DecodedReply> {
    RETURN_IF_ERROR(MakeRoom(*port_, deadline));
    ASSIGN_OR_RETURN(const RpcPort::Ticket ticket, port_->Begin(request, bulk ? buffer_ : nullptr, deadline));
    sent = true;
    ASSIGN_OR_RETURN(const DecodedReply reply, port_->Await(ticket, deadline));
    if (reply.header.out_bytes > request.out.length) {
      return Status::Error(EPROTO, "the server claims more bulk bytes than were asked for");
    }
    if (reply.header.out_bytes != 0) {
      const auto arrived = buffer_->bytes().subspan(request.out.offset, reply.header.out_bytes);
      RETURN_IF_ERROR(port_->TakeBulk(ticket, reply, *buffer_, {&arrived, 1}));
    }
    return reply;
  };
  auto reply = exchange();
  if (!reply.ok()) [[unlikely]] {
    unsent_ = !sent;
    if (GivenUp(reply.status()) && (bulk || !under_way_.empty())) {
      ReplaceBuffer();
    }
  }
  if (timed) {
    call_latency_.Record(NanosecondsSince(begin));
  }
  return reply;
}

Status ChannelImpl::Write(RegionOffset offset, std::span<const std::byte> data) {
  if (data.empty() || data.size() > kMaxTransfer || !buffer_->Contains(data.data(), data.size())) {
    return Status::Error(EINVAL, "write too much, or from outside of the channel's buffer");
  }
  RETURN_IF_ERROR(core_->CheckInRegion(offset, data.size()));
  const auto length = static_cast<uint32_t>(data.size());
  const WriteBody body{.offset = offset.value, .length = length};
  Deadline deadline(core_->call_timeout());
  RpcPort::Request request{
      .opcode = kWrite, .head = std::as_bytes(std::span(&body, 1)), .tail = {}, .in = {}, .out = {}};
  RETURN_IF_ERROR(Bring(data, request));
  return Exchange(request, deadline).status();
}

Status ChannelImpl::Post(const CallRequest& request, LateReply late) {
  if (!IsService(request.opcode) || !request.out.empty() || request.in.size() > kMaxInline) {
    return Status::Error(EINVAL, "a posted request is the service's, few bulk bytes go and none come back");
  }
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  if (!port_->has_credit()) {
    port_->PollReplies();
    EndAnswered();
  }
  if (!port_->has_credit() && !port_->broken()) {
    return Status::Error(EAGAIN, "every credit is in use");
  }
  counters_->calls.Add();
  Deadline deadline(core_->call_timeout());
  ASSIGN_OR_RETURN(const RpcPort::Ticket ticket, port_->Begin({.opcode = request.opcode,
                                                               .head = request.body,
                                                               .tail = {},
                                                               .in = {},
                                                               .out = {},
                                                               .mark = request.mark,
                                                               .inline_in = request.in},
                                                              nullptr, deadline));
  port_->Abandon(ticket);
  if (late != nullptr) {
    port_->WhenAnswered(std::move(late));
  }
  return Status::Ok();
}

Status ChannelImpl::AwaitPosted() {
  if (port_ == nullptr) {
    return core_->why_lost();
  }
  Deadline deadline(core_->call_timeout());
  return port_->AwaitAbandoned(deadline);
}

Status ChannelImpl::Bring(std::span<const std::byte> bulk, RpcPort::Request& request) {
  RETURN_IF_ERROR(CheckBulk(bulk));
  const size_t body = sizeof(RequestHeader) + request.head.size();
  if (bulk.size() <= kMaxInline && body + bulk.size() <= kMaxMessage) {
    request.inline_in = bulk;
  } else {
    request.in = buffer_->Describe(bulk.data(), static_cast<uint32_t>(bulk.size()));
  }
  return Status::Ok();
}

Status ChannelImpl::CheckBulk(std::span<const std::byte> bulk) const {
  return bulk.empty() || (bulk.size() <= kMaxTransfer && buffer_->Contains(bulk.data(), bulk.size()))
             ? Status::Ok()
             : Status::Error(EINVAL, "bulk bytes outside of the channel's buffer");
}

Result<CallReply> ChannelImpl::Call(const CallRequest& request) {
  if (!IsService(request.opcode)) {
    return Status::Error(EINVAL, "no opcode of the service");
  }
  RpcPort::Request rpc{
      .opcode = request.opcode, .head = request.body, .tail = {}, .in = {}, .out = {}, .mark = request.mark};
  RETURN_IF_ERROR(Bring(request.in, rpc));
  RETURN_IF_ERROR(CheckBulk(request.out));
  if (!request.out.empty()) {
    rpc.out = buffer_->DescribeRoom(request.out.data(), static_cast<uint32_t>(request.out.size()));
  }
  Deadline deadline(request.timeout.count() > 0 ? request.timeout : core_->call_timeout());
  ASSIGN_OR_RETURN(const DecodedReply reply, Exchange(rpc, deadline));
  return CallReply{.body = reply.body, .out_bytes = reply.header.out_bytes};
}

}  // namespace termfs::tlib::client
