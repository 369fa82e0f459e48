// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/read_ahead.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "tlib/server/page_runs.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kFirstWindow = 4;  // pages
constexpr uint64_t kMostPages = 256;  // 1 MiB
constexpr uint64_t kPatience = 1024;  // misses, of whomever: a window halves
constexpr uint64_t kReaderShare = 4;  // of the queue that what is loaded passes through: a window's

}  // namespace

ReadAhead::Stream* ReadAhead::Find(Streams& streams, uint64_t first) {
  // Small reads come to the page where the last one ended once more.
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const Stream& s) {
    return s.used != 0 && s.next <= first + 1 && first <= s.ahead;
  });
  return found != streams.end() ? &*found : nullptr;
}

ReadAhead::Stream& ReadAhead::Oldest(Streams& streams) {
  return *std::min_element(streams.begin(), streams.end(),
                           [](const Stream& a, const Stream& b) { return a.used < b.used; });
}

PageRange ReadAhead::Advance(uint64_t first, uint64_t count) {
  const uint64_t most = std::min<uint64_t>(kMostPages, supply_.passing_capacity() / kReaderShare);
  const uint64_t next = first + count;
  MutexLock lock(mutex_);
  calls_++;
  Stream* stream = Find(known_, first);
  if (stream == nullptr) {
    Stream* const once = Find(seen_once_, first);
    if (once == nullptr) {
      Oldest(seen_once_) = {.next = next, .ahead = next, .window = 0, .used = calls_};
      return {};
    }
    if (next <= once->next) {
      return {};
    }
    stream = &Oldest(known_);
    *stream = std::exchange(*once, {});
  }
  if (next <= stream->next) {
    return {};
  }
  // Somewhere in what is being loaded: a reader who is faster than the SSD, and misses the next page, too; or chance,
  // which among random reads is the likelier the more has been loaded, and must not have more loaded for it.
  const bool by_chance = first > stream->next + 1 && next < stream->ahead;
  stream->next = next;
  if (by_chance) {
    return {};
  }
  // Who is not heard of for long was there by chance.
  stream->window >>= std::min<uint64_t>((calls_ - stream->used) / kPatience, 63);
  stream->used = calls_;
  stream->ahead = std::max(stream->ahead, next);
  if (stream->ahead - next > stream->window / 2 || loading_.load() >= kMostLoads) {
    return {};
  }
  stream->window = std::min(std::max({2 * stream->window, 2 * count, kFirstWindow}), most);
  const uint64_t begin = stream->ahead;
  const uint64_t end = std::min(next + stream->window, states_.pages());
  if (end <= begin) {
    return {};
  }
  stream->ahead = end;
  return {.first = {begin}, .count = end - begin};
}

void ReadAhead::Missed(PageIndex first, uint64_t count, const Spawner& spawn) {
  const PageRange range = Advance(first.value, count);
  if (range.count == 0) {
    return;
  }
  loading_.fetch_add(1);
  if (stopping_.load()) {  // pairs with Stop: one of the two sees the other
    loading_.fetch_sub(1);
    return;
  }
  spawn([this, range] {
    Load(range);
    loading_.fetch_sub(1);
  });
}

void ReadAhead::Load(PageRange range) {
  std::array<PageIndex, PageRuns::kMaxPages> pages;
  for (uint64_t at = 0; at < range.count && !stopping_.load();) {
    size_t count = 0;
    for (; at < range.count && count < pages.size(); at++) {
      const PageIndex page{range.first.value + at};
      if (page.value < states_.pages() && states_.Peek(page).on_ssd()) {  // what was never written nobody reads ahead
        pages[count++] = page;
      }
    }
    const auto loaded = pager_.Load({pages.data(), count}, Pager::Urgency::kPassing);
    if (!loaded.ok()) {
      LOG_DEBUG("read ahead: {}", loaded.status().ToString());
      return;
    }
  }
}

void ReadAhead::Stop() {
  stopping_.store(true);
  while (loading_.load() > 0) {  // each is short
    Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(2));
  }
}

}  // namespace termfs::tlib::server
