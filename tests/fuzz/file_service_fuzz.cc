// SPDX-License-Identifier: Apache-2.0
//
// A live file service, in memory, with two sessions that ask it for anything. The first byte chooses: either the
// requests are any bytes at all, of which each is answered; or they are well-formed, about files of one directory,
// while a model knows what is to come back. Afterwards the namespace is sound.
//
// The input is a row of requests. Of any bytes: the opcode and session, how many bulk bytes go along, the length of the
// body, the body. Of the model: what to do and in which session, two names, an offset of two bytes, a length.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/proto/data.h"
#include "fs/proto/opcodes.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {
namespace {

using Bytes = std::vector<std::byte>;
using Input = std::span<const uint8_t>;

constexpr uint64_t kCapacity = uint64_t{4} << 20;
constexpr size_t kBulk = size_t{64} << 10;
constexpr std::array<const char*, 4> kNames = {"a", "b", "c", "d"};

constexpr server::CoherenceTimeouts kShort = {.revoke = std::chrono::milliseconds(50),
                                              .invalidate = std::chrono::milliseconds(50),
                                              .expel = std::chrono::milliseconds(500),
                                              .recall = std::chrono::milliseconds(50),
                                              .lease = std::chrono::milliseconds(50),
                                              .drift = std::chrono::milliseconds(5)};

// Answers what it is called for.
class Yes final : public tlib::client::CallbackHandler {
 public:
  Result<Bytes> HandleCallback(uint16_t, std::span<const std::byte>) override { return Bytes(); }
  void SessionLost(const Status&) override {}
};

class Client {
 public:
  explicit Client(MemoryVolume& volume) {
    session_ = volume.tlib().Connect(&handler_).value();
    channel_ = session_->OpenChannel({.buffer_bytes = 2 * kBulk}).value();
  }

  std::span<std::byte> in() { return channel_->buffer().first(kBulk); }
  std::span<std::byte> out() { return channel_->buffer().subspan(kBulk, kBulk); }
  bool lost() const { return session_->lost(); }

  Result<tlib::client::CallReply> Ask(uint16_t opcode, std::span<const std::byte> body, size_t in_bytes = 0,
                                      size_t out_bytes = 0) {
    return channel_->Call({.opcode = opcode, .body = body, .in = in().first(in_bytes), .out = out().first(out_bytes)});
  }
  template <typename Reply, typename Table>
  Result<typename Reply::NativeTableType> AskFor(uint16_t opcode, const typename Table::NativeTableType& body,
                                                 size_t out_bytes = 0) {
    ASSIGN_OR_RETURN(const tlib::client::CallReply reply, Ask(opcode, Encode<Table>(body), 0, out_bytes));
    auto decoded = Decode<Reply>(reply.body);
    TERMFS_CHECK(decoded.ok());
    return decoded;
  }

 private:
  Yes handler_;
  std::unique_ptr<tlib::client::Session> session_;
  std::unique_ptr<tlib::client::Channel> channel_;
};

void TryAnything(std::array<Client, 2>& clients, Input input) {
  while (input.size() >= 3) {
    const auto opcode = static_cast<uint16_t>(kFsRead + input[0] / 2 % (kFsEnd - kFsRead + 1));
    Client& client = clients[input[0] % 2];
    const size_t bulk = size_t{input[1]} * 64;
    const size_t length = std::min<size_t>(input[2], input.size() - 3);
    const auto body = std::as_bytes(input.subspan(3, length));
    const auto reply = client.Ask(opcode, body, bulk, bulk);
    TERMFS_CHECK(reply.ok() ? reply->out_bytes <= bulk : reply.status().code() > 0);
    input = input.subspan(3 + length);
  }
}

// What is known of the directory, and asked for.
class Model {
 public:
  explicit Model(std::array<Client, 2>& clients) : clients_(clients) {}

  void Step(uint8_t what, const char* name, const char* other, uint64_t offset, uint32_t length) {
    client_ = &clients_[what >> 7];
    switch (what % 8) {
      case 0:
        return Create(name);
      case 1:
        return Unlink(name);
      case 2:
        return Rename(name, other);
      case 3:
        return Link(name, other);
      case 4:
        return Write(name, offset, length);
      case 5:
        return Truncate(name, offset);
      case 6:
        return Read(name, offset, length);
      default:
        return List();
    }
  }

  // Every file is what it was last.
  void CheckAll() {
    List();
    for (const char* const name : kNames) {
      Read(name, 0, kBulk);
    }
  }

 private:
  struct File {
    uint64_t ino = 0;
    uint32_t links = 1;
    std::string bytes;
  };

  File* Find(const char* name) {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : found->second.get();
  }
  // Space may run out, which changes nothing; anything else has to be as the model says.
  static bool Lacks(const Status& status) { return status.code() == ENOSPC || status.code() == EDQUOT; }
  static void CheckAttributes(const wire::Attributes& attributes, const File& file) {
    TERMFS_CHECK(attributes.ino() == file.ino && attributes.size() == file.bytes.size() &&
                 attributes.nlink() == file.links && S_ISREG(attributes.mode()));
  }

  void Create(const char* name) {
    wire::MakeT make;
    make.parent = kRootInode;
    make.name = name;
    make.mode = S_IFREG | 0600;
    make.flags = O_RDWR | O_EXCL;
    const auto made = client_->AskFor<wire::Opened, wire::Make>(kFsCreate, make);
    if (Find(name) != nullptr) {
      TERMFS_CHECK(made.status().code() == EEXIST);
    } else if (!made.ok()) {
      TERMFS_CHECK(Lacks(made.status()));
    } else {
      auto file = std::make_shared<File>();
      file->ino = made->attributes->ino();
      CheckAttributes(*made->attributes, *file);
      for (const auto& [known, of] : names_) {
        TERMFS_CHECK(of->ino != file->ino);
      }
      wire::OpenT open;  // both have it open as long as they live
      open.ino = file->ino;
      open.flags = O_RDWR;
      Client& other = client_ == &clients_[0] ? clients_[1] : clients_[0];
      TERMFS_CHECK(other.Ask(kFsOpen, Encode<wire::Open>(open)).ok());
      names_[name] = std::move(file);
    }
  }

  void Unlink(const char* name) {
    wire::NameT body;
    body.parent = kRootInode;
    body.name = name;
    const auto removed = client_->Ask(kFsUnlink, Encode<wire::Name>(body));
    File* const file = Find(name);
    TERMFS_CHECK(file == nullptr ? removed.status().code() == ENOENT : removed.ok() || Lacks(removed.status()));
    if (removed.ok()) {
      file->links--;
      names_.erase(name);
    }
  }

  void Rename(const char* from, const char* to) {
    wire::RenameT body;
    body.parent = body.new_parent = kRootInode;
    body.name = from;
    body.new_name = to;
    const auto renamed = client_->Ask(kFsRename, Encode<wire::Rename>(body));
    File* const file = Find(from);
    TERMFS_CHECK(file == nullptr ? renamed.status().code() == ENOENT : renamed.ok() || Lacks(renamed.status()));
    File* const replaced = Find(to);
    if (renamed.ok() && file != replaced) {  // two names of one file both stay
      if (replaced != nullptr) {
        replaced->links--;
      }
      names_[to] = names_[from];
      names_.erase(from);
    }
  }

  void Link(const char* name, const char* other) {
    File* const file = Find(name);
    if (file == nullptr) {
      return;
    }
    wire::LinkT body;
    body.ino = file->ino;
    body.parent = kRootInode;
    body.name = other;
    const auto linked = client_->Ask(kFsLink, Encode<wire::Link>(body));
    if (Find(other) != nullptr) {
      TERMFS_CHECK(linked.status().code() == EEXIST);
    } else if (linked.ok()) {
      file->links++;
      names_[other] = names_[name];
    } else {
      TERMFS_CHECK(Lacks(linked.status()));
    }
  }

  void Write(const char* name, uint64_t offset, uint32_t length) {
    File* const file = Find(name);
    if (file == nullptr || length == 0) {
      return;
    }
    const WriteBody body{.ino = file->ino, .offset = offset, .length = length};
    fill_ = static_cast<char>(fill_ % 120 + 1);
    std::fill_n(client_->in().begin(), length, static_cast<std::byte>(fill_));
    const auto written = client_->Ask(kFsWrite, AsBytes(body), length);
    if (!written.ok()) {
      TERMFS_CHECK(Lacks(written.status()));
      return;
    }
    const auto reply = DecodePrefix<WriteReply>(written->body);
    TERMFS_CHECK(reply.ok() && DecodeMap(reply->second, kCapacity >> kPageBits).ok());
    file->bytes.resize(std::max<size_t>(file->bytes.size(), offset + length));
    std::fill_n(file->bytes.begin() + static_cast<ptrdiff_t>(offset), length, fill_);
    TERMFS_CHECK(reply->first.offset == offset && reply->first.size == file->bytes.size());
  }

  void Truncate(const char* name, uint64_t size) {
    File* const file = Find(name);
    if (file == nullptr) {
      return;
    }
    wire::SetT body;
    body.ino = file->ino;
    body.what = static_cast<uint32_t>(wire::SetField::Size);
    body.size = size;
    const auto set = client_->AskFor<wire::AttributesReply, wire::Set>(kFsSet, body);
    if (!set.ok()) {
      TERMFS_CHECK(Lacks(set.status()));
      return;
    }
    file->bytes.resize(size);
    CheckAttributes(*set->attributes, *file);
  }

  void Read(const char* name, uint64_t offset, uint32_t length) {
    wire::NameT lookup;
    lookup.parent = kRootInode;
    lookup.name = name;
    const auto found = client_->AskFor<wire::AttributesReply, wire::Name>(kFsLookup, lookup);
    const File* const file = Find(name);
    if (file == nullptr) {
      // An absent name is granted by a reply without attributes.
      TERMFS_CHECK(found.ok() ? found->attributes == nullptr : found.status().code() == ENOENT);
      return;
    }
    TERMFS_CHECK(found.ok() && found->attributes != nullptr);
    CheckAttributes(*found->attributes, *file);
    const ReadBody body{.ino = file->ino, .offset = offset, .length = length};
    const auto read = client_->Ask(kFsRead, AsBytes(body), 0, length);
    TERMFS_CHECK(read.ok());
    const auto reply = DecodePrefix<ReadReply>(read->body);
    TERMFS_CHECK(reply.ok() && DecodeMap(reply->second, kCapacity >> kPageBits).ok());
    const size_t there = file->bytes.size() > offset ? file->bytes.size() - offset : 0;
    TERMFS_CHECK(reply->first.length == std::min<size_t>(there, length));
    TERMFS_CHECK(std::memcmp(client_->out().data(), file->bytes.data() + std::min<size_t>(offset, file->bytes.size()),
                             reply->first.length) == 0);
  }

  void List() {
    wire::ReadDirectoryT body;
    body.ino = kRootInode;
    body.max_bytes = 4096;
    body.plus = true;
    const auto listed = client_->Ask(kFsReadDirectory, Encode<wire::ReadDirectory>(body), 0, kBulk);
    TERMFS_CHECK(listed.ok());
    const auto directory = Decode<wire::Directory>(client_->out().first(listed->out_bytes));
    TERMFS_CHECK(directory.ok());
    std::set<std::string> seen;
    for (const auto& entry : directory->entries) {
      if (entry->name == "." || entry->name == "..") {
        continue;
      }
      const File* const file = Find(entry->name.c_str());
      TERMFS_CHECK(file != nullptr && entry->ino == file->ino && seen.insert(entry->name).second);
    }
    TERMFS_CHECK(seen.size() == names_.size());
  }

  std::array<Client, 2>& clients_;
  Client* client_ = nullptr;
  std::map<std::string, std::shared_ptr<File>, std::less<>> names_;
  char fill_ = 0;
};

void TryModel(std::array<Client, 2>& clients, Input input) {
  Model model(clients);
  for (; input.size() >= 6; input = input.subspan(6)) {
    const uint64_t offset = input[3] | uint64_t{input[4]} << 8;
    model.Step(input[0], kNames[input[1] % kNames.size()], kNames[input[2] % kNames.size()], offset,
               uint32_t{input[5]} * 37);
  }
  model.Step(7, "", "", 0, 0);
  model.CheckAll();
}

void Try(Input input) {
  MemoryVolume volume(kCapacity, kShort);
  {
    std::array<Client, 2> clients = {Client(volume), Client(volume)};
    input[0] % 2 == 0 ? TryAnything(clients, input.subspan(1)) : TryModel(clients, input.subspan(1));
    Client witness(volume);
    wire::InodeT root;
    root.ino = kRootInode;
    TERMFS_CHECK((witness.AskFor<wire::AttributesReply, wire::Inode>(kFsGetAttributes, root).ok()));
  }
  TERMFS_CHECK(volume.Check().empty());
}

}  // namespace
}  // namespace termfs::fs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool quiet = termfs::StartLog(termfs::LogLevel::kError).ok();
  if (size > 0) {
    termfs::fs::Try({data, size});
  }
  return 0;
}
