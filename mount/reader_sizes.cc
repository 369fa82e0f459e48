// SPDX-License-Identifier: Apache-2.0
#include "mount/reader_sizes.h"

#include <algorithm>

namespace termfs::mount {

ReaderSizes::Shown& ReaderSizes::Find(Place& place, uint64_t ino, TimePoint now) {
  if (now >= place.swept + kOnTheWay) {
    std::erase_if(place.shown, [&](const auto& shown) { return now >= shown.second.last + kOnTheWay; });
    place.swept = now;
  }
  any_.store(true, std::memory_order_relaxed);
  return place.shown[ino];
}

void ReaderSizes::Unsure(uint64_t ino, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Find(place, ino, now).last = now;
}

ReaderSizes::TimePoint ReaderSizes::BeginNotification(uint64_t ino, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Shown& shown = Find(place, ino, now);
  if (now < shown.settles) {
    return shown.settles;
  }
  ++shown.notifications;
  shown.last = now;
  shown.settling = kUnknown;
  return now;
}

uint64_t ReaderSizes::notifications(uint64_t ino) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  return found != place.shown.end() ? found->second.notifications : 0;
}

ReaderSizes::Next ReaderSizes::Show(uint64_t ino, uint64_t size, uint64_t notifications, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  const uint64_t known = found != place.shown.end() ? found->second.notifications : 0;
  if (known != notifications) {
    return Next::kAskAgain;
  }
  return found != place.shown.end() && Decide(found->second, size, now) ? Next::kStore : Next::kAnswer;
}

bool ReaderSizes::Decide(Shown& shown, uint64_t size, TimePoint now) {
  if (now >= shown.last + kOnTheWay) {
    return false;
  }
  if (size < shown.most && size != shown.settling) {
    shown.settling = size;
    shown.settles = now + kSettling;
  }
  const bool stores = shown.least_since != shown.notifications || size > shown.least;
  shown.least_since = shown.notifications;
  shown.least = size;
  if (size > shown.most) {
    shown.most = size;
  }
  return stores && size > 0;
}

void ReaderSizes::HasRead(uint64_t ino, TimePoint now) {
  if (!any_.load(std::memory_order_relaxed)) {
    return;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  if (found != place.shown.end() && now < found->second.settles) {
    found->second.settles = std::min(found->second.settles, now + kTakesOver);
    found->second.most = found->second.settling;
  }
}

void ReaderSizes::Forget(uint64_t ino) {
  if (!any_.load(std::memory_order_relaxed)) {
    return;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  if (const auto found = place.shown.find(ino); found != place.shown.end()) {
    found->second.most = kUnknown;
  }
}

}  // namespace termfs::mount
