// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/accessor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "base/page.h"
#include "benchmarks/must.h"

namespace termfs::benchmarks::term {
namespace {

using std::chrono::steady_clock;

constexpr double kLongTurn = 3;  // seconds
constexpr uint64_t kMostDrawn = uint64_t{16} << 20;
constexpr uint64_t kFewestDrawn = uint64_t{1} << 18;
constexpr uint64_t kDrawnInBetween = 1U << 12;
constexpr uint32_t kAccessesPerClockRead = 16;

// For the reads, and one write.
size_t BufferBytes(const Settings& settings) {
  return RoundUpToPage(uint64_t{settings.depth + 1} * settings.pattern.access_bytes) + kPageSize;
}

}  // namespace

Accessor::Accessor(const Settings& settings, tlib::client::Session& session, uint32_t thread, uint32_t generation,
                   double rate)
    : settings_(settings),
      unit_(settings.pattern.access_bytes),
      thread_(thread),
      pattern_(settings.pattern, thread, settings.all_threads(), generation),
      random_(settings.pattern.seed * 7919 + generation * 1009ULL + thread),
      channel_(Must(session.OpenChannel({.buffer_bytes = BufferBytes(settings)}))),
      rate_(rate) {
  for (uint32_t i = 0; i < settings.depth; i++) {
    free_.push_back(channel_->buffer().data() + i * unit_);
  }
}

void Accessor::Prepare(const Turn& turn) {
  turn_ = turn;
  if (turn.uniform) {
    PatternOptions options = settings_.pattern;
    options.distribution = Distribution::kUniform;
    uniform_.emplace(options, thread_, settings_.all_threads());
  }
  const auto expected = static_cast<uint64_t>(rate_ * turn.seconds * 1.25);  // as fast as the last one
  in_between_ = turn.seconds > kLongTurn || settings_.pattern.distribution == Distribution::kMoving;
  drawn_.resize(in_between_ ? kDrawnInBetween : std::clamp(expected, kFewestDrawn, kMostDrawn));
  Draw(turn.begin);
}

void Accessor::Draw(double now) {
  AccessPattern& pattern = turn_.uniform ? *uniform_ : pattern_;
  std::generate(drawn_.begin(), drawn_.end(), [&] { return pattern.Next(now); });
  next_ = 0;
}

uint64_t Accessor::NextOffset() {
  if (next_ == drawn_.size()) [[unlikely]] {
    Draw(turn_.begin + Elapsed());  // of a short turn: it is faster than expected
  }
  return drawn_[next_++] * unit_;
}

void Accessor::Read(size_t count) {
  // What is read at once leaves its place free for the next.
  reads_.resize(count);
  for (size_t i = 0; i < reads_.size(); i++) {
    reads_[i] = {.offset = {NextOffset()}, .length = static_cast<uint32_t>(unit_), .destination = free_[i]};
  }
  if (reads_.size() == 1 && settings_.depth == 1) {
    Must(channel_->Read(reads_));
  } else {
    const size_t before = under_way_.size();
    Must(channel_->BeginRead(reads_, under_way_));
    for (size_t i = before; i < under_way_.size(); i++) {
      std::erase(free_, under_way_[i]);
    }
    if (free_.empty() || under_way_.size() >= tlib::kChannelCredits) {
      AwaitSome();
    }
  }
  accesses_ += reads_.size();
}

void Accessor::AwaitSome() {
  const size_t before = free_.size();
  Must(channel_->AwaitReads(free_));
  for (size_t i = before; i < free_.size(); i++) {
    std::erase(under_way_, free_[i]);
  }
}

void Accessor::Write() {
  Must(channel_->Write({NextOffset()}, channel_->buffer().subspan(settings_.depth * unit_, unit_)));
  accesses_++;
  writes_++;
}

void Accessor::Call() {
  size_t writes = 0;
  if (turn_.write_share > 0) {
    for (size_t i = 0; i < free_.size(); i++) {
      writes += random_.Double() < turn_.write_share ? 1 : 0;
    }
  }
  for (size_t i = 0; i < writes; i++) {
    Write();
  }
  if (writes < free_.size()) {
    Read(free_.size() - writes);
  }
}

void Accessor::Run() {
  accesses_ = 0;
  writes_ = 0;
  latencies_ = {};
  by_second_.clear();
  const uint32_t calls =
      settings_.pause_every > 0 ? 1 : std::max(1U, kAccessesPerClockRead / settings_.depth);  // in each round
  uint64_t unpaused = 0;
  if (settings_.pause_every > 0) {
    prctl(PR_SET_TIMERSLACK, 1UL);  // nanosecond: else it sleeps for 50 us more
  }
  began_ = steady_clock::now();
  double now = 0;
  while (now < turn_.seconds) {
    const uint64_t before = accesses_;
    if (settings_.depth == 1) {
      const auto call_began = steady_clock::now();
      Call();
      latencies_.Record(static_cast<uint64_t>((steady_clock::now() - call_began).count()));
    } else {
      Call();
    }
    for (uint32_t i = 1; i < calls; i++) {
      Call();
    }
    if (settings_.pause_every > 0 && (unpaused += accesses_ - before) >= settings_.pause_every) {
      unpaused = 0;
      std::this_thread::sleep_for(settings_.pause);
    }
    now = Elapsed();
    const auto second = static_cast<size_t>(turn_.begin + now);
    by_second_.resize(std::max(by_second_.size(), second + 1));
    by_second_[second] += static_cast<uint32_t>(accesses_ - before);
  }
  while (!under_way_.empty()) {
    AwaitSome();
  }
  rate_ = static_cast<double>(accesses_) / Elapsed();
}

}  // namespace termfs::benchmarks::term
