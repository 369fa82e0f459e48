// SPDX-License-Identifier: Apache-2.0
#include "mount/error_text.h"

namespace termfs::mount {

std::string ErrorText(const Status& error) {
  const std::string text(error.message());
  const size_t advice = text.rfind("; ");
  const size_t reason = text.rfind(": ");
  const bool ends_in_advice = advice != std::string::npos && (reason == std::string::npos || reason < advice);
  return error.code() == EUCLEAN || ends_in_advice ? text : error.ToString();
}

}  // namespace termfs::mount
