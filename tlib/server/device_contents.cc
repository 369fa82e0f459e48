// SPDX-License-Identifier: Apache-2.0
//
// The only file that sees libblkid.
#include "tlib/server/device_contents.h"

#include <blkid/blkid.h>
#include <fcntl.h>

#include <memory>

#include "base/unique_fd.h"
#include "tlib/server/region_label.h"

namespace termfs::tlib::server {
namespace {

std::string ValueOf(blkid_probe probe, const char* name) {
  const char* value = nullptr;
  return blkid_probe_lookup_value(probe, name, &value, nullptr) == 0 ? value : "";
}

}  // namespace

Result<std::string> DeviceContents(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + path);
  }
  const Result<RegionLabel> label = ReadRegionLabel(fd.get(), path);
  if (label.ok()) {
    return "the region of the termfs volume " + label->volume;
  }
  if (label.status().code() == EUCLEAN || label.status().code() == EPROTONOSUPPORT) {
    return std::string("the region of a termfs volume");
  }
  const std::unique_ptr<blkid_struct_probe, void (*)(blkid_probe)> probe(blkid_new_probe(), &blkid_free_probe);
  if (probe == nullptr || blkid_probe_set_device(probe.get(), fd.get(), 0, 0) != 0) {
    return Status::Errno(EIO, "look for file systems on " + path);
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE);
  blkid_probe_enable_partitions(probe.get(), 1);
  switch (blkid_do_safeprobe(probe.get())) {
    case 0:
      break;
    case 1:
      return std::string();
    case -2:
      return std::string("several file systems or partition tables");
    default:
      return Status::Errno(EIO, "look for file systems on " + path);
  }
  if (const std::string table = ValueOf(probe.get(), "PTTYPE"); !table.empty()) {
    return "a " + table + " partition table";
  }
  const std::string type = ValueOf(probe.get(), "TYPE");
  return ValueOf(probe.get(), "USAGE") == "filesystem" ? "a file system (" + type + ")" : "data of type " + type;
}

}  // namespace termfs::tlib::server
