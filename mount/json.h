// SPDX-License-Identifier: Apache-2.0
//
// JsonWriter: builds one JSON text, member after member. It does not check that the calls nest; the tests do.
//
//   JsonWriter json;
//   json.BeginObject().Member("uuid", uuid).Key("sessions").BeginArray();
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace termfs::mount {

class JsonWriter {
 public:
  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view name);
  JsonWriter& String(std::string_view value);  // bytes that are not UTF-8 become U+FFFD
  JsonWriter& Number(uint64_t value);
  JsonWriter& Number(double value);  // null when it is not finite

  JsonWriter& Member(std::string_view name, std::string_view value) { return Key(name).String(value); }
  JsonWriter& Member(std::string_view name, uint64_t value) { return Key(name).Number(value); }
  JsonWriter& Member(std::string_view name, double value) { return Key(name).Number(value); }

  const std::string& text() const { return text_; }

 private:
  void Separate();
  std::string text_;
  bool first_ = true;  // in the innermost object or array
};

}  // namespace termfs::mount
