// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "base/random.h"
#include "base/unique_fd.h"

namespace termfs::tlib {
namespace {

constexpr size_t kDigits = 2 * std::tuple_size_v<Secret>;

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

Result<Secret> Parse(const std::string& text, const std::string& path) {
  Secret secret{};
  bool good = text.size() == kDigits || (text.size() == kDigits + 1 && text.back() == '\n');
  for (size_t i = 0; good && i < secret.size(); i++) {
    uint8_t byte = 0;
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    good = error == std::errc() && end == begin + 2;
    secret[i] = std::byte{byte};
  }
  return good ? Result<Secret>(secret)
              : Status::Error(EINVAL, path + " holds no secret: one line of 64 hexadecimal digits");
}

Status WriteNew(const UniqueFd& fd, const std::string& path) {
  Secret secret{};
  RETURN_IF_ERROR(SecureRandom(secret.data(), secret.size()));
  std::string text;
  for (const std::byte byte : secret) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  text += '\n';
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || fsync(fd.get()) != 0) {
    return ErrnoStatus("write " + path);
  }
  return Status::Ok();
}

}  // namespace

Result<Secret> LoadSecret(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    return ErrnoStatus("open the secret " + path);
  }
  RETURN_IF_ERROR(CheckFile(fd.get(), path));
  std::string text(kDigits + 2, '\0');
  const ssize_t got = read(fd.get(), text.data(), text.size());
  if (got < 0) {
    return ErrnoStatus("read the secret " + path);
  }
  text.resize(static_cast<size_t>(got));
  return Parse(text, path);
}

// Complete before it has its name: a start that is cut short leaves no half of a secret.
Result<Secret> LoadOrMakeSecret(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) {
    return LoadSecret(path);
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
    return made;
  }
  return LoadSecret(path);
}

}  // namespace termfs::tlib
