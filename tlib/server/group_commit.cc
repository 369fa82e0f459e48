// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/group_commit.h"

namespace termfs::tlib::server {

Status GroupCommit::Run() {
  Member self{.task = &Task::Current(), .done = false, .status = {}};
  mutex_.Lock();
  waiting_.push_back(&self);
  while (!self.done) {
    if (running_) {
      mutex_.Unlock();
      Task::Park();  // bounded by the action, which is device I/O
      mutex_.Lock();
      continue;
    }
    running_ = true;
    std::vector<Member*> round;
    round.swap(waiting_);
    mutex_.Unlock();
    const Status status = action_();
    mutex_.Lock();
    running_ = false;
    for (Member* member : round) {
      member->status = status;
      member->done = true;
      if (member != &self) {
        member->task->Unpark();  // under the mutex: the member cannot leave before
      }
    }
    if (!waiting_.empty()) {
      waiting_.front()->task->Unpark();  // leads the next round
    }
  }
  mutex_.Unlock();
  return std::move(self.status);
}

}  // namespace termfs::tlib::server
