// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/call.h"

#include <algorithm>
#include <cstring>

namespace termfs::tlib::server {

Result<std::span<const std::byte>> CallImpl::Pull(uint32_t offset, uint32_t length, const BulkPool::Buffer& into) {
  if (offset > in().length || length > in().length - offset) {
    return Status::Error(ERANGE, "more bytes than the client offered");
  }
  const MessageSeal* const seal = connection_.seal();
  // Sealed: all bytes of the tags that are touched.
  const uint32_t begin = seal != nullptr ? offset / kTaggedBytes * kTaggedBytes : offset;
  const uint32_t end =
      seal != nullptr ? std::min<uint32_t>(in().length, TagsOf(offset + length) * kTaggedBytes) : offset + length;
  driver::SendWorkRequest read{.opcode = driver::Opcode::kRdmaRead};
  read.local = {.addr = into.data(), .length = end - begin, .lkey = into.lkey()};
  read.remote_offset = in().offset + begin;
  read.rkey = {in().rkey};
  RETURN_IF_ERROR(connection_.Execute({&read, 1}));
  if (seal != nullptr) {
    Status checked = seal->CheckIn(number_, begin, {into.data(), end - begin}, request_.in_tags);
    if (!checked.ok()) {
      connection_.Close(checked);
      return checked;
    }
  }
  return std::span<const std::byte>(into.data() + (offset - begin), length);
}

Status CallImpl::PullBulk(std::span<std::byte> into) {
  if (into.size() != in().length) {
    return Status::Error(EINVAL, "a buffer of another size than the client's");
  }
  if (into.empty()) {
    return Status::Ok();
  }
  if (request_.is_inline) {
    std::memcpy(into.data(), request_.in.data(), into.size());
    return Status::Ok();
  }
  const BulkPool::Buffer buffer(bulk_);
  for (uint32_t done = 0; done < into.size();) {
    const auto part = static_cast<uint32_t>(std::min<size_t>(into.size() - done, most_pulled()));
    ASSIGN_OR_RETURN(const auto pulled, Pull(done, part, buffer));
    std::memcpy(into.data() + done, pulled.data(), part);
    done += part;
  }
  return Status::Ok();
}

Status CallImpl::PushBulk(std::span<const std::byte> from) {
  if (from.size() > out().length) {
    return Status::Error(ERANGE, "more bytes than the client has room for");
  }
  if (from.empty()) {
    return Status::Ok();
  }
  const BulkPool::Buffer buffer(bulk_);
  for (uint32_t done = 0; done < from.size();) {
    const auto part = static_cast<uint32_t>(std::min<size_t>(from.size() - done, BulkPool::kBufferBytes));
    std::memcpy(buffer.data(), from.data() + done, part);
    const Piece piece{.data = buffer.data(), .length = part, .at = done, .lkey = buffer.lkey()};
    RETURN_IF_ERROR(Push(0, {&piece, 1}));
    done += part;
  }
  return Status::Ok();
}

Status CallImpl::Push(uint32_t base, std::span<const Piece> pieces) {
  writes_.clear();
  for (const Piece& piece : pieces) {
    const uint64_t end = uint64_t{base} + piece.at + piece.length;
    if (end > out().length) {
      return Status::Error(ERANGE, "more bytes than the client has room for");
    }
    out_bytes_ = std::max(out_bytes_, static_cast<uint32_t>(end));
    if (connection_.seal() != nullptr) {
      RETURN_IF_ERROR(AddToTag(uint64_t{base} + piece.at, {piece.data, piece.length}));
    }
    const uint64_t remote = out().offset + base + piece.at;
    if (!writes_.empty()) {
      driver::SendWorkRequest& last = writes_.back();
      if (static_cast<const std::byte*>(last.local.addr) + last.local.length == piece.data &&
          last.local.lkey.value == piece.lkey.value && last.remote_offset + last.local.length == remote) {
        last.local.length += piece.length;  // adjacent here and there: one WRITE
        continue;
      }
    }
    driver::SendWorkRequest& write = writes_.emplace_back();
    write.opcode = driver::Opcode::kRdmaWrite;
    write.local = {.addr = const_cast<std::byte*>(piece.data), .length = piece.length, .lkey = piece.lkey};
    write.remote_offset = remote;
    write.rkey = {out().rkey};
  }
  return connection_.Execute(writes_);
}

Status CallImpl::AddToTag(uint64_t at, std::span<const std::byte> bytes) {
  if (!out_.has_value() || at < out_end_) {
    ASSIGN_OR_RETURN(out_, connection_.seal()->BeginOut(number_));
  }
  out_end_ = at + bytes.size();
  return out_->Add(bytes);
}

Result<std::span<const std::byte>> CallImpl::OutTag() {
  if (!out_.has_value()) {
    return std::span<const std::byte>();
  }
  ASSIGN_OR_RETURN(out_tag_, out_->End());
  return std::span<const std::byte>(out_tag_);
}

}  // namespace termfs::tlib::server
