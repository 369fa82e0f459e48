// SPDX-License-Identifier: Apache-2.0
//
// Two RNICs as one: the software RNIC and a fake device, and what peers of the two meet.
#include "driver/paired/paired.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "driver/paired/key_map.h"
#include "driver/verbs/term_region.h"
#include "tests/fakes/fake_device.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

constexpr char kAddress[] = "127.0.0.1";

// A server on the paired Nic; its peers have RNICs of their own.
struct Paired {
  explicit Paired(const std::function<void(FakeDevice&)>& prepare = [](FakeDevice&) {}) {
    auto own = std::make_unique<FakeDevice>();
    device = own.get();
    prepare(*own);
    nic = CreatePairedNic(CreateSoftNic().value(), std::move(own)).value();
    domain = nic->CreateProtectionDomain().value();
    queue = nic->CreateCompletionQueue(1024).value();
    memory = std::make_unique<std::byte[]>(1 << 16);
    region = domain->RegisterMemory(memory.get(), 1 << 16, Access::kLocalWrite).value();
  }

  std::unique_ptr<QueuePair> Connect(Side& peer) {
    QueuePairOptions options = Patient();
    options.send_cq = options.recv_cq = queue.get();
    options.network = peer.options.network;
    auto pair = domain->CreateQueuePair(options).value();
    driver::Connect(*pair, *peer.pair);
    return pair;
  }
  SendWorkRequest Request(Opcode opcode, uint32_t length, RKey rkey = {}) {
    SendWorkRequest request;
    request.opcode = opcode;
    request.local = {memory.get(), length, region->lkey()};
    request.rkey = rkey;
    return request;
  }
  // The next completion, by sleeping on the descriptor.
  std::optional<WorkCompletion> Sleep(int milliseconds = 60'000) {
    WorkCompletion completion;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (std::chrono::steady_clock::now() < deadline) {
      if (queue->Arm()) {
        pollfd waiting{queue->fd(), POLLIN, 0};
        EXPECT_TRUE(poll(&waiting, 1, milliseconds) == 1 || milliseconds < 60'000) << "nobody woke it";
      }
      queue->Disarm();
      if (queue->Poll({&completion, 1}) == 1) {
        return completion;
      }
    }
    return std::nullopt;
  }

  FakeDevice* device;
  std::unique_ptr<Nic> nic;
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<std::byte[]> memory;
  std::unique_ptr<MemoryRegion> region;
};

std::unique_ptr<Side> PeerAt(const char* path) {
  SetPath(path);
  auto side = std::make_unique<Side>();
  SetPath("");
  return side;
}

TEST(Paired, PeersOfBothRnics_AreSentTheSameMemoryByOneKey) {
  Paired server;
  std::memcpy(server.memory.get(), "to both of you", 14);
  for (const char* const path : {"", kAddress}) {
    const auto peer = PeerAt(path);
    const auto pair = server.Connect(*peer);
    const SendWorkRequest write = server.Request(Opcode::kRdmaWrite, 14, peer->region->rkey());
    ASSERT_TRUE(pair->PostSend({&write, 1}).ok());
    const auto completion = server.Sleep();
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->status, WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(peer->memory->data(), "to both of you", 14), 0);
  }
}

TEST(Paired, Numbers_OfTheTwoRnics_NeverMeet) {
  Paired server;
  const auto here = PeerAt("");
  const auto there = PeerAt(kAddress);
  EXPECT_EQ(server.Connect(*here)->number() & kDeviceMark, 0U);
  EXPECT_EQ(server.Connect(*there)->number() & kDeviceMark, kDeviceMark);
}

TEST(Paired, CompletionQueue_Armed_IsWokenByEither) {
  Paired server;
  const auto here = PeerAt("");
  const auto there = PeerAt(kAddress);
  const auto near = server.Connect(*here);
  const auto far = server.Connect(*there);
  for (int round = 0; round < 3; round++) {
    for (Side* const peer : {here.get(), there.get()}) {
      QueuePair& pair = peer == here.get() ? *near : *far;
      const RecvWorkRequest receive{9, {server.memory.get(), 64, server.region->lkey()}};
      ASSERT_TRUE(pair.PostRecv({&receive, 1}).ok());
      EXPECT_FALSE(server.Sleep(30).has_value());
      ASSERT_TRUE(peer->Send(peer->Request(Opcode::kSend, 0, 14, {})).ok());
      const auto completion = server.Sleep();
      ASSERT_TRUE(completion.has_value());
      EXPECT_EQ(completion->qp_num, pair.number());
      EXPECT_EQ(completion->byte_len, 14U);
      EXPECT_EQ(peer->WaitStatus(), WcStatus::kSuccess);
    }
  }
}

TEST(Paired, CompletionQueue_LastPeerOverTheNetworkGoneWhileArmed_SleepsOn) {
  Paired server;
  const auto there = PeerAt(kAddress);
  auto far = server.Connect(*there);
  const RecvWorkRequest receive{9, {server.memory.get(), 64, server.region->lkey()}};
  ASSERT_TRUE(far->PostRecv({&receive, 1}).ok());
  ASSERT_TRUE(server.queue->Arm());
  ASSERT_TRUE(there->Send(there->Request(Opcode::kSend, 0, 14, {})).ok());
  pollfd waiting{server.queue->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 60'000), 1);
  far.reset();
  server.queue->Disarm();
  ASSERT_TRUE(server.queue->Arm());
  EXPECT_EQ(poll(&waiting, 1, 30), 0);
  server.queue->Disarm();
}

std::unique_ptr<TermRegion> Register(Paired& server, uint64_t pages, uint64_t max_pages) {
  TermRegionOptions options;
  options.pages = pages;
  options.max_pages = max_pages;
  return server.domain->RegisterTermRegion(options).value();
}

TEST(Paired, Frames_AreSourcesForPeersOverTheNetwork_WhileCommitted) {
  Paired server;
  const auto there = PeerAt(kAddress);
  const auto far = server.Connect(*there);
  const auto term = Register(server, 4096, 4096);
  const int before = server.device->registered;
  ASSERT_TRUE(term->Commit({1024}, 1024).ok());
  EXPECT_EQ(server.device->registered, before + 1);
  std::memcpy(term->frame({1030}), "out of a frame", 14);
  SendWorkRequest write = server.Request(Opcode::kRdmaWrite, 14, there->region->rkey());
  write.local = {term->frame({1030}), 14, term->frames_lkey()};
  ASSERT_TRUE(far->PostSend({&write, 1}).ok());
  const auto written = server.Sleep();
  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(written->status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(there->memory->data(), "out of a frame", 14), 0);
  term->Decommit({0}, 4096);
  EXPECT_EQ(server.device->registered, before);
  ASSERT_TRUE(far->PostSend({&write, 1}).ok());
  const auto refused = server.Sleep();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, WcStatus::kLocProtErr);
}

TEST(Paired, Frames_DeviceRefusesThem_AreNotCommitted) {
  Paired server;
  const auto term = Register(server, 4096, 4096);
  server.device->registrations_left = 0;
  EXPECT_EQ(term->Commit({0}, 1024).code(), ENOMEM);
  server.device->registrations_left = 1;
  EXPECT_TRUE(term->Commit({0}, 1024).ok());
}

TEST(Paired, DeviceWithoutTermRegions_ItsPeersValidate_AndSoItSays) {
  Paired server;
  EXPECT_FALSE(server.domain->SparseFrames(RegionKind::kTerm));
  const auto term = Register(server, 64, 64);
  EXPECT_EQ(term->keys(true).way, ReadWay::kValidated);
  EXPECT_EQ(term->keys(false).way, ReadWay::kTranslated);
  EXPECT_EQ(term->keys(false).region.value, term->rkey().value);
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kTerm, true),
            "verbs fake0, validated READs: the driver of fake0 has no TeRM memory regions");
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kPin, true), "verbs fake0, validated READs");
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kOdp, true),
            "verbs fake0, RPC only: a region of kind odp is READ on this host only");
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kRpcTiering, true), "verbs fake0");
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kTerm, false), server.nic->transport(false));
}

// The bytes that the device's key of a region gives peers access to.
std::span<std::byte> Behind(const Paired& server, RKey key) {
  const auto found = server.device->readable.find(key.value);
  EXPECT_NE(found, server.device->readable.end());
  return found != server.device->readable.end() ? found->second : std::span<std::byte>();
}

TEST(DenseRegion, PeersThatValidate_FindEntriesAndFramesByItsKeys) {
  Paired server;
  const auto term = Register(server, 4000, 4000);
  ASSERT_TRUE(term->Commit({1024}, 1024).ok() && term->Commit({3072}, 928).ok());
  std::memcpy(term->frame({1030}), "out of a frame", 14);
  term->Publish({7}, {1030});
  const RegionKeys keys = term->keys(true);
  const std::span<std::byte> table = Behind(server, keys.table);
  ASSERT_GE(table.size(), keys.entries_offset + 4000 * sizeof(uint64_t));
  uint64_t entry = 0;
  std::memcpy(&entry, table.data() + keys.entries_offset + 7 * sizeof(entry), sizeof(entry));
  EXPECT_EQ(FrameOf(entry), 1030U);
  ASSERT_EQ(keys.chunk_frames, 1024U);
  ASSERT_EQ(keys.frame_chunks.size(), 4U);
  EXPECT_EQ(keys.frame_chunks[0], RKey{});
  EXPECT_EQ(keys.frame_chunks[2], RKey{});
  const std::span<std::byte> chunk = Behind(server, keys.frame_chunks[1]);
  EXPECT_EQ(chunk.size(), 1024 * kPageSize);
  EXPECT_EQ(std::memcmp(chunk.data() + size_t{1030 - 1024} * kPageSize, "out of a frame", 14), 0);
  EXPECT_EQ(Behind(server, keys.frame_chunks[3]).size(), 928 * kPageSize);
  EXPECT_EQ(server.device->readable.size(), 3U) << "the bitmap, or what is not committed";
  EXPECT_EQ(term->Commit({0}, 1000).code(), EINVAL) << "a part of a chunk";
}

TEST(DenseRegion, RevokedChunk_IsNotNamed_ButGoodUntilItIsDecommitted) {
  Paired server;
  const auto term = Register(server, 4096, 4096);
  ASSERT_TRUE(term->Commit({0}, 4096).ok());
  const RegionKeys before = term->keys(true);
  term->Revoke({1024}, 2048);
  const RegionKeys revoked = term->keys(true);
  EXPECT_GT(revoked.chunk_epoch, before.chunk_epoch);
  EXPECT_EQ(revoked.frame_chunks, (std::vector<RKey>{before.frame_chunks[0], {}, {}, before.frame_chunks[3]}));
  EXPECT_EQ(Behind(server, before.frame_chunks[1]).size(), 1024 * kPageSize);
  term->Restore({2048}, 1024);
  EXPECT_EQ(term->keys(true).frame_chunks[2], before.frame_chunks[2]);
  EXPECT_EQ(term->keys(true).frame_chunks[1], RKey{});
  term->Decommit({1024}, 1024);
  EXPECT_FALSE(server.device->readable.contains(before.frame_chunks[1].value));
  EXPECT_TRUE(server.device->readable.contains(before.frame_chunks[2].value));
  term->Restore({1024}, 1024);  // of none nothing happens
  EXPECT_EQ(term->keys(true).frame_chunks[1], RKey{});
}

// What it may grow to costs no memory of the table's, which the device would pin.
TEST(DenseRegion, Grows_WithAKeyForTheLongerTable_AndTheFormerOneIsGood) {
  Paired server;
  const auto term = Register(server, 1000, 1'000'000);
  const RKey before = term->keys(true).table;
  EXPECT_EQ(Behind(server, before).size(), 2 * kPageSize);
  ASSERT_TRUE(term->Resize(1024).ok());
  EXPECT_EQ(term->keys(true).table, before) << "those pages were there already";
  server.device->registrations_left = 0;
  EXPECT_EQ(term->MakeRoom(5000).code(), ENOMEM);
  EXPECT_EQ(term->Resize(5000).code(), ENOMEM);
  EXPECT_EQ(term->pages(), 1024U);
  server.device->registrations_left = 1;
  ASSERT_TRUE(term->MakeRoom(5000).ok() && term->Resize(5000).ok());
  const RegionKeys grown = term->keys(true);
  EXPECT_NE(grown.table, before);
  EXPECT_GE(Behind(server, grown.table).size(), grown.entries_offset + 5000 * sizeof(uint64_t));
  EXPECT_EQ(Behind(server, before).data(), Behind(server, grown.table).data());
  ASSERT_TRUE(term->Resize(1000).ok());
  EXPECT_EQ(term->keys(true).table, grown.table);
}

TEST(DenseRegion, OfAKindThatIsNotRead_GivesPeersNothing) {
  Paired server;
  TermRegionOptions options;
  options.kind = RegionKind::kRpcTiering;
  options.pages = options.max_pages = 1024;
  const auto term = server.domain->RegisterTermRegion(options).value();
  ASSERT_TRUE(term->Commit({0}, 1024).ok());
  EXPECT_EQ(term->keys(true).way, ReadWay::kRpcOnly);
  EXPECT_EQ(term->keys(true).table, RKey{});
  EXPECT_TRUE(server.device->readable.empty());
}

TEST(DenseRegion, DeviceRefusesTheTakenOverFrames_TheyKeepTheirBytes) {
  char folder[] = "/dev/shm/termfs-paired-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  TermRegionOptions options;
  options.pages = options.max_pages = 1024;
  options.directory = folder;
  for (const bool resume : {false, true}) {
    Paired server;
    options.resume = resume;
    const auto term = server.domain->RegisterTermRegion(options).value();
    if (!resume) {
      ASSERT_TRUE(term->Commit({0}, 1024).ok());
      std::memcpy(term->frame({5}), "not on the SSD", 14);
      ASSERT_TRUE(term->Keep().ok());
      continue;
    }
    server.device->registrations_left = 0;
    EXPECT_EQ(term->Commit({0}, 1024).code(), ENOMEM);
    EXPECT_EQ(std::memcmp(term->frame({5}), "not on the SSD", 14), 0);
  }
  std::filesystem::remove_all(folder);
}

TEST(Paired, DeviceOfAnotherVersion_OrWithoutAPort_IsRefused) {
  auto device = std::make_unique<FakeDevice>();
  device->term_regions = verbs::CheckTermVersion("fake0", 99);
  const Status version = CreatePairedNic(CreateSoftNic().value(), std::move(device)).status();
  EXPECT_EQ(version.code(), EPROTO);
  EXPECT_NE(version.ToString().find("version 99"), std::string::npos);
  EXPECT_NE(version.ToString().find("version 2"), std::string::npos);
  device = std::make_unique<FakeDevice>();
  device->ports = Status::Error(ENETDOWN, "port 1 of fake0 is down");
  EXPECT_EQ(CreatePairedNic(CreateSoftNic().value(), std::move(device)).status().code(), ENETDOWN);
}

TEST(KeyMap, Translate_MemoryThatIsSeveralRegionsToTheDevice_InParts) {
  paired::KeyMap map;
  std::array<std::byte, 300> memory{};
  map.Add({1}, memory.data(), 100, {11});
  map.Add({1}, memory.data() + 100, 100, {12});
  map.Add({2}, memory.data(), 300, {13});
  std::array<ScatterGather, 2> parts;
  ASSERT_EQ(map.Translate({memory.data() + 90, 20, {1}}, parts), 2U);
  EXPECT_EQ(parts[0].length, 10U);
  EXPECT_EQ(parts[0].lkey.value, 11U);
  EXPECT_EQ(parts[1].addr, memory.data() + 100);
  EXPECT_EQ(parts[1].length, 10U);
  EXPECT_EQ(parts[1].lkey.value, 12U);
  EXPECT_EQ(map.Translate({memory.data() + 90, 20, {1}}, std::span(parts).first(1)), 0U);
  EXPECT_EQ(map.Translate({memory.data() + 190, 20, {1}}, parts), 0U);  // beyond the end
  EXPECT_EQ(map.Translate({memory.data() + 90, 20, {2}}, parts), 1U);
  EXPECT_EQ(map.Translate({memory.data(), 1, {3}}, parts), 0U);
  map.Remove({1}, memory.data());
  EXPECT_EQ(map.Translate({memory.data() + 90, 5, {1}}, parts), 0U);
}

// ---------------------------------------------------------------------------------------------------------------
// With TeRM memory regions.

struct Sparse : Paired {
  Sparse() : Paired([](FakeDevice& fake) { fake.term_regions = Status::Ok(); }) {
    term = Register(*this, 256, 1 << 20);
    shown = device->term_region;
  }
  // From now on there are peers over the network.
  void Meet() {
    peer = PeerAt(kAddress);
    pair = Connect(*peer);
  }
  void Publish(uint64_t page) {
    ASSERT_TRUE(term->Commit({static_cast<uint32_t>(page)}, 1).ok());
    std::memset(term->frame({static_cast<uint32_t>(page)}), 1, kPageSize);
    term->Publish({page}, {200});  // whatever the pool calls it, the page is in its own frame
  }
  bool EventuallyShown(uint64_t page) const {
    for (int i = 0; i < 1200 && !shown->Shown(page); i++) {
      usleep(50'000);
    }
    return shown->Shown(page);
  }
  int ByteOf(uint64_t page) const { return static_cast<int>(shown->mappings.shown[page << kPageBits]); }

  std::unique_ptr<TermRegion> term;
  FakeDeviceTermRegion* shown;
  std::unique_ptr<Side> peer;
  std::unique_ptr<QueuePair> pair;
};

TEST(SparseRegion, UntilThereArePeersOverTheNetwork_TheDeviceIsToldOfNothing) {
  Sparse server;
  EXPECT_TRUE(server.domain->SparseFrames(RegionKind::kTerm));
  EXPECT_FALSE(server.domain->SparseFrames(RegionKind::kPin));
  EXPECT_EQ(server.nic->RegionTransport(RegionKind::kTerm, true), "verbs fake0, TeRM memory region");
  server.Publish(3);
  server.term->BeginWrite({3});
  server.term->Publish({3}, {200});
  const RegionKeys keys = server.term->keys(true);
  EXPECT_EQ(keys.way, ReadWay::kTranslated);
  EXPECT_EQ(keys.region.value, 77U);
  usleep(100'000);
  EXPECT_EQ(server.shown->shows, 0U);
  server.Meet();
  EXPECT_TRUE(server.EventuallyShown(3));
  EXPECT_EQ(server.shown->mappings.pages, 256U);
  EXPECT_EQ(server.ByteOf(3), 1);
  EXPECT_EQ(server.shown->mappings.written, server.term->frame({0}));
}

TEST(SparseRegion, PageThatIsWrittenOrHidden_IsNotShown) {
  Sparse server;
  server.Meet();
  server.Publish(70);
  EXPECT_TRUE(server.shown->Shown(70));
  server.term->BeginWrite({70});
  EXPECT_FALSE(server.shown->Shown(70));
  EXPECT_EQ(server.shown->hides, 1U);
  server.term->Publish({70}, {70});
  EXPECT_TRUE(server.shown->Shown(70));
  server.term->Hide({70});
  EXPECT_FALSE(server.shown->Shown(70));
  server.term->Decommit({70}, 1);
  EXPECT_EQ(server.ByteOf(70), 0);  // its memory is gone
}

TEST(SparseRegion, PagesThatTheKernelTook_AreShownAgain_ButNotThoseBeingWritten) {
  Sparse server;
  server.Meet();
  const std::vector<uint64_t> pages = {1, 3, 63, 64, 200};
  server.Publish(2);
  for (const uint64_t page : pages) {
    server.Publish(page);
  }
  server.term->BeginWrite({2});
  for (const uint64_t page : pages) {
    server.shown->Take({page});
  }
  for (const uint64_t page : pages) {
    EXPECT_TRUE(server.EventuallyShown(page)) << page;
  }
  EXPECT_FALSE(server.shown->Shown(2));
  EXPECT_FALSE(server.shown->Shown(4));
}

TEST(SparseRegion, PatternIsTheDriversAndStays_SizeIsWhatIsRegistered) {
  Sparse server;
  EXPECT_EQ(server.term->pattern(), server.shown->pattern());
  EXPECT_EQ(server.term->SetPattern(Pattern{}).code(), EOPNOTSUPP);
  EXPECT_TRUE(server.term->Resize(100).ok());
  EXPECT_TRUE(server.term->Resize(256).ok());
  EXPECT_EQ(server.term->MakeRoom(257).code(), ENOTSUP);
  EXPECT_EQ(server.term->Resize(257).code(), ENOTSUP);
}

TEST(SparseRegion, Counters_AreAmongTheNics) {
  Sparse server;
  const auto values = server.nic->Metrics();
  ASSERT_EQ(values.size(), 1U);
  EXPECT_EQ(values[0].name, "device_magic_reads_total");
  EXPECT_EQ(values[0].value, 12U);
  server.term.reset();
  EXPECT_TRUE(server.nic->Metrics().empty());
}

}  // namespace
}  // namespace termfs::driver
