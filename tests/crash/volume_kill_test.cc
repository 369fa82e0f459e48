// SPDX-License-Identifier: Apache-2.0
//
// A server of a volume is killed at named points of the metadata store and of the RNIC, over and over, with a client
// (model_client.h) that creates, writes, cuts, renames, links, unlinks and syncs; the next server is asked for
// everything. Every third round ends with a loss of power.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <initializer_list>
#include <set>

#include "tests/crash/killed_volume.h"

namespace termfs::fs {
namespace {

constexpr std::array<const char*, 16> kPoints = {"store.commit", "store.committed", "store.sync",      "store.synced",
                                                 "nic.publish",  "nic.published",   "nic.begin_write", "nic.hide",
                                                 "nic.hidden",   "nic.begun_write", "nic.commit",      "nic.registered",
                                                 "nic.register", "nic.committed",   "nic.resize",      "nic.resized"};

void KillEverywhere(std::initializer_list<uint64_t> counts, uint64_t seed) {
  KilledVolume volume;
  std::set<std::pair<std::string, uint64_t>> died_at;
  for (uint64_t length = 0; length < CrashTestLength(); ++length) {
    for (const uint64_t count : counts) {
      for (const char* const point : kPoints) {
        const Round round{.point = point, .count = count + length * 5, .seed = ++seed, .power_loss = seed % 3 == 0};
        const HowItEnded ended = volume.Run(round, [](ModelClient& user) { user.Run(60); });
        ASSERT_NE(ended, HowItEnded::kFailed) << point << ":" << round.count << " seed " << seed;
        if (ended == HowItEnded::kKilled) {
          died_at.insert({round.point, round.count});
        }
      }
    }
  }
  const Round last{.point = "", .count = 0, .seed = (seed / 4 + 1) * 4};
  EXPECT_EQ(volume.Run(last, [](ModelClient& user) { user.RemoveAll(); }), HowItEnded::kByItself);
  std::printf("died at %zu pairs, %lu calls acknowledged\n", died_at.size(),
              static_cast<unsigned long>(volume.acknowledged()));
  EXPECT_GE(died_at.size(), kPoints.size()) << "the points are not passed any more";
}

TEST(VolumeKill, AtNamedPoints_KeepsWhatReturned) { KillEverywhere({1, 2, 4, 7, 15, 33, 80}, 100); }

// Power is lost right after the space of removed files has come back: a file whose removal is lost has its bytes.
TEST(VolumeKill, SpaceComesBack_OnlyWhenTheRemovalIsDurable) {
  KilledVolume volume;
  for (uint64_t seed = 301; seed < 301 + 12 * CrashTestLength(); ++seed) {
    const Round round{.point = "", .count = 0, .seed = seed, .power_loss = true};
    ASSERT_EQ(volume.Run(round,
                         [](ModelClient& user) {
                           user.Run(40);
                           user.SyncAll();
                           user.RemoveAll();
                         }),
              HowItEnded::kByItself)
        << seed;
  }
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 304}, [](ModelClient&) {}), HowItEnded::kByItself);
}

// Power is lost right after a shrink: what it moved had been synced where it was.
TEST(VolumeKill, WhatAShrinkMoved_IsAsDurableAsBefore) {
  for (uint64_t seed = 601; seed < 601 + 3 * CrashTestLength(); ++seed) {
    KilledVolume volume;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = seed, .power_loss = true},
                         [](ModelClient& user) { user.MoveByShrinking(); }),
              HowItEnded::kByItself)
        << seed;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = 4 * seed}, [](ModelClient& user) { user.RemoveAll(); }),
              HowItEnded::kByItself)
        << seed;
  }
}

TEST(VolumeKill, SpaceAheadOfAGrowingFile_ComesBack) {
  KilledVolume volume;
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 501},
                       [](ModelClient& user) {
                         user.Grow();
                         user.ExpectSpaceBeyondTheFiles(true);
                       }),
            HowItEnded::kByItself);
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 503},
                       [](ModelClient& user) { user.ExpectSpaceBeyondTheFiles(false); }),
            HowItEnded::kByItself);
}

// A sync dies between the data and the log that says whose it is, and power is lost: those pages are free, and what was
// written to them is nobody's to see.
TEST(VolumeKill, PagesWhoseFileWasLost_ReadAsZeros) {
  int deaths = 0;
  for (uint64_t seed = 401; seed < 401 + 24 * CrashTestLength(); seed += 2) {
    KilledVolume volume;  // so that the same pages are allocated again
    const Round dies{.point = "store.sync", .count = 1, .seed = seed, .power_loss = true};
    const HowItEnded ended = volume.Run(dies, [](ModelClient& user) { user.WriteAndSync(); });
    ASSERT_NE(ended, HowItEnded::kFailed) << seed;
    deaths += ended == HowItEnded::kKilled ? 1 : 0;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = seed}, [](ModelClient& user) { user.WriteSparsely(); }),
              HowItEnded::kByItself)
        << seed;
  }
  EXPECT_GE(deaths, 6) << "the point is not passed any more";
}

}  // namespace
}  // namespace termfs::fs
