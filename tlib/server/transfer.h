// SPDX-License-Identifier: Apache-2.0
//
// Transfer: what is left to move of one BlockIo, for devices whose system calls may move less than asked.
//
// Thread-safety: none. Ownership: refers to the BlockIo, which must stay.
#pragma once

#include <sys/uio.h>

#include <string>
#include <vector>

#include "tlib/server/block_device.h"

namespace termfs::tlib::server {

class Transfer {
 public:
  Transfer() = default;
  // `start`: where the device's offset 0 is.
  Transfer(BlockIo& io, uint64_t start)
      : io_(&io), pieces_(io.pieces.data()), count_(io.pieces.size()), offset_(start + io.offset) {}

  bool is_read() const { return io_->kind == BlockIo::Kind::kRead; }
  const iovec* pieces() const { return pieces_; }
  int count() const { return static_cast<int>(count_); }
  uint64_t offset() const { return offset_; }

  // Takes a result (bytes moved, or a negative errno) into account. True when the access has ended, its status set.
  bool Advance(int64_t result) {
    if (result < 0) {
      return End(Status::Errno(static_cast<int>(-result), What()));
    }
    if (result == 0 && count_ > 0) {
      return End(Status::Error(EIO, What() + " beyond its end"));
    }
    offset_ += static_cast<uint64_t>(result);
    auto moved = static_cast<size_t>(result);
    while (count_ > 0 && moved >= pieces_->iov_len) {
      moved -= pieces_->iov_len;
      pieces_++;
      count_--;
    }
    if (count_ == 0) {
      return End(Status::Ok());
    }
    if (moved > 0) {
      CutFirstPiece(moved);
    }
    return false;
  }

 private:
  bool End(Status status) {
    io_->status = std::move(status);
    return true;
  }

  std::string What() const {
    return std::string(is_read() ? "read" : "write") + " the device at " + std::to_string(offset_);
  }

  void CutFirstPiece(size_t moved) {
    std::vector<iovec> rest(pieces_, pieces_ + count_);  // pieces_ may point into rest_
    rest_ = std::move(rest);
    rest_[0].iov_base = static_cast<std::byte*>(rest_[0].iov_base) + moved;
    rest_[0].iov_len -= moved;
    pieces_ = rest_.data();
  }

  BlockIo* io_ = nullptr;
  const iovec* pieces_ = nullptr;
  size_t count_ = 0;
  uint64_t offset_ = 0;
  std::vector<iovec> rest_;  // only after a transfer that ended within a piece
};

}  // namespace termfs::tlib::server
