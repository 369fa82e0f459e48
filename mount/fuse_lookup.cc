// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {

void OnLookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FrontEnd& front = FrontEnd::Of(request);
  ReplyEntry(request, front.InDirectory(parent, front.file_system().Lookup(FrontEnd::lane(), parent, name)));
}

void OnForget(fuse_req_t request, fuse_ino_t ino, uint64_t count) {
  FrontEnd::Of(request).Forget(FrontEnd::lane(), ino, count);
  fuse_reply_none(request);
}

void OnForgetMany(fuse_req_t request, size_t count, fuse_forget_data* forgets) {
  for (const fuse_forget_data& forget : std::span(forgets, count)) {
    FrontEnd::Of(request).Forget(FrontEnd::lane(), forget.ino, forget.nlookup);
  }
  fuse_reply_none(request);
}

void OnReadLink(fuse_req_t request, fuse_ino_t ino) {
  const Result<std::string> target = FrontEnd::Of(request).file_system().ReadLink(FrontEnd::lane(), ino);
  if (!target.ok()) {
    return Reply(request, target.status());
  }
  fuse_reply_readlink(request, target->c_str());
}

}  // namespace termfs::mount
