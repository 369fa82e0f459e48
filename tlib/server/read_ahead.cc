// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/read_ahead.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/log.h"
#include "tlib/server/page_runs.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kFirstWindow = 32;  // pages
constexpr uint64_t kMostPages = 256;   // 1 MiB
constexpr uint64_t kPassingShare = 4;  // of the queue that what is loaded passes through, for one reader

}  // namespace

// The stream that goes on at `first`, else a new one in the place of the one that was idle longest.
ReadAhead::Stream& ReadAhead::Find(uint64_t first) {
  // Small reads come to the page where the last one ended once more.
  const auto goes_on = [&](const Stream& s) { return s.used != 0 && s.next <= first + 1 && first <= s.ahead; };
  auto found = std::find_if(streams_.begin(), streams_.end(), goes_on);
  if (found == streams_.end()) {
    found = std::min_element(streams_.begin(), streams_.end(),
                             [](const Stream& a, const Stream& b) { return a.used < b.used; });
    *found = {};
  }
  return *found;
}

void ReadAhead::Missed(PageIndex first, uint64_t count, const Spawner& spawn) {
  const uint64_t most = std::min<uint64_t>(kMostPages, supply_.passing_capacity() / kPassingShare);
  PageRange range;
  {
    MutexLock lock(mutex_);
    Stream& stream = Find(first.value);
    const bool goes_on = stream.used != 0;
    stream.used = ++calls_;
    if (first.value + count <= stream.next) {
      return;
    }
    stream.next = first.value + count;
    stream.ahead = std::max(stream.ahead, stream.next);
    if (!goes_on || stream.ahead - stream.next > stream.window / 2) {
      return;
    }
    stream.window = std::min(std::max({2 * stream.window, 2 * count, kFirstWindow}), most);
    const uint64_t end = std::min(stream.next + stream.window, states_.pages());
    if (end <= stream.ahead) {
      return;
    }
    range = {.first = {stream.ahead}, .count = end - stream.ahead};
    stream.ahead = end;
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
      LOG_ERROR("read ahead: {}", loaded.status().ToString());
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
