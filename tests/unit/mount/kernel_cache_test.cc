// SPDX-License-Identifier: Apache-2.0
#include "mount/kernel_cache.h"

#include <gtest/gtest.h>

namespace termfs::mount {

TEST(KernelCacheNotifier, GivesEntriesOnlyWhileThereIsASession) {
  const fuse_lowlevel_ops none{};
  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  ASSERT_EQ(fuse_opt_add_arg(&arguments, "test"), 0);
  fuse_session* const session = fuse_session_new(&arguments, &none, sizeof(none), nullptr);
  fuse_opt_free_args(&arguments);
  ASSERT_NE(session, nullptr);
  KernelCacheNotifier cache;
  cache.HasEpochs();
  EXPECT_FALSE(cache.AboutToGive(1, std::chrono::seconds(1))) << "nobody could take it back";
  cache.Attach(session, "");
  EXPECT_TRUE(cache.AboutToGive(1, std::chrono::seconds(1)));
  cache.Detach();
  EXPECT_FALSE(cache.AboutToGive(1, std::chrono::seconds(1)));
  fuse_session_destroy(session);
}

}  // namespace termfs::mount
