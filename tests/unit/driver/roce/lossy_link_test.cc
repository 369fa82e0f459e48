// SPDX-License-Identifier: Apache-2.0
//
// Requests of every kind, both ways at once, over links of every quality: each is carried out once and in order, and
// every byte is right.
#include "tests/unit/driver/roce/simulated_link.h"

namespace termfs::driver::roce {
namespace {

constexpr uint64_t kCounter = 0;  // where atomics go
constexpr size_t kMaxLength = 3 * kPageSize + 1000;

// What one end asks of the other one.
class Load {
 public:
  Load(End& from, End& to, uint64_t seed) : from_(from), to_(to), random_(seed), expected_(to.memory) {}

  void PostSome(int requests) {
    for (int i = 0; i < requests; i++) {
      PostOne();
    }
  }
  void PostReceives(size_t count) {
    for (size_t i = 0; i < count; i++) {
      receives_.push_back(std::make_unique<Bytes>(kMaxLength));
      to_.responder.Post(
          {.id = receives_.size() - 1, .local = {.addr = receives_.back()->data(), .length = kMaxLength}});
    }
  }
  size_t messages() const { return messages_.size(); }
  bool Done() const { return from_.sent.size() == requests_.size(); }

  void Check() {
    ASSERT_EQ(from_.sent.size(), requests_.size());
    for (size_t i = 0; i < requests_.size(); i++) {
      ASSERT_EQ(from_.sent[i].id, i);
      ASSERT_EQ(from_.sent[i].status, WcStatus::kSuccess) << i << " " << ToString(from_.sent[i].status);
      ASSERT_EQ(*requests_[i].buffer, requests_[i].expected) << "request " << i;
    }
    ASSERT_EQ(to_.received.size(), messages_.size());
    for (size_t i = 0; i < messages_.size(); i++) {
      ASSERT_EQ(to_.received[i].id, i);
      ASSERT_EQ(to_.received[i].status, WcStatus::kSuccess);
      ASSERT_EQ(to_.received[i].byte_len, messages_[i].length) << i;
      ASSERT_EQ(to_.received[i].has_imm, messages_[i].bytes.empty() && messages_[i].imm != 0);
      ASSERT_EQ(to_.received[i].imm, messages_[i].imm);
      ASSERT_TRUE(std::equal(messages_[i].bytes.begin(), messages_[i].bytes.end(), receives_[i]->begin())) << i;
    }
    ASSERT_EQ(to_.memory, expected_);
  }

 private:
  struct Request {
    std::unique_ptr<Bytes> buffer;
    Bytes expected;
  };
  struct Message {
    Bytes bytes;
    uint32_t length = 0;
    uint32_t imm = 0;
  };

  Bytes RandomBytes(size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random_());
    }
    return bytes;
  }
  size_t Length() {
    switch (random_.Below(4)) {
      case 0:
        return random_.Below(64);
      case 1:
        return 1024 * random_.Below(8);
      default:
        return random_.Below(kMaxLength + 1);
    }
  }

  void PostOne() {
    SendWorkRequest request;
    request.id = requests_.size();
    request.rkey = kRkey;
    const uint64_t kind = random_.Below(10);
    Bytes bytes = RandomBytes(Length());
    Bytes expected = bytes;
    if (kind < 3) {
      request.opcode = Opcode::kSend;
      messages_.push_back({.bytes = bytes, .length = static_cast<uint32_t>(bytes.size()), .imm = 0});
    } else if (kind < 6) {
      request.opcode = kind == 3 ? Opcode::kRdmaWriteWithImm : Opcode::kRdmaWrite;
      request.imm = static_cast<uint32_t>(random_()) | 1;
      request.remote_offset = kPageSize + random_.Below(kMemory / 2 - kPageSize - bytes.size());
      std::copy(bytes.begin(), bytes.end(), expected_.begin() + static_cast<ptrdiff_t>(request.remote_offset));
      if (kind == 3) {
        messages_.push_back({.bytes = {}, .length = static_cast<uint32_t>(bytes.size()), .imm = request.imm});
      }
    } else if (kind < 9) {  // of what does not change: a READ that is repeated may find later writes
      request.opcode = Opcode::kRdmaRead;
      bytes.resize(random_.Below(3) == 0 ? random_.Below(20 * kPageSize) : bytes.size());
      request.remote_offset = kMemory / 2 + random_.Below(kMemory / 2 - bytes.size());
      request.remote_offset -= random_.Below(2) == 0 ? request.remote_offset % kPageSize : 0;
      expected.assign(expected_.begin() + static_cast<ptrdiff_t>(request.remote_offset),
                      expected_.begin() + static_cast<ptrdiff_t>(request.remote_offset + bytes.size()));
    } else {
      request.opcode = random_.Below(2) == 0 ? Opcode::kFetchAdd : Opcode::kCompareSwap;
      uint64_t before = 0;
      std::memcpy(&before, expected_.data() + kCounter, sizeof(before));
      request.remote_offset = kCounter;
      request.compare = random_.Below(2) == 0 ? before : before + 1;
      request.swap_or_add = random_();
      const bool swaps = request.opcode == Opcode::kCompareSwap;
      const uint64_t after =
          swaps ? (request.compare == before ? request.swap_or_add : before) : before + request.swap_or_add;
      std::memcpy(expected_.data() + kCounter, &after, sizeof(after));
      bytes.assign(sizeof(before), std::byte{0});
      expected.resize(sizeof(before));
      std::memcpy(expected.data(), &before, sizeof(before));
    }
    auto buffer = std::make_unique<Bytes>(std::move(bytes));
    request.local = {.addr = buffer->data(), .length = static_cast<uint32_t>(buffer->size())};
    requests_.push_back({std::move(buffer), std::move(expected)});
    from_.requester.Post(request);
  }

  End& from_;
  End& to_;
  Random random_;
  Bytes expected_;  // the other end's memory
  std::vector<Request> requests_;
  std::vector<Message> messages_;
  std::vector<std::unique_ptr<Bytes>> receives_;
};

void RunLoad(uint64_t seed, const LinkQuality& quality, uint32_t mtu) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " mtu " + std::to_string(mtu));
  SimulatedLink link(seed, quality, mtu);
  Random random(seed + 1000);
  for (End* end : {link.a.get(), link.b.get()}) {
    for (std::byte& byte : end->memory) {
      byte = static_cast<std::byte>(random());
    }
  }
  Load there(*link.a, *link.b, seed);
  Load back(*link.b, *link.a, seed + 1);
  size_t posted_there = 0;
  size_t posted_back = 0;
  for (int round = 0; round < 6; round++) {
    there.PostSome(8);
    back.PostSome(8);
    // In one round of two the messages have to wait for receives.
    const auto post = [&] {
      there.PostReceives(there.messages() - std::exchange(posted_there, there.messages()));
      back.PostReceives(back.messages() - std::exchange(posted_back, back.messages()));
    };
    if (round % 2 == 0) {
      post();
    } else {
      link.Run([] { return false; }, std::chrono::milliseconds(20));
      post();
    }
    ASSERT_TRUE(link.Run([&] { return there.Done() && back.Done(); }));
  }
  there.Check();
  back.Check();
}

TEST(RoceLink, CleanLink) {
  for (const uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    for (uint64_t seed = 0; seed < 10; seed++) {
      RunLoad(seed, {}, mtu);
    }
  }
}

TEST(RoceLink, LossDoublingAndReordering) {
  for (const uint32_t mtu : {256U, 1024U, 4096U}) {
    for (uint64_t seed = 0; seed < 15; seed++) {
      RunLoad(seed, {.loss = 0.02}, mtu);
      RunLoad(seed, {.doubling = 0.1}, mtu);
      RunLoad(seed, {.detours = 0.05}, mtu);
      RunLoad(seed, {.loss = 0.05, .doubling = 0.05, .detours = 0.05}, mtu);
    }
  }
}

TEST(RoceLink, ABadLink) {
  for (uint64_t seed = 0; seed < 3; seed++) {
    RunLoad(seed, {.loss = 0.15, .detours = 0.1}, 4096);
  }
}

}  // namespace
}  // namespace termfs::driver::roce
