// SPDX-License-Identifier: Apache-2.0
//
// What a person is told of an error.
#pragma once

#include <string>

#include "base/result.h"

namespace termfs::mount {

// The error's text, and the errno's where that adds something. It adds nothing to EUCLEAN, whose own text speaks of a
// structure, and nothing behind advice: what to do follows a semicolon, and what is in front of it says why.
std::string ErrorText(const Status& error);

}  // namespace termfs::mount
