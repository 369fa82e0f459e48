// SPDX-License-Identifier: Apache-2.0
//
// Names as a terminal may show them.
#pragma once

#include <string>
#include <string_view>

namespace termfs::mount {

// A '?' for each control character, of ASCII and of Unicode in UTF-8: a name could move the cursor or change the
// terminal with them. Other bytes stay, whatever the encoding.
std::string Printable(std::string_view name);

}  // namespace termfs::mount
