// SPDX-License-Identifier: Apache-2.0
//
// LaneOfReads: reads under way in a lane of its own, each with a place and a token, for tests.
#pragma once

#include <poll.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/fs/test_volume.h"

namespace termfs::fs {

class LaneOfReads {
 public:
  LaneOfReads(client::FileSystem& fs, size_t places, size_t place_bytes, bool by_map = false)
      : fs_(fs), place_bytes_(place_bytes), by_map_(by_map) {
    auto opened = by_map ? fs.OpenLaneByMap(places * place_bytes) : fs.OpenLane(places * place_bytes);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    lane_ = std::move(opened).value();
    for (size_t i = 0; i < places; ++i) {
      free_.push_back(i * place_bytes);
    }
  }

  // REQUIRES: room() > 0. The read's token.
  uint64_t Begin(client::OpenFile* file, uint64_t offset, size_t size) {
    const uint64_t token = ++last_token_;
    places_[token] = free_.back();
    free_.pop_back();
    const auto begun =
        fs_.BeginRead(*lane_, {.file = file, .offset = offset, .size = size, .place = places_[token], .token = token});
    EXPECT_TRUE(begun.ok() || (by_map_ && begun.status().code() == EAGAIN)) << begun.status().ToString();
    if (!begun.ok() || begun->has_value()) {
      Take({.token = token, .data = begun.ok() ? **begun : Result<std::span<const std::byte>>(begun.status())});
    } else {
      ++under_way_;
    }
    return token;
  }
  void Drop() {
    fs_.DropReads(*lane_);
    for (const auto& [token, place] : std::exchange(places_, {})) {
      free_.push_back(place);
    }
    under_way_ = 0;
  }
  Status Await() { return TakeFrom(&client::FileSystem::AwaitReads); }
  Status Poll() { return TakeFrom(&client::FileSystem::PollReads); }
  void AwaitAll() {
    while (under_way_ > 0 && !testing::Test::HasFatalFailure()) {
      const size_t before = under_way_;
      const Status awaited = Await();
      ASSERT_TRUE(awaited.ok()) << awaited.ToString();
      ASSERT_LT(under_way_, before) << "nothing has ended";
    }
  }
  // Until one of the descriptors is readable, `other` among them (negative: none); false: PollReads may have something
  // to say at once.
  bool WaitWith(int other, int milliseconds, bool& other_readable) {
    tlib::client::ReadsFds fds{};
    const bool armed = fs_.ArmReads(*lane_, fds);
    pollfd waited[3] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}, {other, POLLIN, 0}};
    readable_ = poll(waited, 3, armed ? milliseconds : 0);
    other_readable = waited[2].revents != 0;
    fs_.DisarmReads(*lane_);
    return armed;
  }

  size_t room() const { return free_.size(); }
  size_t under_way() const { return under_way_; }
  int readable() const { return readable_; }  // descriptors, at the last wait
  client::Lane& lane() { return *lane_; }
  // What has ended since the last call: the bytes, or "errno N".
  std::map<uint64_t, std::string> TakeDone() { return std::exchange(done_, {}); }

 private:
  Status TakeFrom(Status (client::FileSystem::*take)(client::Lane&, std::vector<client::ReadDone>&)) {
    std::vector<client::ReadDone> ended;
    const Status status = (fs_.*take)(*lane_, ended);
    under_way_ -= ended.size();
    for (const client::ReadDone& read : ended) {
      Take(read);
    }
    return status;
  }
  void Take(const client::ReadDone& read) {
    ASSERT_TRUE(places_.contains(read.token)) << "ended twice, or never begun: " << read.token;
    const size_t place = places_[read.token];
    if (read.data.ok() && !read.data->empty()) {
      EXPECT_EQ(read.data->data(), lane_->places().data() + place);
      EXPECT_LE(read.data->size(), place_bytes_);
    }
    done_[read.token] = read.data.ok()
                            ? std::string(reinterpret_cast<const char*>(read.data->data()), read.data->size())
                            : "errno " + std::to_string(read.data.status().code());
    free_.push_back(place);
    places_.erase(read.token);
  }

  client::FileSystem& fs_;
  const size_t place_bytes_;
  const bool by_map_;
  std::unique_ptr<client::Lane> lane_;
  std::vector<size_t> free_;
  std::map<uint64_t, size_t> places_;  // by token
  std::map<uint64_t, std::string> done_;
  uint64_t last_token_ = 0;
  size_t under_way_ = 0;
  int readable_ = 0;
};

}  // namespace termfs::fs
