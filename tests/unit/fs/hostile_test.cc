// SPDX-License-Identifier: Apache-2.0
//
// A client that says anything: well-formed requests with absurd contents, mutated ones, plain noise. The server answers
// each with an error or does what was asked, goes on with others, and the namespace stays sound.
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <limits>

#include "base/random.h"
#include "driver/softnic/softnic.h"
#include "fs/lock_ranges.h"
#include "fs/proto/codec.h"
#include "fs/proto/data.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/fs/real_volume.h"
#include "tlib/client/session.h"

namespace termfs::fs {
namespace {

using Bytes = std::vector<std::byte>;

class Nonsense {
 public:
  explicit Nonsense(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t bound) { return random_.Below(bound); }

  uint64_t Number() {
    static constexpr std::array<uint64_t, 14> kNumbers = {
        0,       1,          2,          4095,      4096,       4097,      1 << 20, (1 << 24) - 1,
        1 << 24, 1ULL << 44, 1ULL << 52, INT64_MAX, 1ULL << 63, UINT64_MAX};
    return Below(8) == 0 ? random_() : kNumbers[Below(kNumbers.size())];
  }
  uint64_t Ino() { return Below(4) != 0 ? 1 + Below(12) : Number(); }
  std::string Name() {
    switch (Below(8)) {
      case 0:
        return {};
      case 1:
        return std::string(Below(400), 'n');
      case 2:
        return "..";
      case 3:
        return "a/b";
      case 4:
        return std::string("a\0b", 3);
      default:
        return std::string(1, static_cast<char>('a' + Below(6)));
    }
  }

  Bytes Body(uint16_t opcode) {
    Bytes body = WellFormed(opcode);
    for (uint64_t i = Below(3) == 0 ? 1 + Below(4) : 0; i > 0 && !body.empty(); i--) {
      body[Below(body.size())] = static_cast<std::byte>(random_());
    }
    if (Below(20) == 0) {
      body.resize(Below(300));
    }
    return body;
  }

 private:
  Bytes WellFormed(uint16_t opcode) {
    switch (opcode) {
      case kFsRead:
        return Fixed(ReadBody{.ino = Ino(), .offset = Number(), .length = Number32()});
      case kFsWrite:
        return Fixed(WriteBody{.ino = Ino(),
                               .offset = Number(),
                               .version = Below(4),
                               .length = Number32(),
                               .flags = static_cast<uint32_t>(Below(4))});
      case kFsLookup:
      case kFsUnlink:
      case kFsRemoveDirectory:
        return Table<wire::Name>([&](auto& m) { m.parent = Ino(), m.name = Name(); });
      case kFsSet:
        return Table<wire::Set>([&](auto& m) {
          m.ino = Ino(), m.what = Number32(), m.mode = Number32(), m.uid = Number32(), m.gid = Number32();
          m.size = Number(), m.atime = static_cast<int64_t>(Number()), m.mtime = static_cast<int64_t>(Number());
          m.dropped = Number();
        });
      case kFsMake:
      case kFsCreate:
      case kFsMakeUnnamed:
        return Table<wire::Make>([&](auto& m) {
          static constexpr std::array<uint32_t, 7> kTypes = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFCHR, 0, 0xf000};
          m.parent = Ino(), m.name = Name(), m.mode = kTypes[Below(7)] | 0600, m.rdev = Number32();
          m.flags = static_cast<int>(Number32());
        });
      case kFsLink:
        return Table<wire::Link>([&](auto& m) { m.ino = Ino(), m.parent = Ino(), m.name = Name(); });
      case kFsRename:
        return Table<wire::Rename>([&](auto& m) {
          m.parent = Ino(), m.name = Name(), m.new_parent = Ino(), m.new_name = Name(), m.flags = Number32();
        });
      case kFsReadDirectory:
        return Table<wire::ReadDirectory>(
            [&](auto& m) { m.ino = Ino(), m.cursor = Number(), m.max_bytes = Number32(), m.plus = Below(2) != 0; });
      case kFsOpen:
        return Table<wire::Open>(
            [&](auto& m) { m.ino = Ino(), m.flags = static_cast<int>(Number32()), m.dropped = Number(); });
      case kFsRelease:
        return Table<wire::Release>([&](auto& m) {
          m.ino = Ino(), m.dropped = Number();
          m.record_owners.assign(Below(4) == 0 ? Below(400) : Below(3), Number());
          m.flock_owners.assign(Below(3), Below(4));
        });
      case kFsLock:
      case kFsTestLock:
        return Table<wire::Lock>([&](auto& m) { FillLock(m); });
      case kFsCancelLock:
        return Table<wire::Ticket>([&](auto& m) { m.ticket = Below(2) != 0 ? Below(20) : Number(); });
      case kFsReclaim:
        return Table<wire::Reclaim>([&](auto& m) {
          for (uint64_t i = Below(30); i > 0; i--) {
            m.locks.push_back(std::make_unique<wire::LockT>());
            FillLock(*m.locks.back());
          }
          m.last = Below(2) != 0;
        });
      case kFsSync:
        return Table<wire::Sync>([&](auto& m) { m.ino = Ino(), m.data_only = Below(2) != 0; });
      case kFsSeek:
        return Table<wire::Seek>(
            [&](auto& m) { m.ino = Ino(), m.offset = Number(), m.whence = static_cast<int>(Below(8)); });
      case kFsAllocate:
        return Table<wire::Allocate>([&](auto& m) {
          m.ino = Ino(), m.mode = static_cast<int>(Below(130)), m.offset = Number(), m.length = Number();
          m.dropped = Number();
        });
      case kFsCopy:
        return Table<wire::Copy>([&](auto& m) {
          m.ino = Ino(), m.offset = Number(), m.target = Ino(), m.target_offset = Number(), m.length = Number();
          m.clears_privileges = Below(2) != 0, m.dropped = Number();
        });
      case kFsSetXattr:
      case kFsGetXattr:
      case kFsRemoveXattr:
        return Table<wire::Xattr>([&](auto& m) {
          m.ino = Ino(), m.name = Below(2) != 0 ? "user." + Name() : Name(), m.flags = static_cast<int>(Below(5));
        });
      case kFsInvalidated:
        return Table<wire::Ticket>([&](auto& m) { m.ticket = Number(); });
      default:
        return Table<wire::Inode>([&](auto& m) { m.ino = Ino(); });
    }
  }

  void FillLock(wire::LockT& m) {
    m.ino = Ino(), m.flock = Below(3) == 0, m.owner = Below(4), m.type = static_cast<uint8_t>(Below(4));
    m.start = Below(2) != 0 ? Below(9) : Number(), m.end = Below(2) != 0 ? kLastLockByte : Number();
    m.pid = Number32(), m.ticket = Below(2) != 0 ? Below(20) : Number();
  }
  template <typename Message, typename Fill>
  Bytes Table(const Fill& fill) {
    typename Message::NativeTableType message;
    fill(message);
    return Encode<Message>(message);
  }
  template <typename Message>
  Bytes Fixed(const Message& message) {
    const auto bytes = AsBytes(message);
    return {bytes.begin(), bytes.end()};
  }
  uint32_t Number32() { return static_cast<uint32_t>(Below(3) == 0 ? Number() : Below(70000)); }

  Random random_;
};

// Answers what it is called for, and does nothing of it: else it would be expelled.
class Yes final : public tlib::client::CallbackHandler {
 public:
  Result<Bytes> HandleCallback(uint16_t, std::span<const std::byte>) override { return Bytes(); }
  void SessionLost(const Status&) override {}
};

// Sends `count` requests; every one is answered.
void Attack(const std::string& directory, uint64_t seed, int count) {
  auto nic = driver::CreateSoftNic();
  ASSERT_TRUE(nic.ok());
  Yes handler;
  auto session = tlib::client::Session::Connect(**nic, directory, {}, &handler);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  auto channel = (*session)->OpenChannel({});
  ASSERT_TRUE(channel.ok());
  Nonsense nonsense(seed);
  for (int i = 0; i < count; i++) {
    const bool known = nonsense.Below(20) != 0;
    const auto opcode = static_cast<uint16_t>(known ? kFsRead + nonsense.Below(kFsEnd - kFsRead) : nonsense.Number());
    const Bytes body = nonsense.Body(opcode);
    const auto buffer = (*channel)->buffer();
    const auto bulk = [&] { return buffer.first(nonsense.Below(3) == 0 ? 0 : nonsense.Below(buffer.size() + 1)); };
    const auto reply = (*channel)->Call(
        {.opcode = std::max<uint16_t>(opcode, tlib::kFirstServiceOpcode), .body = body, .in = bulk(), .out = bulk()});
    ASSERT_NE(reply.status().code(), ETIMEDOUT) << "seed " << seed << ", request " << i << ", opcode " << opcode;
    ASSERT_NE(reply.status().code(), ENOTCONN) << "seed " << seed << ", request " << i << ", opcode " << opcode;
  }
}

TEST(HostileClient, AnyRequestIsAnsweredAndTheVolumeStaysSound) {
  RealVolume volume(64 << 20, 0.5);
  {
    Mount bystander(volume);
    for (const char* name : {"a", "b", "c"}) {
      bystander.Close(bystander.Create(name));
    }
    for (uint64_t seed = 1; seed <= 6; seed++) {
      Attack(volume.directory(), seed, 500);
      const std::string name = "bystander" + std::to_string(seed);
      client::OpenFile* const file = bystander.Create(name);
      ASSERT_NE(file, nullptr);
      EXPECT_TRUE(bystander.Write(file, 0, "served").ok());
      EXPECT_EQ(bystander.Read(file, 0, 6), "served");
      bystander.Close(file);
      EXPECT_TRUE(bystander.Remove(name).ok());
    }
  }
  EXPECT_EQ(volume.Check(), std::vector<std::string>());
}

}  // namespace
}  // namespace termfs::fs
