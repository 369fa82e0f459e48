// SPDX-License-Identifier: Apache-2.0
//
// The region against a plain byte array. Tasks share pages, but each byte has one task that writes it, so what a read
// must return is known while all of them run at once. Evictions, promotions, faults, budget changes and changes of the
// choice go on meanwhile.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>

#include "tests/unit/tlib/server_storage/region_fixture.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

enum class OpKind : uint8_t { kRead, kWrite, kWriteMagic, kZero, kFlush, kCounts, kBudget, kChoice, kReadAll, kFault };

struct Op {
  OpKind kind = OpKind::kRead;
  uint64_t at = 0;      // scaled to where it applies
  uint64_t length = 0;  // scaled to what fits
  uint8_t value = 0;
};

std::ostream& operator<<(std::ostream& out, const Op& op) {
  return out << "{" << int{static_cast<uint8_t>(op.kind)} << " " << op.at << " " << op.length << " " << int{op.value}
             << "}";
}

rc::Gen<Op> AnyOp() {
  const auto kinds = rc::gen::weightedElement<OpKind>({{12, OpKind::kRead},
                                                       {12, OpKind::kWrite},
                                                       {2, OpKind::kWriteMagic},
                                                       {2, OpKind::kZero},
                                                       {2, OpKind::kFlush},
                                                       {2, OpKind::kCounts},
                                                       {1, OpKind::kBudget},
                                                       {1, OpKind::kChoice},
                                                       {1, OpKind::kReadAll},
                                                       {1, OpKind::kFault}});
  return rc::gen::build<Op>(
      rc::gen::set(&Op::kind, kinds),
      rc::gen::set(&Op::at, rc::gen::resize(1000, rc::gen::inRange<uint64_t>(0, 1U << 20))),
      rc::gen::set(&Op::length, rc::gen::oneOf(rc::gen::inRange<uint64_t>(1, 300), rc::gen::inRange<uint64_t>(1, 10000),
                                               rc::gen::inRange<uint64_t>(1, 1U << 19))),
      rc::gen::set(&Op::value, rc::gen::inRange<uint8_t>(1, 100)));
}

// What one task may write: a share of every page of the first half, and some pages of the second half of its own.
class Owner {
 public:
  Owner(Region& region, uint64_t pages, uint64_t index, uint64_t owners, std::vector<std::byte>& model)
      : region_(region), pages_(pages), index_(index), owners_(owners), model_(model) {}

  void Do(const Op& op) {
    switch (op.kind) {
      case OpKind::kRead:
        return ReadBack(Range(op));
      case OpKind::kWrite:
      case OpKind::kWriteMagic:
        return WriteSome(op);
      case OpKind::kZero:
        return ZeroSome(op);
      case OpKind::kFlush: {
        const PageRange range{.first = {op.at % pages_}, .count = 1 + op.length % (pages_ - op.at % pages_)};
        return ExpectOk(region_.Flush({&range, 1}));
      }
      case OpKind::kCounts: {
        const HeatEntry entries[] = {{static_cast<uint32_t>(op.at % pages_), 100U + op.value}, {4000000000U, 1}};
        return region_.AddCounts(entries);
      }
      case OpKind::kBudget:
        if (HasTier()) {
          ExpectOk(region_.SetDramRatio(static_cast<double>(op.at % 21) / 20));
        }
        return;
      case OpKind::kChoice:
        if (region_.term().kind() == RegionKind::kTerm || region_.term().kind() == RegionKind::kRpcTiering) {
          ExpectOk(region_.SetFrameChoice(static_cast<FrameChoice>(op.at % 3)));
        }
        return;
      case OpKind::kReadAll:
        return ReadAll();
      case OpKind::kFault:
        if (region_.term().kind() == RegionKind::kOdp) {
          region_.StartFault({op.at % pages_});
        }
        return;
    }
  }

  bool Owns(uint64_t at) const {
    const uint64_t half = pages_ / 2 * kPageSize;
    return at < half ? at / kStripe % owners_ == index_ : at >= AreaBegin() && at < AreaEnd();
  }

 private:
  static constexpr uint64_t kStripe = 1000;
  struct ByteRange {
    uint64_t at;
    uint64_t length;
  };

  bool HasTier() const {
    const RegionKind kind = region_.term().kind();
    return kind == RegionKind::kTerm || kind == RegionKind::kRpcTiering || kind == RegionKind::kOdp;
  }
  uint64_t AreaPages() const { return (pages_ - pages_ / 2) / owners_; }
  uint64_t AreaBegin() const { return (pages_ / 2 + index_ * AreaPages()) * kPageSize; }
  uint64_t AreaEnd() const { return AreaBegin() + AreaPages() * kPageSize; }

  ByteRange Range(const Op& op) const {
    if (op.value % 2 == 0) {
      const uint64_t stripes = (pages_ / 2 * kPageSize) / (kStripe * owners_);
      const uint64_t begin = (op.at % stripes * owners_ + index_) * kStripe;
      const uint64_t offset = op.at / stripes % kStripe;
      return {begin + offset, std::min(op.length, kStripe - offset)};
    }
    uint64_t at = AreaBegin() + op.at * 64 % (AreaEnd() - AreaBegin());
    if (op.value % 3 == 0) {
      at = RoundDownToPage(at);
    }
    return {at, std::min(op.length, AreaEnd() - at)};
  }

  void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

  void ReadBack(const ByteRange& range) {
    std::vector<std::byte> bytes(range.length, std::byte{0xee});
    ExpectOk(region_.Read({range.at}, bytes));
    EXPECT_EQ(std::memcmp(bytes.data(), model_.data() + range.at, range.length), 0) << "at " << range.at;
  }

  void WriteSome(const Op& op) {
    const ByteRange range = Range(op);
    std::vector<std::byte> bytes(range.length);
    const driver::Pattern pattern = region_.term().pattern();
    for (uint64_t i = 0; i < range.length; i++) {
      bytes[i] = op.kind == OpKind::kWriteMagic ? pattern.line[(range.at + i) % pattern.line.size()]
                                                : static_cast<std::byte>(op.value + i % 7);
    }
    ExpectOk(region_.Write({range.at}, bytes));
    std::memcpy(model_.data() + range.at, bytes.data(), range.length);
    if (op.value % 5 == 0) {
      ReadBack(range);
    }
  }

  void ZeroSome(const Op& op) {
    const uint64_t first = AreaBegin() / kPageSize + op.at % AreaPages();
    const uint64_t count = std::min(1 + op.length % 16, AreaEnd() / kPageSize - first);
    const PageRange range{.first = {first}, .count = count};
    ExpectOk(region_.Zero({&range, 1}));
    std::memset(model_.data() + first * kPageSize, 0, count * kPageSize);
  }

  void ReadAll() {
    std::vector<std::byte> bytes(pages_ * kPageSize);
    ExpectOk(region_.Read({0}, bytes));
    for (uint64_t at = 0; at < bytes.size(); at++) {
      if (Owns(at) && bytes[at] != model_[at]) {
        ADD_FAILURE() << "byte " << at << " is wrong";
        return;
      }
    }
  }

  Region& region_;
  const uint64_t pages_;
  const uint64_t index_;
  const uint64_t owners_;
  std::vector<std::byte>& model_;
};

// What one-sided READs would see now that nothing is going on.
void ExpectPublishedEquals(RegionFixture& fixture, const std::vector<std::byte>& model) {
  const uint64_t pages = model.size() / kPageSize;
  uint64_t present = 0;
  for (uint64_t page = 0; page < pages; page++) {
    const std::byte* const bytes = fixture.term().Published({page});
    if (bytes != nullptr) {
      present++;
      EXPECT_EQ(std::memcmp(bytes, model.data() + page * kPageSize, kPageSize), 0) << "page " << page;
    }
  }
  EXPECT_EQ(fixture.Gauge("pages_present"), present);
  EXPECT_GE(fixture.Gauge("frames_used"), present);
  EXPECT_LE(fixture.Gauge("frames_used"), fixture.Gauge("frames_budget"));
}

void ExpectReads(RegionFixture& fixture, const std::vector<std::byte>& model) {
  fixture.Run([&](Region& region) {
    std::vector<std::byte> all(model.size());
    const Status status = region.Read({0}, all);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(all == model);
  });
}

void CheckAgainstModel(RegionKind kind, FrameChoice choice, int cases) {
  rc::detail::TestParams params;
  params.maxSuccess = cases;
  params.maxSize = 200;
  const auto runner = std::make_shared<TaskRunner>();
  const auto property = [&] {
    RegionSetup setup;
    setup.kind = kind;
    setup.choice = choice;
    setup.pages = *rc::gen::inRange<uint64_t>(48, 400);
    setup.dram_ratio = *rc::gen::element(0.05, 0.1, 0.3, 0.5, 1.0);
    setup.sample_period = std::chrono::milliseconds(2);
    const auto owners = *rc::gen::inRange<size_t>(2, 8);
    const auto ops =
        *rc::gen::container<std::vector<std::vector<Op>>>(owners, rc::gen::container<std::vector<Op>>(AnyOp()));
    RegionFixture fixture(setup, runner);
    std::vector<std::byte> model(setup.pages * kPageSize);
    std::vector<std::function<void()>> tasks;
    for (size_t i = 0; i < owners; i++) {
      tasks.push_back([&, i] {
        Owner owner(fixture.region(), setup.pages, i, owners, model);
        for (const Op& op : ops[i]) {
          owner.Do(op);
        }
      });
    }
    fixture.runner().RunAll(std::move(tasks));
    ExpectReads(fixture, model);
    const Status closed = fixture.Close();
    EXPECT_TRUE(closed.ok()) << closed.ToString();
    fixture.Open();
    ExpectReads(fixture, model);
    ExpectPublishedEquals(fixture, model);
    RC_ASSERT(!testing::Test::HasFailure());
  };
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  rc::detail::printResultMessage(result, std::cerr);
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>());
}

TEST(RegionProperty, Term_ByHeat) { CheckAgainstModel(RegionKind::kTerm, FrameChoice::kHeat, 40); }
TEST(RegionProperty, Term_ByRecency) { CheckAgainstModel(RegionKind::kTerm, FrameChoice::kRecent, 40); }
TEST(RegionProperty, RpcTiering) { CheckAgainstModel(RegionKind::kRpcTiering, FrameChoice::kHeat, 20); }
TEST(RegionProperty, Odp) { CheckAgainstModel(RegionKind::kOdp, FrameChoice::kHeat, 20); }
TEST(RegionProperty, Pin) { CheckAgainstModel(RegionKind::kPin, FrameChoice::kHeat, 15); }
TEST(RegionProperty, RpcDirect) { CheckAgainstModel(RegionKind::kRpcDirect, FrameChoice::kHeat, 15); }
TEST(RegionProperty, RpcBuffer) { CheckAgainstModel(RegionKind::kRpcBuffer, FrameChoice::kHeat, 15); }

}  // namespace
}  // namespace termfs::tlib::server
