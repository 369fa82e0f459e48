// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/wire_end.h"

#include <utility>

namespace termfs::driver::softnic {

CompletionPath::CompletionPath(QueuePairCounts* owner, std::shared_ptr<CompletionInlet> sends,
                               std::shared_ptr<CompletionInlet> receives, bool shares_receives)
    : sends_(std::move(sends)), receives_(std::move(receives)), shares_receives_(shares_receives), owner_(owner) {}

// After a completion with an error the end counts as failed.
void CompletionPath::NoteEnd(WcStatus status) {
  if (status != WcStatus::kSuccess) {
    failed_.store(true, std::memory_order_release);
  }
}

void CompletionPath::OnSend(const WorkCompletion& completion) {
  NoteEnd(completion.status);
  if (owner_ != nullptr) {
    sends_->Put(owner_, completion);
  }
}

void CompletionPath::OnReceive(const WorkCompletion& completion) {
  NoteEnd(completion.status);
  if (owner_ != nullptr || shares_receives_) {
    receives_->Put(owner_, completion);
  }
}

void CompletionPath::ReportEnd(uint32_t number) {
  failed_.store(true, std::memory_order_release);
  if (shares_receives_ && owner_ != nullptr && !std::exchange(told_end_, true)) {
    WorkCompletion completion;
    completion.id = kNoReceive;
    completion.status = WcStatus::kWrFlushErr;
    completion.opcode = Opcode::kRecv;
    completion.qp_num = number;
    receives_->Put(owner_, completion);
  }
}

void CompletionPath::Wake() {
  sends_->Wake();
  if (receives_ != sends_) {
    receives_->Wake();
  }
}

}  // namespace termfs::driver::softnic
