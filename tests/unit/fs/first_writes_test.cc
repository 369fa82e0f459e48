// SPDX-License-Identifier: Apache-2.0
//
// Writes that a client answers before the server has them.
#include "fs/client/first_writes.h"

#include <fcntl.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fs/client/volume_client.h"
#include "fs/proto/opcodes.h"
#include "fs/server/newborns.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::FirstWrites;
using client::OpenFile;
using server::Newborns;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

constexpr uint64_t kRoomyBytes = uint64_t{32} << 20;  // with less than 16 MiB free none is answered early
constexpr server::CoherenceTimeouts kPatient{.lease = seconds(50), .drift = seconds(5)};
// For those who wait until a client's time is over.
constexpr server::CoherenceTimeouts kImpatient{
    .revoke = milliseconds(300), .expel = seconds(5), .lease = milliseconds(600), .drift = milliseconds(100)};

// Two mounts whose kernels cache. What the first posts does not arrive before Deliver.
class FirstWriteTest : public testing::Test {
 protected:
  explicit FirstWriteTest(server::CoherenceTimeouts timeouts = kPatient) : volume(kRoomyBytes, timeouts) {
    volume.tlib().HoldPosts();
  }
  // Creates a file with contents that are on their way when this returns.
  OpenFile* Post(std::string_view name, std::string_view contents) {
    const uint64_t posted = a->Metric("fs_writes_posted_total");
    OpenFile* const file = a->Create(name);
    EXPECT_TRUE(a->Write(file, 0, contents).ok());
    EXPECT_EQ(a->Metric("fs_writes_posted_total"), posted + 1);
    return file;
  }
  size_t Deliver() { return volume.tlib().DeliverPosts(); }
  // That `look` does not return before what was posted has come. It gets a lane of its own.
  void ExpectWaits(Mount& mount, const std::function<void(client::Lane& lane)>& look) {
    auto lane = mount.fs->OpenLane();
    ASSERT_TRUE(lane.ok());
    std::atomic<bool> done{false};
    std::thread looks([&] {
      look(**lane);
      done = true;
    });
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(done);
    EXPECT_GE(Deliver(), 1U);
    looks.join();
  }

  MemoryVolume volume;
  SilentCache a_cache;
  SilentCache b_cache;
  std::unique_ptr<Mount> a = std::make_unique<Mount>(volume, &a_cache);
  std::unique_ptr<Mount> b = std::make_unique<Mount>(volume, &b_cache);
};

class FirstWriteInTime : public FirstWriteTest {
 protected:
  FirstWriteInTime() : FirstWriteTest(kImpatient) {}
};

uint64_t SizeIn(Mount& mount, client::Lane& lane, std::string_view name) {
  const auto found = mount.fs->Lookup(lane, kRootInode, name);
  EXPECT_TRUE(found.ok()) << found.status().ToString();
  return found.ok() ? found->size : ~uint64_t{0};
}

}  // namespace

TEST_F(FirstWriteTest, ReturnsBeforeTheServerHasIt_AndIsThereThen) {
  OpenFile* const file = Post("f", "contents");
  a->Close(file);
  EXPECT_EQ(Deliver(), 2U) << "the write, and the release";
  OpenFile* const other = b->Open("f", O_RDONLY);
  EXPECT_EQ(b->Read(other, 0, 100), "contents");
  b->Close(other);
}

TEST_F(FirstWriteTest, TheReleaseOvertakesIt_ItIsThere) {
  a->Close(Post("f", "contents"));
  EXPECT_EQ(volume.tlib().DeliverPostsTheOtherWayRound(), 2U);
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 8U);
}

TEST_F(FirstWriteTest, OthersWaitForIt) {
  a->Close(Post("f", "contents"));
  ExpectWaits(*b, [&](client::Lane& lane) {
    const auto found = b->fs->Lookup(lane, kRootInode, "f");
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->size, 8U);
    EXPECT_EQ(found->blocks, 8U) << "as the store has it now";
  });
}

TEST_F(FirstWriteTest, OthersWaitForIt_WhoList) {
  a->Close(Post("f", "contents"));
  ExpectWaits(*b, [&](client::Lane& lane) {
    const auto listed = b->fs->ReadDirectory(lane, kRootInode, 0, 4096, true);
    ASSERT_TRUE(listed.ok());
    ASSERT_EQ(listed->size(), 3U);
    EXPECT_EQ(listed->back().attributes.size, 8U);
  });
}

TEST_F(FirstWriteTest, OthersWaitForIt_WhoOpenAndRead) {
  OpenFile* const file = Post("f", "contents");
  const uint64_t ino = file->ino;
  ExpectWaits(*b, [&](client::Lane& lane) {
    const auto opened = b->fs->Open(lane, ino, O_RDONLY);
    ASSERT_TRUE(opened.ok());
    const auto read = b->fs->Read(lane, *opened, 0, 100);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->size(), 8U);
    b->fs->Release(lane, *opened);
  });
  a->Close(file);
}

TEST_F(FirstWriteTest, OthersWaitForIt_WhoTruncate) {
  OpenFile* const file = Post("f", "contents");
  const uint64_t ino = file->ino;
  ExpectWaits(*b, [&](client::Lane& lane) {
    client::SetAttributes what;
    what.size = 3;
    EXPECT_TRUE(b->fs->Set(lane, ino, what, nullptr).ok());
  });
  EXPECT_EQ(a->Read(file, 0, 100), "con");
  a->Close(file);
}

TEST_F(FirstWriteTest, OthersWaitForIt_WhoLink) {
  OpenFile* const file = Post("f", "contents");
  const uint64_t ino = file->ino;
  ExpectWaits(*b, [&](client::Lane& lane) {
    const auto linked = b->fs->Link(lane, ino, kRootInode, "g");
    ASSERT_TRUE(linked.ok());
    EXPECT_EQ(linked->size, 8U);
  });
  a->Close(file);
}

TEST_F(FirstWriteTest, OwnRequestsComeAfterIt) {
  for (const char* const what : {"read", "write", "sync", "attributes", "times"}) {
    volume.tlib().HoldPosts();
    OpenFile* const file = Post(what, "contents");
    ExpectWaits(*a, [&](client::Lane& lane) {
      const std::string_view op = what;
      if (op == "read") {
        const auto read = a->fs->Read(lane, file, 0, 100);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(read->size(), 8U);
      } else if (op == "write") {
        EXPECT_TRUE(a->fs->Write(lane, file, 0, std::as_bytes(std::span("C", 1)), {}).ok());
      } else if (op == "sync") {
        EXPECT_TRUE(a->fs->Sync(lane, file, false).ok());
      } else if (op == "attributes") {
        const auto found = a->fs->GetAttributes(lane, file->ino);
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(found->size, 8U);
      } else {
        client::SetAttributes times;
        times.mtime = 77;
        EXPECT_TRUE(a->fs->Set(lane, file->ino, times, file).ok());
      }
    });
    EXPECT_EQ(a->Read(file, 0, 100), std::string_view(what) == "write" ? "Contents" : "contents");
    if (std::string_view(what) == "times") {
      EXPECT_EQ(a->Stat(file->ino).mtime, 77) << "the write came first";
    }
    a->Close(file);
  }
}

TEST_F(FirstWriteTest, SomebodyHasLooked_TheWriteWaits) {
  OpenFile* const file = a->Create("f");
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 0U) << "nothing was posted: nobody waits";
  ASSERT_TRUE(a->Write(file, 0, "contents").ok());
  EXPECT_EQ(a->Metric("fs_writes_posted_total"), 0U);
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 8U);
  a->Close(file);
  Deliver();
}

TEST_F(FirstWriteTest, OnlyOneIsPosted_AndOnlyASmallOneAtTheStart) {
  OpenFile* const file = Post("f", "contents");
  std::thread delivers([&] {
    std::this_thread::sleep_for(milliseconds(20));
    Deliver();
  });
  ASSERT_TRUE(a->Write(file, 8, " and more").ok());
  delivers.join();
  EXPECT_EQ(a->Read(file, 0, 100), "contents and more");
  volume.tlib().HoldPosts();
  OpenFile* const behind = a->Create("behind");
  ASSERT_TRUE(a->Write(behind, 1, "x").ok());
  OpenFile* const large = a->Create("large");
  ASSERT_TRUE(a->Write(large, 0, std::string(kMaxFirstWrite + 1, 'l')).ok());
  OpenFile* const synchronous = a->Create("synchronous", O_RDWR | O_SYNC);
  ASSERT_TRUE(a->Write(synchronous, 0, "x").ok());
  OpenFile* const appended = a->Create("appended", O_RDWR | O_APPEND);
  ASSERT_TRUE(a->Write(appended, 0, "x").ok());
  EXPECT_EQ(a->Metric("fs_writes_posted_total"), 1U);
  for (OpenFile* const each : {file, behind, large, synchronous, appended}) {
    a->Close(each);
  }
  Deliver();
}

TEST_F(FirstWriteTest, TheServerDies_ItIsSentAgain) {
  OpenFile* const open = Post("open", "contents");
  a->Close(Post("closed", "contents"));
  volume.KillAndRestart();
  Deliver();  // nothing: it went with its connection
  std::thread looks([this] {
    OpenFile* const other = b->Open("closed", O_RDONLY);
    EXPECT_EQ(b->Read(other, 0, 100), "contents");
    b->Close(other);
  });
  std::this_thread::sleep_for(milliseconds(50));
  a->FreeBytes();  // notices
  looks.join();
  EXPECT_EQ(a->Read(open, 0, 100), "contents");
  EXPECT_EQ(a->fs->Sync(*a->lane, open, false).code(), 0);
  a->Close(open);
}

TEST_F(FirstWriteInTime, ItWasCarriedOutAndTheReplyIsLost_NotTwice) {
  Deliver();
  volume.tlib().LoseReplyOf(kFsWrite, [this] {
    // Another is quicker than the client that comes back.
    std::thread([this] {
      Mount c(volume);
      OpenFile* const file = c.Open("f");
      EXPECT_EQ(c.Read(file, 0, 100), "contents");
      EXPECT_TRUE(c.Write(file, 0, "CONTENTS").ok());
      c.Close(file);
    }).join();
  });
  OpenFile* const file = Post("f", "contents");
  EXPECT_EQ(a->Read(file, 0, 100), "CONTENTS");
  EXPECT_GE(a->Metric("link_reconnections_total"), 1U);
  a->Close(file);
}

TEST_F(FirstWriteTest, TheServerDies_TheEndOfTheMountAwaitsTheNext) {
  a->Close(Post("f", "contents"));
  EXPECT_FALSE(a->fs->AwaitsServerForWrites()) << "the server is there";
  volume.Kill();
  a->lane.reset();  // notices
  EXPECT_TRUE(a->fs->AwaitsServerForWrites());
  EXPECT_EQ(a->fs->AwaitServerForWrites([] { return true; }), 1U) << "a signal ends the wait";
  bool restarted = false;
  const auto restart = [&] {
    if (!std::exchange(restarted, true)) {
      volume.Restart();
    }
    return false;
  };
  EXPECT_EQ(a->fs->AwaitServerForWrites(restart), 0U);
  a.reset();
  OpenFile* const file = b->Open("f", O_RDONLY);
  EXPECT_EQ(b->Read(file, 0, 100), "contents");
  b->Close(file);
}

TEST_F(FirstWriteTest, TheServerDies_AnotherSetsTheSize_AfterIt) {
  a->Close(Post("f", "contents"));
  volume.KillAndRestart();
  std::thread cuts([this] {
    const auto found = volume.names().Lookup(kRootInode, "f");
    ASSERT_TRUE(found.ok());
    EXPECT_TRUE(b->Resize(found->ino, 3).ok());
  });
  std::this_thread::sleep_for(milliseconds(50));
  a->FreeBytes();  // notices
  cuts.join();
  EXPECT_EQ(a->Stat(a->InodeOf("f")).size, 3U);
}

TEST_F(FirstWriteTest, TheFileIsRemovedWhileTheServerIsGone_NothingIsLost) {
  a->Close(Post("f", "contents"));
  volume.Kill();
  volume.Restart();
  std::thread removes([this] { EXPECT_TRUE(b->Remove("f").ok()); });
  std::this_thread::sleep_for(milliseconds(50));
  a->FreeBytes();  // notices
  removes.join();
  OpenFile* const file = Post("g", "more");
  Deliver();
  EXPECT_EQ(a->fs->Sync(*a->lane, file, false).code(), 0);
  a->Close(file);
}

TEST_F(FirstWriteTest, ItFails_FsyncSaysSo_AndNobodyWaits) {
  OpenFile* const file = Post("f", "contents");
  volume.tlib().FailWriteAfter(0);
  Deliver();
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 0U);
  EXPECT_EQ(a->fs->Sync(*a->lane, file, false).code(), EIO);
  EXPECT_EQ(a->fs->Sync(*a->lane, file, false).code(), 0);
  a->Close(file);
}

TEST_F(FirstWriteTest, InAQuotaTree_ItWaits) {
  ASSERT_TRUE(volume.names().SetQuota(kRootInode, uint64_t{1} << 30, std::nullopt).ok());
  OpenFile* const file = a->Create("f");
  ASSERT_TRUE(a->Write(file, 0, "contents").ok());
  EXPECT_EQ(a->Metric("fs_writes_posted_total"), 0U);
  a->Close(file);
  Deliver();
}

TEST_F(FirstWriteTest, WhoTakesTheLastSpaceWaitsForIt) {
  a->Close(Post("f", "contents"));
  OpenFile* const large = b->Create("large");
  ExpectWaits(*b,
              [&](client::Lane& lane) { EXPECT_EQ(b->fs->Allocate(lane, large, 0, 0, uint64_t{28} << 20).code(), 0); });
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 8U);
  b->Close(large);
}

TEST_F(FirstWriteTest, TheMountEnds_ItIsThere) {
  a->Close(Post("f", "contents"));
  std::thread ends([this] { a.reset(); });
  std::this_thread::sleep_for(milliseconds(50));
  Deliver();
  ends.join();
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 8U);
}

TEST_F(FirstWriteInTime, TheClientDoesNotAnswer_OthersGoOn_AndItIsToldWhatItLost) {
  OpenFile* const file = Post("f", "contents");
  volume.tlib().Mute(volume.tlib().last_session() - 1);
  const auto began = steady_clock::now();
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 0U);
  EXPECT_GE(steady_clock::now() - began, kImpatient.lease) << "it might have come back";
  // It comes back now, too late.
  EXPECT_NE(a->fs->Sync(*a->lane, file, false).code(), 0);
  EXPECT_EQ(SizeIn(*b, *b->lane, "f"), 0U) << "what others have seen stays so";
  a->Close(file);
}

namespace {

// A client that answers what the test wants, and whose session ends when it is expelled.
class OneClient final : public Newborns::Sessions {
 public:
  Answer AskFirstWrite(uint64_t, uint64_t, const Newborns::Asker&) override {
    ++asked;
    std::this_thread::sleep_for(delay);
    return answer;
  }
  void ExpelForFirstWrite(uint64_t session, const Newborns::Asker& asker) override {
    ++expelled;
    own_expelled = own_expelled || session == asker.session;
    if (session != asker.session) {
      newborns->SessionClosed(session, true);
    }
  }
  std::atomic<Answer> answer{Answer::kForgone};
  milliseconds delay{0};
  std::atomic<int> asked{0};
  std::atomic<int> expelled{0};
  std::atomic<bool> own_expelled{false};  // begun, by one of its own requests
  Newborns* newborns = nullptr;
};

class NewbornsTest : public testing::Test {
 protected:
  NewbornsTest() : newborns(client, milliseconds(100), milliseconds(300)) { client.newborns = &newborns; }
  // In a task of a server, as it has to be.
  int Settle(uint64_t ino, const Newborns::Asker& asker = {}) {
    return server.RunInCoroutine([&] { return newborns.Settle(ino, asker); }).code();
  }
  MemoryServer server{1};
  OneClient client;
  Newborns newborns;
};

constexpr uint64_t kIno = 5;
constexpr uint64_t kSession = 7;
constexpr uint64_t kClient = 9;

}  // namespace

TEST_F(NewbornsTest, AClientThatPostsNothing_IsAskedOnce) {
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  Settle(kIno);
  Settle(kIno);
  EXPECT_EQ(client.asked, 1);
  EXPECT_FALSE(newborns.Has(kIno));
  EXPECT_FALSE(newborns.Arrived(kIno, kSession, kClient)) << "others have looked";
}

TEST_F(NewbornsTest, WhatDoesNotComeInTime_ExpelsItsSession) {
  client.answer = Newborns::Sessions::Answer::kPosted;
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  const auto began = steady_clock::now();
  Settle(kIno);
  EXPECT_EQ(client.expelled, 1);
  EXPECT_GE(steady_clock::now() - began, milliseconds(400)) << "to come, and to come back";
  EXPECT_FALSE(newborns.Arrived(kIno, kSession + 1, kClient)) << "too late";
  newborns.ClientSettled(kClient, kSession + 1);
  EXPECT_FALSE(newborns.any());
}

TEST_F(NewbornsTest, WhoWaitsForItsOwn_GivesUpWhenItIsExpelled) {
  client.answer = Newborns::Sessions::Answer::kPosted;
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  EXPECT_EQ(Settle(kIno, {.session = kSession, .expelled = &client.own_expelled}), ECANCELED);
  EXPECT_EQ(client.expelled, 1);
  newborns.SessionClosed(kSession, true);
  EXPECT_TRUE(newborns.Arrived(kIno, kSession + 1, kClient)) << "in time: it is back at once";
}

TEST_F(NewbornsTest, AClientThatTakesLongWithAll_IsExpelled) {
  for (uint64_t ino = 1; ino <= 20; ++ino) {
    ASSERT_TRUE(newborns.Add(ino, kSession, kClient));
  }
  client.delay = milliseconds(60);  // each within its time
  EXPECT_EQ(server.RunInCoroutine([&] { return newborns.SettleAll({}); }).code(), 0);
  EXPECT_EQ(client.expelled, 1);
  EXPECT_LT(client.asked, 10);
}

TEST_F(NewbornsTest, ItsClientComesBack_AndSendsItAgain) {
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  newborns.SessionClosed(kSession, true);
  EXPECT_FALSE(newborns.Arrived(kIno, kSession + 1, kClient + 1)) << "another";
  EXPECT_TRUE(newborns.Arrived(kIno, kSession + 1, kClient));
  newborns.Done(kIno, Newborns::Outcome::kComesAgain);
  newborns.SessionClosed(kSession + 1, true);
  EXPECT_TRUE(newborns.Arrived(kIno, kSession + 2, kClient));
  newborns.Done(kIno, Newborns::Outcome::kSettled);
  EXPECT_FALSE(newborns.any());
}

TEST_F(NewbornsTest, ItsClientComesBack_AndHasNothingToSay) {
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  newborns.SessionClosed(kSession, true);
  newborns.ClientSettled(kClient, kSession + 1);
  EXPECT_FALSE(newborns.any());
}

TEST_F(NewbornsTest, ItsClientDoesNotComeBack_NobodyWaits) {
  ASSERT_TRUE(newborns.Add(kIno, kSession, kClient));
  newborns.SessionClosed(kSession, false);
  EXPECT_FALSE(newborns.any());
}

TEST_F(NewbornsTest, SoManyAtMost) {
  for (uint64_t i = 0; i < Newborns::kMost; ++i) {
    ASSERT_TRUE(newborns.Add(i + 1, kSession, kClient));
  }
  EXPECT_FALSE(newborns.Add(Newborns::kMost + 1, kSession, kClient));
}

TEST(FirstWritesOfAClient, AskedBeforeTheReplyIsThere_NoneIsPosted) {
  FirstWrites writes;
  const uint64_t begun = writes.BeginMaking();
  EXPECT_FALSE(writes.Asked(kIno));
  writes.Made(kIno, begun, 1);
  EXPECT_FALSE(writes.MayPost(kIno, 1));
}

TEST(FirstWritesOfAClient, AfterAnotherSessionHasBegun_NoneIsPosted) {
  FirstWrites writes;
  writes.Made(kIno, writes.BeginMaking(), 1);
  EXPECT_TRUE(writes.MayPost(kIno, 1));
  EXPECT_FALSE(writes.MayPost(kIno, 2));
  writes.BeginGeneration();
  EXPECT_FALSE(writes.MayPost(kIno, 1));
}

TEST(FirstWritesOfAClient, WhatIsBeingSentAgainCannotBeWithdrawn) {
  const auto cache = std::make_shared<client::InodeCache>();
  FirstWrites writes;
  writes.Made(kIno, writes.BeginMaking(), 1);
  ASSERT_TRUE(writes.Take(kIno, 1, {.sequence = 3, .slot = 1}, std::as_bytes(std::span("x", 1)), cache));
  EXPECT_TRUE(writes.Asked(kIno));
  ASSERT_EQ(writes.BeginResending().size(), 1U);
  EXPECT_FALSE(writes.Withdraw(kIno, 3));
  writes.Resent(kIno, 3, Status::Error(ENOTCONN, "lost again"));
  EXPECT_EQ(writes.BeginResending().size(), 1U);
  writes.Resent(kIno, 3, Status::Ok());
  EXPECT_FALSE(writes.any());
}

TEST(FirstWritesOfAClient, WhatIsWithdrawn_IsForgone) {
  const auto cache = std::make_shared<client::InodeCache>();
  FirstWrites writes;
  writes.Made(kIno, writes.BeginMaking(), 1);
  ASSERT_TRUE(writes.Take(kIno, 1, {.sequence = 3, .slot = 1}, std::as_bytes(std::span("x", 1)), cache));
  EXPECT_TRUE(writes.Asked(kIno)) << "the server waits for it";
  EXPECT_TRUE(writes.Withdraw(kIno, 3));
  EXPECT_EQ(writes.Forgo(kIno), fs::FirstWrite::kForgone) << "and has to be told";
}

}  // namespace termfs::fs
