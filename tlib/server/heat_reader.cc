// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/heat_reader.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

// A client publishes up to four times in a period of its own, a second by default: what it published is met before it
// publishes again, though both may be late. Where nothing is new a look costs a READ of 64 bytes.
constexpr int kLooksInPeriod = 2;
constexpr std::chrono::milliseconds kShortestPause{5};
constexpr std::chrono::milliseconds kLongestPause{125};
// From then on the client rings when it has something.
constexpr std::chrono::seconds kPatience{2 * kHeatPause};
// A hundred thousand counts, each of a page that is in no cache, take longer than anybody should wait for a worker.
constexpr size_t kCountsPerTurn = 1024;

}  // namespace

void HeatReader::Ring() {
  rings_++;
  if (sleeper_ != nullptr) {
    sleeper_->Unpark();
  }
  if (!std::exchange(running_, true)) {
    // std::function wants copyable captures.
    const auto user = std::make_shared<Connection::User>(connection_);
    Worker::Current()->Spawn([self = shared_from_this(), user] { self->Run(); });
  }
}

void HeatReader::Close() {
  if (sleeper_ != nullptr) {
    sleeper_->Unpark();
  }
}

void HeatReader::Run() {
  using std::chrono::steady_clock;
  sleeper_ = &Task::Current();
  const auto pause = std::clamp(period_ / kLooksInPeriod, kShortestPause, kLongestPause);
  auto now = steady_clock::now();
  auto news = now;  // when there were some, or a ring
  auto due = now + pause;
  uint32_t rings = rings_;
  while (connection_.open() && (rings != rings_ || now < news + kPatience)) {
    if (rings == rings_ && Task::ParkUntil(due)) {
      continue;  // closing, a ring, or an older permit
    }
    const uint64_t before = seen_;
    const uint32_t rung = rings_;
    if (Status read = ReadOnce(); !read.ok()) {
      LOG_DEBUG("access counts of queue pair {}: {}", connection_.number(), read.ToString());
    }
    now = steady_clock::now();
    news = seen_ != before || rung != rings ? now : news;
    rings = rung;
    due = now + pause;
  }
  sleeper_ = nullptr;
  running_ = false;
}

Status HeatReader::Read(uint64_t offset, uint32_t length, const BulkPool::Buffer& into) {
  driver::SendWorkRequest read{.opcode = driver::Opcode::kRdmaRead};
  read.local = {.addr = into.data(), .length = length, .lkey = into.lkey()};
  read.remote_offset = offset;
  read.rkey = exported_.rkey;
  return connection_.Execute({&read, 1});
}

Status HeatReader::ReadHeader(HeatHeader& header) {
  const BulkPool::Buffer buffer(bulk_);
  RETURN_IF_ERROR(Read(0, sizeof(header), buffer));
  std::memcpy(&header, buffer.data(), sizeof(header));
  return Status::Ok();
}

Status HeatReader::ReadOnce() {
  HeatHeader before;
  RETURN_IF_ERROR(ReadHeader(before));
  seen_ = before.sequence;
  if (before.sequence == counted_) {
    return Status::Ok();
  }
  const uint64_t room = (exported_.bytes - sizeof(HeatHeader)) / (2 * sizeof(HeatEntry));
  const uint32_t count = before.count[before.sequence % 2];
  if (before.capacity > std::min<uint64_t>(room, kMaxHeatEntries) || count > before.capacity) {
    return Status::Error(EPROTO, "access counts that make no sense");
  }
  entries_.resize(count);
  constexpr uint32_t kPerBuffer = BulkPool::kBufferBytes / sizeof(HeatEntry);
  for (uint32_t done = 0; done < count;) {
    const uint32_t part = std::min(count - done, kPerBuffer);
    const BulkPool::Buffer buffer(bulk_);
    RETURN_IF_ERROR(Read(HeatBufferOffset(before.sequence, before.capacity) + done * sizeof(HeatEntry),
                         part * sizeof(HeatEntry), buffer));
    std::memcpy(entries_.data() + done, buffer.data(), part * sizeof(HeatEntry));
    done += part;
  }
  HeatHeader after;
  RETURN_IF_ERROR(ReadHeader(after));
  reads_.Add();
  if (after.sequence != before.sequence) {  // the client may be filling this buffer again
    return Status::Error(EAGAIN, "overtaken by the client");
  }
  counted_ = before.sequence;
  for (std::span<const HeatEntry> left(entries_); !left.empty() && connection_.open();) {
    const size_t turn = std::min(left.size(), kCountsPerTurn);
    region_.AddCounts(left.first(turn));
    left = left.subspan(turn);
    if (!left.empty()) {
      Task::Yield();
    }
  }
  const uint32_t hit_pages = before.hit_pages[before.sequence % 2];
  traffic_->hit_pages.fetch_add(hit_pages, std::memory_order_relaxed);
  region_.AddTotals(connection_.number(), hit_pages, before.missed_pages[before.sequence % 2]);
  return Status::Ok();
}

}  // namespace termfs::tlib::server
