// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as what describes a mount: the options of -o, the place of a server, the kernel's mount table. The first
// byte chooses.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "mount/mount_config.h"
#include "mount/mount_table.h"
#include "tlib/rpc/server_address.h"

namespace termfs::mount {
namespace {

std::string Joined(const std::vector<std::string>& options) {
  std::string text;
  for (const std::string& option : options) {
    text += (text.empty() ? "" : ",") + option;
  }
  return text;
}

// What had an effect, given once more, has the same effect; the kernel gets nothing that termfs does not know.
void TryOptions(std::string_view text) {
  MountConfig config;
  const Status applied = ApplyMountOptions(text, config);
  TERMFS_CHECK(config.threads >= 1 && config.threads <= 256);
  TERMFS_CHECK(config.timeout.count() >= 1 && config.timeout.count() <= 3600);
  TERMFS_CHECK(config.reconnect.count() >= 0 && config.reconnect.count() <= 3600);
  for (const std::string& option : config.kernel) {
    TERMFS_CHECK(option.find_first_of("=\\\n") == std::string::npos);
  }
  MountConfig all;
  const Status passing = ApplyMountOptions(text, all, UnknownOptions::kPassedOver);
  if (!applied.ok()) {
    TERMFS_CHECK(applied.code() == EINVAL && !applied.message().empty());
    return;
  }
  TERMFS_CHECK(passing.ok() && all.given == config.given);
  MountConfig again;
  TERMFS_CHECK(ApplyMountOptions(Joined(config.given), again).ok());
  TERMFS_CHECK(NeedsNewMount(config, again).empty() && again.given == config.given && again.kernel == config.kernel);
  TERMFS_CHECK(again.read_only == config.read_only && again.synchronous == config.synchronous &&
               again.access_times == config.access_times &&
               again.directory_access_times == config.directory_access_times &&
               again.follow_symlinks == config.follow_symlinks);
}

void TryPlace(std::string_view text) {
  const auto place = tlib::ParseHostPort(std::string(text));
  if (!place.ok()) {
    TERMFS_CHECK(place.status().code() == EINVAL);
    return;
  }
  TERMFS_CHECK(!place->host.empty() && place->port != 0);
  const auto again = tlib::ParseHostPort(tlib::ToString(*place));
  TERMFS_CHECK(again.ok() && *again == *place);
}

void TryTable(std::string_view text) {
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  const auto entries = ParseMountTable(text);
  TERMFS_CHECK(entries.size() == lines + (text.empty() || text.back() == '\n' ? 0 : 1));
  size_t length = 0;
  for (const MountEntry& entry : entries) {
    length += entry.path.size() + entry.type.size() + entry.options.size() + entry.super_options.size();
    TERMFS_CHECK(!entry.Has("\n"));
  }
  TERMFS_CHECK(length <= text.size());
}

constexpr std::array kTexts = {TryOptions, TryPlace, TryTable};

}  // namespace
}  // namespace termfs::mount

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    termfs::mount::kTexts[data[0] % termfs::mount::kTexts.size()]({reinterpret_cast<const char*>(data + 1), size - 1});
  }
  return 0;
}
