// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/written_log.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/log.h"

namespace termfs::tlib::server {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'F', 'S', 'W', 'R', 'T', 'L', 'G'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kBlocksPerRead = 128;

uint64_t BlocksFor(uint64_t pages) { return (pages + WrittenLog::kPagesPerBlock - 1) / WrittenLog::kPagesPerBlock; }

template <typename T>
std::span<std::byte> BytesOf(std::vector<T>& items) {
  return {reinterpret_cast<std::byte*>(items.data()), items.size() * sizeof(T)};
}

}  // namespace

uint64_t WrittenLog::BytesFor(uint64_t pages) { return BlocksFor(pages) * 2 * kSlotBytes; }

uint32_t WrittenLog::CrcOf(const Slot& slot) {
  Slot copy = slot;
  copy.crc = 0;
  return ~crc32_iscsi(reinterpret_cast<unsigned char*>(&copy), sizeof(copy), ~0U);
}

WrittenLog::Slot WrittenLog::EmptySlot(uint64_t index, uint64_t pages, uint64_t sequence) {
  Slot slot{};
  slot.magic = kMagic;
  slot.version = kVersion;
  slot.sequence = sequence;
  slot.index = index;
  slot.pages = pages;
  slot.crc = CrcOf(slot);
  return slot;
}

Status WrittenLog::Format(BlockDevice& device, uint64_t pages) {
  return FormatBlocks(device, 0, BlocksFor(pages), pages);
}

Status WrittenLog::FormatBlocks(BlockDevice& device, uint64_t first, uint64_t end_block, uint64_t pages) {
  for (uint64_t begin = first; begin < end_block; begin += kBlocksPerRead) {
    const uint64_t end = std::min(end_block, begin + kBlocksPerRead);
    std::vector<Slot> slots;
    slots.reserve((end - begin) * 2);
    for (uint64_t i = begin; i < end; i++) {
      slots.push_back(EmptySlot(i, pages, 1));
      slots.push_back(EmptySlot(i, pages, 0));
    }
    RETURN_IF_ERROR(device.Write(begin * 2 * kSlotBytes, BytesOf(slots)).WithContext("written log"));
  }
  return device.Flush().WithContext("written log");
}

WrittenLog::WrittenLog(BlockDevice& device, uint64_t pages)
    : device_(device), sync_([this] { return SyncOnce(); }), pages_(pages) {}

Result<std::unique_ptr<WrittenLog>> WrittenLog::Open(BlockDevice& device, uint64_t pages) {
  if (device.size() < BytesFor(pages)) {
    return Status::Error(EUCLEAN, "the written log is shorter than its region needs");
  }
  // What a process wrote that was killed before it flushed may be in the device's cache only, and is found by Load.
  RETURN_IF_ERROR(device.Flush().WithContext("written log"));
  std::unique_ptr<WrittenLog> log(new WrittenLog(device, pages));
  RETURN_IF_ERROR(log->Load());
  return log;
}

Status WrittenLog::Resize(uint64_t pages) {
  uint64_t known = 0;
  {
    MutexLock lock(mutex_);
    if (pages <= pages_) {
      pages_ = pages;
      return Status::Ok();
    }
    known = slots_.size();
  }
  const uint64_t blocks = BlocksFor(pages);
  if (device_.size() < BytesFor(pages)) {
    return Status::Error(EINVAL, "the written log is shorter than the larger region needs");
  }
  RETURN_IF_ERROR(FormatBlocks(device_, known, blocks, pages));
  ClearBeyondEnd();
  MutexLock lock(mutex_);
  for (uint64_t index = known; index < blocks; index++) {
    slots_.push_back(EmptySlot(index, pages, 1));  // as FormatBlocks wrote it, to the first slot
    blocks_.emplace_back();
  }
  pages_ = pages;
  return Status::Ok();
}

// Power loss may have taken back the size of a region that had been written to beyond its end of now.
void WrittenLog::ClearBeyondEnd() {
  uint64_t page = 0;
  uint64_t end = 0;
  {
    MutexLock lock(mutex_);
    page = pages_;
    end = slots_.size() * kPagesPerBlock;
  }
  for (; page < end; page++) {
    Clear({page});
  }
}

Status WrittenLog::Load() {
  uint64_t blocks = 0;
  {
    MutexLock lock(mutex_);
    blocks = BlocksFor(pages_);
    slots_.resize(blocks);
    blocks_.resize(blocks);
  }
  for (uint64_t begin = 0; begin < blocks; begin += kBlocksPerRead) {
    std::vector<Slot> slots(2 * std::min(kBlocksPerRead, blocks - begin));
    RETURN_IF_ERROR(device_.Read(begin * 2 * kSlotBytes, BytesOf(slots)).WithContext("written log"));
    MutexLock lock(mutex_);
    for (size_t i = 0; i < slots.size(); i += 2) {
      RETURN_IF_ERROR(LoadBlock(begin + i / 2, slots[i], slots[i + 1]));
    }
  }
  return Status::Ok();
}

Status WrittenLog::CheckSlot(const Slot& slot, uint64_t index) const {
  if (slot.magic != kMagic || slot.crc != CrcOf(slot)) {
    return Status::Error(EUCLEAN, "a copy of block " + std::to_string(index) + " of the written log is damaged");
  }
  if (slot.version != kVersion) {
    return Status::Error(EUCLEAN, "the written log has version " + std::to_string(slot.version) +
                                      ", this program reads " + std::to_string(kVersion));
  }
  if (slot.index != index || slot.pages <= index * kPagesPerBlock) {
    return Status::Error(EUCLEAN, "a copy of block " + std::to_string(index) + " of the written log is another's");
  }
  return Status::Ok();
}

Status WrittenLog::LoadBlock(uint64_t index, const Slot& first, const Slot& second) {
  const Status first_status = CheckSlot(first, index);
  const Status second_status = CheckSlot(second, index);
  if (!first_status.ok() && !second_status.ok()) {
    return Status(first_status).WithContext("both copies are unusable; restore the region from a backup");
  }
  if (!first_status.ok() || !second_status.ok()) {
    LOG_WARNING("{}; taken for an update that a crash cut short, the other copy counts",
                (first_status.ok() ? second_status : first_status).ToString());
  }
  const bool take_second = !first_status.ok() || (second_status.ok() && second.sequence > first.sequence);
  slots_[index] = take_second ? second : first;
  blocks_[index].newest_in_second = take_second;
  return Status::Ok();
}

uint64_t WrittenLog::SetOf64(PageIndex page) const {
  const uint64_t index = page.value / kPagesPerBlock;
  MutexLock lock(mutex_);
  TERMFS_CHECK(index < slots_.size());
  return slots_[index].bits[page.value % kPagesPerBlock / 64];
}

void WrittenLog::Change(PageIndex page, bool set) {
  const uint64_t index = page.value / kPagesPerBlock;
  const uint64_t bit = page.value % kPagesPerBlock;
  const uint64_t mask = uint64_t{1} << (bit % 64);
  MutexLock lock(mutex_);
  TERMFS_CHECK(index < slots_.size());
  uint64_t& word = slots_[index].bits[bit / 64];
  if (((word & mask) != 0) == set) {
    return;
  }
  word ^= mask;
  if (!blocks_[index].changed) {
    blocks_[index].changed = true;
    changed_.push_back(index);
  }
}

void WrittenLog::ForEach(const std::function<void(PageIndex)>& visit) const {
  MutexLock lock(mutex_);
  for (uint64_t index = 0; index < slots_.size(); index++) {
    for (uint64_t at = 0; at < slots_[index].bits.size(); at++) {
      for (uint64_t word = slots_[index].bits[at]; word != 0; word &= word - 1) {
        const uint64_t page = index * kPagesPerBlock + at * 64 + static_cast<uint64_t>(std::countr_zero(word));
        if (page < pages_) {
          visit({page});
        }
      }
    }
  }
}

Status WrittenLog::SyncOnce() {
  std::vector<uint64_t> indices;
  std::vector<Slot> slots;
  std::vector<iovec> pieces;
  std::vector<BlockIo> ios;
  {
    MutexLock lock(mutex_);
    indices.swap(changed_);
    slots.reserve(indices.size());
    pieces.reserve(indices.size());
    for (const uint64_t index : indices) {
      slots_[index].sequence++;
      blocks_[index].changed = false;
      slots.push_back(slots_[index]);
      const uint64_t slot = 2 * index + (blocks_[index].newest_in_second ? 0 : 1);
      pieces.push_back({.iov_base = &slots.back(), .iov_len = kSlotBytes});
      ios.push_back(
          {.kind = BlockIo::Kind::kWrite, .offset = slot * kSlotBytes, .pieces = {&pieces.back(), 1}, .status = {}});
    }
  }
  if (indices.empty()) {
    return Status::Ok();
  }
  for (Slot& slot : slots) {
    slot.crc = CrcOf(slot);
  }
  device_.Run(ios);
  Status status;
  for (BlockIo& io : ios) {
    if (!io.status.ok()) {
      status = std::move(io.status);
    }
  }
  if (status.ok()) {
    status = device_.Flush();
  }
  MutexLock lock(mutex_);
  for (const uint64_t index : indices) {
    if (status.ok()) {
      blocks_[index].newest_in_second = !blocks_[index].newest_in_second;
    } else if (!blocks_[index].changed) {  // the slot written to holds anything now; the newest copy is untouched
      blocks_[index].changed = true;
      changed_.push_back(index);
    }
  }
  return std::move(status).WithContext("written log");
}

}  // namespace termfs::tlib::server
