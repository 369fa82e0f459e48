// SPDX-License-Identifier: Apache-2.0
#include "fs/client/lost_channel.h"

#include <sys/mman.h>

namespace termfs::fs::client {

Result<std::unique_ptr<tlib::client::Channel>> LostChannel::Create(Status why, size_t buffer_bytes) {
  std::unique_ptr<LostChannel> channel(new LostChannel(std::move(why)));
  void* const memory = mmap(nullptr, buffer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus("allocate the buffer of a channel without a session");
  }
  channel->buffer_ = {static_cast<std::byte*>(memory), buffer_bytes};
  return std::unique_ptr<tlib::client::Channel>(std::move(channel));
}

LostChannel::~LostChannel() {
  if (!buffer_.empty()) {
    munmap(buffer_.data(), buffer_.size());
  }
}

}  // namespace termfs::fs::client
