// SPDX-License-Identifier: Apache-2.0
//
// First writes that clients answer before they are here: what the service does for the promise, and how it waits for
// them (newborns.h). They are carried out in write.cc.
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kPagesPromised = Newborns::kMost * (kMaxFirstWrite >> kPageBits);
// Pages, beyond those that are about to be given to somebody.
constexpr uint64_t kScarce = 2 * kPagesPromised;
constexpr uint64_t kPlenty = 4 * kPagesPromised;

}  // namespace

// Whoever claims space after this looks whether there are newborns.
bool FileService::ExpectFirst(const Request& request, uint64_t ino) {
  if (!request.session.caches.load(std::memory_order_relaxed) || request.session.client == 0 ||
      !newborns_.Add(ino, request.session.id, request.session.client)) {
    return false;
  }
  if (no_promises_.load() != 0 || !names_.IsRoomy() || names_.StatFs().free_pages < kPlenty + claimed_pages_.load()) {
    newborns_.Forgo(ino, request.session.id);
    return false;
  }
  return true;
}

bool FileService::HasQuota(uint64_t ino) {
  const auto quota = names_.FindQuota(ino);
  return !quota.ok() || quota->has_value();
}

Status FileService::AwaitAllFirst(const Request& request) {
  coherence_.AwaitEarlier();
  return newborns_.any() ? newborns_.SettleAll(AskerOf(request)) : Status::Ok();
}

Status FileService::KeepPromisedSpace(const Request& request, Inode& inode) {
  if (!FirstMayCome() || names_.StatFs().free_pages >= kScarce + claimed_pages_.load() || newborns_.Has(inode.ino)) {
    return Status::Ok();
  }
  return AwaitAllFirst(request);
}

Status FileService::HearOfFirst(const Request& request, uint64_t ino, FirstWrite first) {
  if (first == FirstWrite::kForgone) {
    newborns_.Forgo(ino, request.session.id);
  }
  return first == FirstWrite::kPosted ? newborns_.AwaitPosted(ino, AskerOf(request)) : Status::Ok();
}

Status FileService::AwaitFirstToChange(const Request& request, uint64_t ino) {
  if (!FirstMayCome()) {
    return Status::Ok();
  }
  const auto now = request.Blocking([&] { return names_.GetAttr(ino); });
  return now.ok() ? AwaitFirst(request, true, *now).status() : Status::Ok();  // else it is gone
}

// A newborn is empty. It may have ceased to be one, by a write that had returned before, since it was read.
Result<bool> FileService::AwaitFirst(const Request& request, bool may_come, const metadata::Attributes& read) {
  if (!may_come || read.type() != metadata::FileType::kRegular || read.size != 0) {
    return false;
  }
  coherence_.AwaitEarlier();
  RETURN_IF_ERROR(AwaitFirst(request, read.ino));
  return true;
}

Status FileService::TakeFirst(const Request& request, uint64_t ino) {
  const Session& session = request.session;
  if (newborns_.Arrived(ino, session.id, session.client) || request.receipt != nullptr) {
    return Status::Ok();
  }
  // Of a file that an earlier server knew, which its client may speak of as long as everybody waits for it.
  if (request.call.mark().sent_before && newborns_.ArrivedLate(ino, session.id, session.client)) {
    if (!IsLate(request, ino)) {
      return Status::Ok();
    }
    newborns_.Done(ino, Newborns::Outcome::kSettled);
  }
  return Status::Error(ESTALE, "a write that was answered comes too late: others have used the file since");
}

// Nobody waits at a file that is not empty, whichever server has found its client to be late.
bool FileService::IsLate(const Request& request, uint64_t ino) {
  if (!clients_.Holds(request.session.client)) {
    return true;
  }
  const auto now = request.Blocking([&] { return names_.GetAttr(ino); });
  return !now.ok() || now->size != 0;
}

void FileService::EndFirst(const Request& request, uint64_t ino, bool written) {
  const bool settled = written || coherence_.TellFailedWrite(request.session.id, ino);
  newborns_.Done(ino, settled ? Newborns::Outcome::kSettled : Newborns::Outcome::kComesAgain);
}

}  // namespace termfs::fs::server
