// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/random.h"
#include "base/unique_fd.h"
#include "driver/nic.h"

namespace termfs::tlib {
namespace {

// Wiped where it ends.
template <typename Bytes>
struct Wiped {
  Bytes bytes{};
  Wiped() = default;
  Wiped(const Wiped&) = delete;
  Wiped& operator=(const Wiped&) = delete;
  ~Wiped() { explicit_bzero(bytes.data(), bytes.size()); }
};

constexpr size_t kSecretBytes = 32;
constexpr size_t kDigits = 2 * kSecretBytes;
using Secret = Wiped<std::array<std::byte, kSecretBytes>>;
using Line = Wiped<std::array<char, kDigits + 2>>;

constexpr std::string_view kPurpose = "a client and server 0";

Status CheckFile(int fd, const std::string& path) {
  struct stat st {};
  if (fstat(fd, &st) != 0) {
    return ErrnoStatus(path);
  }
  if (!S_ISREG(st.st_mode)) {
    return Status::Error(EACCES, path + " is no regular file, so it is not taken for a secret");
  }
  if (st.st_uid != geteuid() && st.st_uid != 0) {
    return Status::Error(EACCES, path + " belongs to another user, so it is not taken for a secret");
  }
  if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Status::Error(EACCES, path + " may be read or changed by others than its owner; chmod 600 it");
  }
  return Status::Ok();
}

Status Parse(std::string_view text, const std::string& path, Secret& secret) {
  bool good = text.size() == kDigits || (text.size() == kDigits + 1 && text.back() == '\n');
  for (size_t i = 0; good && i < kSecretBytes; i++) {
    uint8_t byte = 0;
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    good = error == std::errc() && end == begin + 2;
    secret.bytes[i] = std::byte{byte};
  }
  return good ? Status::Ok() : Status::Error(EINVAL, path + " holds no secret: one line of 64 hexadecimal digits");
}

Status WriteNew(const UniqueFd& fd, const std::string& path) {
  Secret secret;
  RETURN_IF_ERROR(SecureRandom(secret.bytes.data(), kSecretBytes));
  Line line;
  for (size_t i = 0; i < kSecretBytes; i++) {
    std::snprintf(&line.bytes[2 * i], 3, "%02x", static_cast<unsigned>(secret.bytes[i]));
  }
  line.bytes[kDigits] = '\n';
  constexpr ssize_t kLength = kDigits + 1;
  if (write(fd.get(), line.bytes.data(), kLength) != kLength || fsync(fd.get()) != 0) {
    return ErrnoStatus("write " + path);
  }
  return Status::Ok();
}

}  // namespace

Result<TlsKey> LoadKey(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    return ErrnoStatus("open the secret " + path);
  }
  RETURN_IF_ERROR(CheckFile(fd.get(), path));
  Line line;
  const ssize_t got = read(fd.get(), line.bytes.data(), line.bytes.size());
  if (got < 0) {
    return ErrnoStatus("read the secret " + path);
  }
  Secret secret;
  RETURN_IF_ERROR(Parse({line.bytes.data(), static_cast<size_t>(got)}, path, secret));
  return DeriveTlsKey(secret.bytes, kPurpose);
}

Result<std::shared_ptr<const TlsContext>> ClientTls(const std::string& secret_file) {
  ASSIGN_OR_RETURN(const TlsKey key, LoadKey(secret_file));
  return TlsContext::ForClient(key);
}

Result<std::shared_ptr<const TlsContext>> ServerTls(const std::string& secret_file) {
  ASSIGN_OR_RETURN(const TlsKey key, LoadKey(secret_file));
  constexpr std::string_view kProtocols[] = {kControlProtocol, driver::kDataProtocol};
  return TlsContext::ForServer({&key, 1}, kProtocols);
}

// Complete before it has its name: a start that is cut short leaves no half of a secret.
Status MakeSecret(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) {
    return Status::Ok();
  }
  const std::string beside = path + ".new";
  unlink(beside.c_str());
  const UniqueFd fd(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoStatus("create " + beside);
  }
  Status made = WriteNew(fd, beside);
  if (made.ok() && rename(beside.c_str(), path.c_str()) != 0) {
    made = ErrnoStatus("rename " + beside);
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (made.ok() && (!directory.valid() || fsync(directory.get()) != 0)) {
    made = ErrnoStatus("sync " + folder);
  }
  if (!made.ok()) {
    unlink(beside.c_str());
  }
  return made;
}

}  // namespace termfs::tlib
