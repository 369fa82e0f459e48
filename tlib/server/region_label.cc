// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/region_label.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/page.h"
#include "base/unique_fd.h"

namespace termfs::tlib::server {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'F', 'S', 'R', 'E', 'G', 'I', 'N'};
constexpr uint32_t kVersion = 1;

struct alignas(kPageSize) Block {  // as it lies on the device
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t crc = 0;
  uint64_t pages = 0;
  std::array<char, 48> volume{};
  std::array<char, kPageSize - 72> zeros{};
};
static_assert(sizeof(Block) == kPageSize);

uint32_t CrcOf(const Block& block) {
  Block copy = block;
  copy.crc = 0;
  return ~crc32_iscsi(reinterpret_cast<unsigned char*>(&copy), sizeof(copy), ~0U);
}

Status WriteAll(int fd, const char* data, size_t size, off_t at, const std::string& path) {
  while (size > 0) {
    const ssize_t put = pwrite(fd, data, size, at);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return put == 0 ? Status::Errno(EIO, "label " + path) : ErrnoStatus("label " + path);
    }
    data += put;
    size -= static_cast<size_t>(put);
    at += put;
  }
  return Status::Ok();
}

std::string Name(const std::string& volume) { return volume.empty() ? "without a name" : volume; }

Status Write(const std::string& path, const RegionLabel& label, bool clear_first) {
  Block block;
  if (label.volume.size() >= block.volume.size()) {
    return Status::Error(EINVAL, "a volume's name has at most 47 characters");
  }
  block.magic = kMagic;
  block.version = kVersion;
  block.pages = label.pages;
  std::copy(label.volume.begin(), label.volume.end(), block.volume.begin());
  block.crc = CrcOf(block);
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + path);
  }
  if (clear_first) {
    const std::string zeros(kRegionStart, '\0');
    RETURN_IF_ERROR(WriteAll(fd.get(), zeros.data(), zeros.size(), 0, path));
  }
  RETURN_IF_ERROR(WriteAll(fd.get(), reinterpret_cast<const char*>(&block), sizeof(block), 0, path));
  return fsync(fd.get()) == 0 ? Status::Ok() : ErrnoStatus("label " + path);
}

}  // namespace

Status WriteRegionLabel(const std::string& path, const RegionLabel& label) { return Write(path, label, true); }

Status ChangeRegionLabel(const std::string& path, const RegionLabel& label) { return Write(path, label, false); }

Result<RegionLabel> ReadRegionLabel(int fd, const std::string& path) {
  const auto block = std::make_unique<Block>();
  ssize_t got = 0;
  do {
    got = pread(fd, block.get(), sizeof(Block), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return ErrnoStatus("read the label of " + path);
  }
  if (got < static_cast<ssize_t>(sizeof(Block)) || block->magic != kMagic) {
    return Status::Error(ENOENT, path + " holds no region of termfs");
  }
  if (block->version != kVersion) {
    return Status::Error(EPROTONOSUPPORT, path + " holds a region of version " + std::to_string(block->version) +
                                              ", this program knows version " + std::to_string(kVersion));
  }
  if (block->crc != CrcOf(*block) || block->volume.back() != '\0') {
    return Status::Error(EUCLEAN, path + ": the region's label is damaged; restore the device from a backup");
  }
  return RegionLabel{.pages = block->pages, .volume = block->volume.data()};
}

Status CheckRegionLabel(int fd, const std::string& path, const RegionLabel& expected) {
  Result<RegionLabel> label = ReadRegionLabel(fd, path);
  if (!label.ok()) {
    return std::move(label).status();
  }
  if (label->volume != expected.volume) {
    return Status::Error(EUCLEAN, path + " holds the region of another volume, " + Name(label->volume) + " and not " +
                                      Name(expected.volume));
  }
  if (label->pages < expected.pages) {
    return Status::Error(EUCLEAN, path + " holds a region of " + std::to_string(label->pages) + " pages, not of " +
                                      std::to_string(expected.pages));
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::server
