// SPDX-License-Identifier: Apache-2.0
//
// A volume's secret: who knows it may administer and mount the volume from another host. A file of one line of 64
// hexadecimal digits, readable by its owner only. Both ends of a connection prove to know a key that is derived from it
// (base/tls.h): the one of a volume's clients and its first server. The secret itself is in memory only meanwhile.
//
// Thread-safety: free functions.
// Errors:        EACCES: others may read or change the file; EINVAL: it holds no secret; otherwise what the kernel
// says.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/tls.h"

namespace termfs::tlib {

// What is spoken inside TLS on the control channel (ALPN); see also driver::kDataProtocol.
inline constexpr std::string_view kControlProtocol = "termfs-control/1";

// REQUIRES of the file: a regular one, of the caller or of root, with no permissions for group and others.
Result<TlsKey> LoadKey(const std::string& secret_file);
Result<std::shared_ptr<const TlsContext>> ClientTls(const std::string& secret_file);
Result<std::shared_ptr<const TlsContext>> ServerTls(const std::string& secret_file);
// Makes a secret at random in a new file that only its owner may read, durably, unless there is a file.
Status MakeSecret(const std::string& path);

}  // namespace termfs::tlib
