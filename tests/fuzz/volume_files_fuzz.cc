// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the files of a volume that are not the metadata store: termfs.toml, the region's label, the written log.
// The first byte chooses the file.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "fs/server/settings.h"
#include "tests/fakes/fake_block_device.h"
#include "tlib/server/region_label.h"
#include "tlib/server/written_log.h"

namespace termfs {
namespace {

void TrySettings(std::string_view bytes) {
  const auto settings = fs::server::ParseSettings(std::string(bytes), "termfs.toml");
  if (!settings.ok()) {
    TERMFS_CHECK(settings.status().code() == EINVAL && !settings.status().message().empty());
    return;
  }
  const std::string text = fs::server::FormatSettings(*settings);
  const auto again = fs::server::ParseSettings(text, "termfs.toml");
  TERMFS_CHECK(again.ok() && fs::server::FormatSettings(*again) == text);
}

void TryLabel(std::string_view bytes) {
  const UniqueFd fd(memfd_create("device", MFD_CLOEXEC));
  TERMFS_CHECK(fd.valid() && write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const auto label = tlib::server::ReadRegionLabel(fd.get(), "device");
  TERMFS_CHECK(!label.ok() || label->volume.size() < 48);
}

void TryWrittenLog(std::string_view bytes) {
  constexpr uint64_t kPages = 100'000;  // more than one block
  const auto medium =
      std::make_shared<tlib::server::FakeMedium>(tlib::server::WrittenLog::BytesFor(kPages), std::byte{});
  tlib::server::FakeBlockDevice device(medium);
  TERMFS_CHECK(tlib::server::WrittenLog::Format(device, kPages).ok());
  // The first two bytes say where the rest goes.
  if (bytes.size() > 2) {
    const size_t at = (static_cast<uint8_t>(bytes[0]) | static_cast<uint8_t>(bytes[1]) << 8) % medium->bytes_.size();
    const size_t count = std::min(bytes.size() - 2, medium->bytes_.size() - at);
    std::memcpy(medium->bytes_.data() + at, bytes.data() + 2, count);
  }
  const auto log = tlib::server::WrittenLog::Open(device, kPages);
  if (log.ok()) {
    (*log)->ForEach([](PageIndex page) { TERMFS_CHECK(page.value < kPages); });
  }
}

}  // namespace
}  // namespace termfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool quiet = termfs::StartLog(termfs::LogLevel::kError).ok();
  if (size == 0) {
    return 0;
  }
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0:
      termfs::TrySettings(bytes);
      break;
    case 1:
      termfs::TryLabel(bytes);
      break;
    default:
      termfs::TryWrittenLog(bytes);
  }
  return 0;
}
