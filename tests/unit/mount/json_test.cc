// SPDX-License-Identifier: Apache-2.0
#include "mount/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace termfs::mount {
namespace {

TEST(JsonWriter, SeparatesMembersAndElements) {
  JsonWriter json;
  json.BeginObject().Member("a", uint64_t{1}).Key("b").BeginArray();
  json.BeginObject().EndObject().BeginObject().Member("c", "d").EndObject().EndArray().Member("e", 0.5).EndObject();
  EXPECT_EQ(json.text(), R"({"a":1,"b":[{},{"c":"d"}],"e":0.5})");
}

TEST(JsonWriter, String_EscapesWhatJsonCannotHold) {
  JsonWriter json;
  json.String("quote\" back\\ line\n caf\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(json.text(), "\"quote\\\" back\\\\ line\\u000a caf\xc3\xa9 \xf0\x9f\x98\x80\"");
}

TEST(JsonWriter, String_ReplacesBrokenUtf8) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xff", "\\ufffd"},
      {"\xc3", "\\ufffd"},                                   // cut short
      {"\xc0\xaf", "\\ufffd\\ufffd"},                        // overlong
      {"\xe0\x80\xaf", "\\ufffd\\ufffd\\ufffd"},             // overlong
      {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},             // a surrogate
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},  // beyond the last code point
      {"\xc3(", "\\ufffd("},
  };
  for (const auto& [bytes, text] : cases) {
    JsonWriter json;
    json.String(bytes);
    EXPECT_EQ(json.text(), "\"" + text + "\"");
  }
}

TEST(JsonWriter, Number_WritesNullForWhatIsNone) {
  JsonWriter json;
  json.BeginArray().Number(std::numeric_limits<double>::quiet_NaN()).Number(UINT64_MAX).EndArray();
  EXPECT_EQ(json.text(), "[null,18446744073709551615]");
}

}  // namespace
}  // namespace termfs::mount
