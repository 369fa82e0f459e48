// SPDX-License-Identifier: Apache-2.0
#include "mount/front_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "mount/mount_point.h"

namespace termfs::mount {

void FrontEnd::RememberOpen(fs::client::OpenFile* file) {
  MutexLock lock(mutex_);
  open_.insert(file);
}

void FrontEnd::Release(fs::client::Lane& lane, fs::client::OpenFile* file) {
  if (file == nullptr) {  // a directory that had been removed when it was opened
    return;
  }
  {
    MutexLock lock(mutex_);
    open_.erase(file);
  }
  file_system_.Release(lane, file);
}

void FrontEnd::ReleaseAll(fs::client::Lane& lane) {
  std::unordered_set<fs::client::OpenFile*> left;
  {
    MutexLock lock(mutex_);
    left.swap(open_);
    for (const auto& [ino, held] : held_) {
      left.insert(held.file);
    }
    held_.clear();
  }
  for (fs::client::OpenFile* file : left) {
    file_system_.Release(lane, file);
  }
}

void FrontEnd::Hold(fs::client::Lane& lane, uint64_t ino) {
  {
    MutexLock lock(mutex_);
    if (const auto known = held_.find(ino); known != held_.end()) {
      ++known->second.lookups;
      return;
    }
  }
  const Result<fs::client::OpenFile*> opened = file_system_.Open(lane, ino, O_PATH);
  if (!opened.ok()) {
    return;
  }
  {
    MutexLock lock(mutex_);
    const auto [held, is_new] = held_.try_emplace(ino, Held{.file = *opened});
    ++held->second.lookups;
    if (is_new) {
      return;
    }
  }
  file_system_.Release(lane, *opened);  // another thread was faster
}

void FrontEnd::Forget(fs::client::Lane& lane, uint64_t ino, uint64_t count) {
  directories_.Forget(ino, count);
  fs::client::OpenFile* file = nullptr;
  {
    MutexLock lock(mutex_);
    const auto held = held_.find(ino);
    if (held == held_.end()) {
      return;
    }
    held->second.lookups -= std::min(held->second.lookups, count);
    if (held->second.lookups > 0) {
      return;
    }
    file = held->second.file;
    held_.erase(held);
  }
  file_system_.Release(lane, file);
}

// ESTALE may have other reasons; then the kernel walks the path once more.
Status FrontEnd::InDirectory(uint64_t directory, Status status) {
  if (status.code() == ESTALE && file_system_.GetAttributes(lane(), directory).status().code() == ESTALE) {
    return Status::Error(ENOENT, "the directory has been removed");
  }
  return status;
}

Status FrontEnd::ClearPrivileges(uint64_t ino) {
  ASSIGN_OR_RETURN(const fs::Attributes now, file_system_.GetAttributes(lane(), ino));
  if (fs::WithoutPrivileges(now.mode) == now.mode) {
    return Status::Ok();
  }
  fs::client::SetAttributes set;
  set.clears_privileges = true;
  Status cleared = file_system_.Set(lane(), ino, set, nullptr).status();
  cache_.InvalidateAttributes(ino, std::chrono::steady_clock::now());
  return cleared;
}

void FrontEnd::FollowFlags() {
  const std::optional<MountEntry> entry = server_ != nullptr ? server_->Entry() : std::nullopt;
  if (!entry) {
    return;
  }
  sync_.store(entry->Has("sync"), std::memory_order_relaxed);
  sync_names_.store(entry->Has("sync") || entry->Has("dirsync"), std::memory_order_relaxed);
  file_system_.MoveAccessTimes(
      {.files = !entry->Has("noatime") && !entry->Has("ro"), .directories = !entry->Has("nodiratime")});
}

std::string FrontEnd::Describe(uid_t user) {
  FollowFlags();
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "pid {}\npid_namespace {}\naddress {}\ntransport {}\n", getpid(), PidNamespace(),
                 ToLine(tlib::ToString(address_)), file_system_.transport());
  const bool may_know = user == 0 || user == geteuid();
  if (address_.remote() && may_know) {
    fmt::format_to(out, "secret {}\n", ToLine(address_.secret_file));
  }
  std::vector<std::string> shown = options_;
  std::erase_if(shown, [may_know](const std::string& option) { return !may_know && option.starts_with("secret="); });
  fmt::format_to(out, "options {}\n", ToLine(fmt::format("{}", fmt::join(shown, ","))));
  if (server_ != nullptr) {
    fmt::format_to(out, "fuse {}\nlibfuse {}\nfuse_requests_total {}\nfuse_ring_requests_total {}\n",
                   server_->transport(), fuse_pkgversion(), server_->requests(), server_->ring_requests());
  }
  for (const std::vector<MetricValue>& values : {file_system_.Metrics(), metrics_.Snapshot()}) {
    for (const MetricValue& value : values) {
      fmt::format_to(out, "{} {}{}\n", value.name, value.value, BucketsToText(value.buckets));
    }
  }
  return text;
}

}  // namespace termfs::mount
