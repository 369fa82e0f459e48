// SPDX-License-Identifier: Apache-2.0
#include "mount/printable.h"

namespace termfs::mount {

std::string Printable(std::string_view name) {
  std::string text;
  text.reserve(name.size());
  for (size_t i = 0; i < name.size(); i++) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const auto next = static_cast<unsigned char>(i + 1 < name.size() ? name[i + 1] : '\0');
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      text += '?';
      i++;
    } else {
      text += byte < ' ' || byte == 0x7F ? '?' : name[i];
    }
  }
  return text;
}

}  // namespace termfs::mount
