// SPDX-License-Identifier: Apache-2.0
#include "mount/reader_sizes.h"

#include <algorithm>
#include <tuple>

namespace termfs::mount {

namespace {
constexpr size_t kMany = 256;  // inodes in a place: those are looked through more often
}

ReaderSizes::Shown& ReaderSizes::Find(Place& place, uint64_t ino, TimePoint now) {
  if (now >= place.swept + (place.shown.size() < kMany ? kOnTheWay : kCutOnTheWay)) {
    std::erase_if(place.shown, [&](const auto& shown) {
      const auto& [last, last_cut] = std::tie(shown.second.last, shown.second.last_cut);
      return shown.second.notifying + shown.second.storing + shown.second.cutting == 0 && now >= last + kOnTheWay &&
             now >= last_cut + kCutOnTheWay;
    });
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
  if (shown.storing > 0 && now < shown.store_begun + kStoring) {
    return shown.store_begun + kStoring;
  }
  ++shown.notifications;
  ++shown.notifying;
  shown.begun = shown.last = now;
  if (shown.settling != kUnknown) {  // that is over, one way or another
    shown.most = std::exchange(shown.settling, kUnknown);
    shown.readers.clear();
  }
  return now;
}

void ReaderSizes::EndNotification(uint64_t ino) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  --place.shown.at(ino).notifying;
}

uint64_t ReaderSizes::notifications(uint64_t ino) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  return found != place.shown.end() ? found->second.notifications : 0;
}

ReaderSizes::Next ReaderSizes::Show(uint64_t ino, uint64_t size, uint64_t notifications, uint32_t reader,
                                    TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  if (found == place.shown.end()) {
    return notifications == 0 ? Next::kAnswer : Next::kAskAgain;
  }
  Shown& shown = found->second;
  if (shown.notifications != notifications || (shown.notifying > 0 && now < shown.begun + kNotifying)) {
    return Next::kAskAgain;
  }
  if (!Decide(shown, size, reader, now)) {
    return Next::kAnswer;
  }
  ++shown.storing;
  shown.store_begun = now;
  return Next::kStore;
}

void ReaderSizes::BeginStore(uint64_t ino, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Shown& shown = Find(place, ino, now);
  ++shown.storing;
  shown.store_begun = now;
}

void ReaderSizes::Stored(uint64_t ino, uint64_t size, uint64_t notifications) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Shown& shown = place.shown.at(ino);
  --shown.storing;
  if (shown.notifications == notifications) {
    shown.least = shown.least_since == notifications ? std::max(shown.least, size) : size;
    shown.least_since = notifications;
  }
}

bool ReaderSizes::Decide(Shown& shown, uint64_t size, uint32_t reader, TimePoint now) {
  if (now >= shown.last + kOnTheWay) {
    return false;
  }
  if (size < shown.most && !looks_.load(std::memory_order_relaxed)) {
    shown.settling = size;
    shown.settles = now + (shown.most == kUnknown ? kTakesOver : kSettling);
    if (std::find(shown.readers.begin(), shown.readers.end(), reader) == shown.readers.end()) {
      shown.readers.push_back(reader);
    }
  }
  const bool stores = shown.least_since != shown.notifications || size > shown.least;
  if (size > shown.most) {
    shown.most = size;
    ++shown.given;
  }
  return stores && size > 0;
}

bool ReaderSizes::Knows(uint64_t ino) {
  if (!any_.load(std::memory_order_relaxed)) {
    return false;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  return found != place.shown.end() && found->second.last != TimePoint{};
}

void ReaderSizes::Asks(uint64_t ino, uint32_t reader, TimePoint now) {
  if (!any_.load(std::memory_order_relaxed)) {
    return;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  if (found == place.shown.end() || std::erase(found->second.readers, reader) == 0) {
    return;
  }
  Shown& shown = found->second;
  if (shown.readers.empty() && now < shown.settles) {
    shown.settles = now;
  }
}

void ReaderSizes::HasReadShort(uint64_t ino, TimePoint now) {
  if (!any_.load(std::memory_order_relaxed)) {
    return;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  if (found != place.shown.end() && now < found->second.settles) {
    found->second.settles = std::min(found->second.settles, now + kTakesOver);
  }
}

void ReaderSizes::NoteGiven(uint64_t ino, uint64_t size) {
  if (!any_.load(std::memory_order_relaxed)) {
    return;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  if (const auto found = place.shown.find(ino); found != place.shown.end()) {
    found->second.most = std::max(found->second.most, size);
    ++found->second.given;
  }
}

void ReaderSizes::BeginOwnCut(uint64_t ino, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Shown& shown = Find(place, ino, now);
  shown.last_cut = now;
  shown.cuts = true;
  ++shown.cutting;
  ++shown.given;
}

void ReaderSizes::EndOwnCut(uint64_t ino, TimePoint now) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  Shown& shown = place.shown.at(ino);
  shown.last_cut = now;
  shown.cuts = true;
  --shown.cutting;
  ++shown.given;
}

bool ReaderSizes::MayDiffer(uint64_t ino, uint64_t least, uint64_t most) {
  if (!any_.load(std::memory_order_relaxed) || !looks_.load(std::memory_order_relaxed)) {
    return false;
  }
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  return found != place.shown.end() &&
         (found->second.most > most || found->second.most < least || (found->second.cuts && most != kUnknown));
}

uint64_t ReaderSizes::given(uint64_t ino) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  return found != place.shown.end() ? found->second.given : 0;
}

void ReaderSizes::Seen(uint64_t ino, uint64_t size, uint64_t given) {
  Place& place = PlaceOf(ino);
  MutexLock lock(place.mutex);
  const auto found = place.shown.find(ino);
  if (found != place.shown.end() && found->second.given == given) {
    found->second.most = size;
    found->second.cuts = false;
  }
}

}  // namespace termfs::mount
