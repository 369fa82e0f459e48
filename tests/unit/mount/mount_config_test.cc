// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tlib::client::BitmapMode;

TEST(ApplyMountOptions, TakesOursAndHandsOnTheKernels) {
  MountConfig config;
  ASSERT_TRUE(
      ApplyMountOptions("ro,bitmap=pulled,threads=3,dev,fuse=device,timeout=7,reconnect=0,suid,noatime", config).ok());
  EXPECT_EQ(config.bitmap, BitmapMode::kPulled);
  EXPECT_EQ(config.threads, 3U);
  EXPECT_EQ(config.timeout, std::chrono::seconds(7));
  EXPECT_EQ(config.reconnect, std::chrono::seconds(0));
  EXPECT_EQ(config.fuse, FuseTransport::kDevice);
  EXPECT_TRUE(config.acl);
  ASSERT_TRUE(ApplyMountOptions("noacl", config).ok());
  EXPECT_FALSE(config.acl);
  EXPECT_THAT(config.kernel, ElementsAre("ro", "dev", "suid", "noatime"));
}

TEST(ApplyMountOptions, LaterOnesWinAndEmptyOnesAreNone) {
  MountConfig config;
  ASSERT_TRUE(ApplyMountOptions("bitmap=off,,bitmap=live,", config).ok());
  ASSERT_TRUE(ApplyMountOptions("", config).ok());
  EXPECT_EQ(config.bitmap, BitmapMode::kLive);
}

TEST(ApplyMountOptions, AccessTimesMoveUnlessSaidOtherwise) {
  struct Row {
    const char* options;
    bool files;
    bool directories;
    std::vector<std::string> kernel;
  };
  for (const Row& row : {
           Row{"", true, true, {}},
           Row{"atime", true, true, {}},
           Row{"noatime", false, true, {"noatime"}},
           Row{"noatime,relatime", true, true, {}},
           Row{"noatime,strictatime", true, true, {}},
           Row{"nodiratime", true, false, {"nodiratime"}},
           Row{"nodiratime,diratime", true, true, {}},
       }) {
    MountConfig config;
    ASSERT_TRUE(ApplyMountOptions(row.options, config).ok()) << row.options;
    EXPECT_EQ(config.access_times, row.files) << row.options;
    EXPECT_EQ(config.directory_access_times, row.directories) << row.options;
    EXPECT_EQ(config.kernel, row.kernel) << row.options;
  }
  MountConfig config;
  ASSERT_TRUE(ApplyMountOptions("ro", config).ok());
  EXPECT_TRUE(config.read_only);
  ASSERT_TRUE(ApplyMountOptions("noatime,rw", config).ok());
  EXPECT_FALSE(config.read_only);
  EXPECT_FALSE(config.access_times);
}

TEST(ApplyMountOptions, WhatIsSynchronous) {
  struct Row {
    const char* options;
    bool all;
    bool names;
  };
  for (const Row& row : {Row{"", false, false}, Row{"sync", true, false}, Row{"dirsync", false, true},
                         Row{"sync,async", false, false}, Row{"dirsync,async", false, true}}) {
    MountConfig config;
    ASSERT_TRUE(ApplyMountOptions(row.options, config).ok()) << row.options;
    EXPECT_EQ(config.synchronous, row.all) << row.options;
    EXPECT_EQ(config.synchronous_names, row.names) << row.options;
  }
}

TEST(ApplyMountOptions, AcceptsWhatFstabBrings) {
  MountConfig config;
  ASSERT_TRUE(
      ApplyMountOptions("defaults,noauto,_netdev,nofail,x-systemd.automount,x-systemd.requires=a.service", config)
          .ok());
  ASSERT_TRUE(ApplyMountOptions("user,users,user=ann,group,owner,nouser,lazytime,nolazytime,iversion,mand,X-a.b=c,"
                                "comment=something,uhelper=udisks2,loud,silent,norelatime,nostrictatime",
                                config)
                  .ok());
  EXPECT_TRUE(config.kernel.empty());
  EXPECT_TRUE(config.given.empty());
  EXPECT_TRUE(config.access_times && config.follow_symlinks);
}

TEST(ApplyMountOptions, LinksAreFollowedUnlessSaidOtherwise) {
  MountConfig config;
  ASSERT_TRUE(ApplyMountOptions("nosymfollow", config).ok());
  EXPECT_FALSE(config.follow_symlinks);
  ASSERT_TRUE(ApplyMountOptions("symfollow", config).ok());
  EXPECT_TRUE(config.follow_symlinks);
  EXPECT_TRUE(config.kernel.empty()) << "libfuse knows neither";
}

TEST(ApplyMountOptions, PassesOverTheUnknownWhereThatIsWanted) {
  MountConfig config;
  ASSERT_TRUE(ApplyMountOptions("wombat,a=b,noexec", config, UnknownOptions::kPassedOver).ok());
  EXPECT_THAT(config.given, ElementsAre("noexec"));
  EXPECT_EQ(ApplyMountOptions("threads=many", config, UnknownOptions::kPassedOver).code(), EINVAL);
}

TEST(ApplyMountOptions, RefusesTheUnknownByName) {
  for (const char* option :
       {"wombat", "bitmap=sometimes", "bitmap", "fuse", "fuse=carrier-pigeon", "threads=0", "threads=9999", "threads",
        "timeout=-1", "reconnect=soon", "ro=1", "acl=1", "fsname=x", "subtype=x", "fd=3"}) {
    MountConfig config;
    const Status status = ApplyMountOptions(std::string("rw,") + option, config);
    EXPECT_EQ(status.code(), EINVAL) << option;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(option).substr(0, 2))) << option;
  }
}

}  // namespace
}  // namespace termfs::mount
