// SPDX-License-Identifier: Apache-2.0
#include "mount/hidden_words.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace termfs::mount {
namespace {

// What the command line shows afterwards; the words that the program has are as they were.
std::vector<std::string> Shown(std::vector<std::string> words) {
  const std::vector<std::string> before = words;
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  HiddenWords hidden(static_cast<int>(words.size()), argv.data());
  for (size_t i = 0; i < before.size(); i++) {
    EXPECT_EQ(hidden.argv()[i], before[i]);
  }
  EXPECT_EQ(hidden.argv()[before.size()], nullptr);
  return words;
}

using Words = std::vector<std::string>;

TEST(HiddenWords, SecretsAreHidden) {
  EXPECT_EQ(Shown({"termfs", "mount", "--secret", "/root/s", "/mnt"}),
            Words({"termfs", "mount", "--secret", "*******", "/mnt"}));
  EXPECT_EQ(Shown({"termfs", "--secret=/a,b"}), Words({"termfs", "--secret=****"}));
  EXPECT_EQ(Shown({"termfs", "-o", "ro,secret=/s,noatime"}), Words({"termfs", "-o", "ro,secret=**,noatime"}));
  EXPECT_EQ(Shown({"termfs", "-osecret=/s,secret=/t"}), Words({"termfs", "-osecret=**,secret=**"}));
}

TEST(HiddenWords, NothingElseIs) {
  const Words words = {"termfs", "serve", "/srv/secret=x", "--secrets", "x", "-o", "nosecret=x", "secret", "--secret"};
  EXPECT_EQ(Shown(words), words);
  EXPECT_EQ(Shown({"termfs"}), Words({"termfs"}));
}

}  // namespace
}  // namespace termfs::mount
