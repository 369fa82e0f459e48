// SPDX-License-Identifier: Apache-2.0
#include "mount/json.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace termfs::mount {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
size_t Utf8Length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : (lead & 0xe0) == 0xc0 ? 2 : (lead & 0xf0) == 0xe0 ? 3 : 4;
  if (length == 1) {
    return 1;
  }
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) {
    return 0;
  }
  uint32_t point = lead & (0xffU >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) {
      return 0;
    }
    point = (point << 6) | (next & 0x3fU);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool outside = point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff);
  return overlong || outside ? 0 : length;
}

}  // namespace

void JsonWriter::Separate() {
  if (!first_) {
    text_ += ',';
  }
  first_ = false;
}

JsonWriter& JsonWriter::BeginObject() {
  Separate();
  text_ += '{';
  first_ = true;
  return *this;
}
JsonWriter& JsonWriter::EndObject() {
  text_ += '}';
  first_ = false;
  return *this;
}
JsonWriter& JsonWriter::BeginArray() {
  Separate();
  text_ += '[';
  first_ = true;
  return *this;
}
JsonWriter& JsonWriter::EndArray() {
  text_ += ']';
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  String(name);
  text_ += ':';
  first_ = true;  // its value needs no comma
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Separate();
  text_ += '"';
  while (!value.empty()) {
    const size_t length = Utf8Length(value);
    const char c = value[0];
    if (length == 0) {
      text_ += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(text_), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text_ += value.substr(0, length);
    }
    value.remove_prefix(length == 0 ? 1 : length);
  }
  text_ += '"';
  return *this;
}

JsonWriter& JsonWriter::Number(uint64_t value) {
  Separate();
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}
JsonWriter& JsonWriter::Number(double value) {
  Separate();
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(text_), "{}", value);
  } else {
    text_ += "null";
  }
  return *this;
}

}  // namespace termfs::mount
