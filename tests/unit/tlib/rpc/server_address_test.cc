// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/server_address.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tlib/rpc/secret.h"

namespace termfs::tlib {
namespace {

TEST(ServerAddress, HostsAndPorts) {
  const auto parsed = [](const std::string& text) { return ParseHostPort(text).value(); };
  EXPECT_EQ(parsed("host:80"), (HostPort{"host", 80}));
  EXPECT_EQ(parsed("host"), (HostPort{"host", kControlPort}));
  EXPECT_EQ(parsed("10.0.0.1:65535"), (HostPort{"10.0.0.1", 65535}));
  EXPECT_EQ(parsed("[::1]:1"), (HostPort{"::1", 1}));
  EXPECT_EQ(parsed("[fe80::1%eth0]"), (HostPort{"fe80::1%eth0", kControlPort}));
  EXPECT_EQ(parsed("::"), (HostPort{"::", kControlPort}));
  EXPECT_EQ(ToString(parsed("[::1]:7")), "[::1]:7");
  EXPECT_EQ(ToString(parsed("a:7")), "a:7");
  for (const char* bad : {"", ":1", "host:", "host:0", "host:65536", "host:-1", "host:1x", "host: 1", "[::1", "[::1]x",
                          "[]:1", "[::1]:", "a b:1", "\n:1"}) {
    EXPECT_EQ(ParseHostPort(bad).status().code(), EINVAL) << bad;
  }
  EXPECT_FALSE(ParseHostPort(std::string(300, 'a')).ok());
}

// It would read as another address once it is written with brackets.
TEST(ServerAddress, ABracketWithinAHost_IsRefused) {
  for (const char* bad : {":1]:0::server:80", "a]:80", "a[:80", "[[::1]:80", "::1]"}) {
    EXPECT_EQ(ParseHostPort(bad).status().code(), EINVAL) << bad;
  }
}

TEST(ServerAddress, ADirectoryIsNoHost) {
  EXPECT_TRUE(MeansHost("host:1") && MeansHost("[::1]") && MeansHost("host:"));
  EXPECT_FALSE(MeansHost("host") || MeansHost("./a:1") || MeansHost("/v/a:1"));
}

class SecretFile : public testing::Test {
 protected:
  void Write(const std::string& text, mode_t mode) {
    unlink(path_.c_str());
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  int Error() { return LoadKey(path_).status().code(); }
  std::array<std::byte, 32> Key() { return LoadKey(path_).value().bytes; }

  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/secret";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = testing::TempDir() + "termfs-secret-XXXXXX";
  std::string path_;
  const std::string good_ = std::string(62, '0') + "fF";
};

TEST_F(SecretFile, MadeOnceAndForItsOwnerOnly) {
  ASSERT_TRUE(MakeSecret(path_).ok());
  struct stat st {};
  ASSERT_EQ(stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600U);
  const auto key = Key();
  ASSERT_TRUE(MakeSecret(path_).ok());
  EXPECT_EQ(Key(), key);
  unlink(path_.c_str());
  ASSERT_TRUE(MakeSecret(path_).ok());
  EXPECT_NE(Key(), key);
}

TEST_F(SecretFile, OneThatOthersMayReadOrChangeIsRefused) {
  for (const mode_t mode : {0600U, 0400U}) {
    Write(good_, mode);
    EXPECT_EQ(Error(), 0) << std::oct << mode;
  }
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0601U, 0777U}) {
    Write(good_, mode);
    EXPECT_EQ(Error(), EACCES) << std::oct << mode;
  }
  unlink(path_.c_str());
  EXPECT_EQ(Error(), ENOENT);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_EQ(Error(), EACCES);
  rmdir(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Error(), EACCES);
}

TEST_F(SecretFile, AnythingButSixtyFourDigitsIsRefused) {
  Write(good_ + "\n", 0600);
  const auto key = Key();
  Write(std::string(62, '0') + "ff", 0600);
  EXPECT_EQ(Key(), key);
  Write(std::string(62, '0') + "fe", 0600);
  EXPECT_NE(Key(), key);
  for (const std::string& bad : {std::string(), good_ + "\n\n", good_ + "0", good_.substr(1), good_.substr(1) + "g",
                                 " " + good_.substr(1), good_.substr(2) + "0x"}) {
    Write(bad, 0600);
    EXPECT_EQ(Error(), EINVAL) << bad;
  }
}

}  // namespace
}  // namespace termfs::tlib
