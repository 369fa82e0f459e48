// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/workloads/file_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/unique_fd.h"

namespace termfs::benchmarks {
namespace {

uint64_t DrawSize(const FileSetSpec& spec, Random& random) {
  if (spec.gamma == 0) {
    return static_cast<uint64_t>(spec.mean);
  }
  std::gamma_distribution<double> sizes(spec.gamma, spec.mean / spec.gamma);
  return static_cast<uint64_t>(std::llround(sizes(random)));
}

Status WriteFile(const std::string& path, uint64_t size, const std::vector<char>& contents) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return ErrnoStatus("make " + path);
  }
  while (size > 0) {
    const ssize_t written = write(fd.get(), contents.data(), std::min<uint64_t>(size, contents.size()));
    if (written < 0) {
      return ErrnoStatus("write " + path);
    }
    size -= static_cast<uint64_t>(written);
  }
  return Status::Ok();
}

}  // namespace

FileSet::FileSet(std::string root, const FileSetSpec& spec, uint64_t entries, Random& random)
    : root_(std::move(root)),
      width_(spec.width),
      present_at_start_(entries * spec.present / 100),
      users_(entries, 0),
      place_(entries, 0) {
  for (uint64_t i = 0; i < entries; i++) {
    sizes_.push_back(DrawSize(spec, random));
  }
}

Status FileSet::Prepare(const std::vector<char>& contents, Random& random) {
  std::vector<uint32_t> order;
  for (uint32_t file = 0; file < sizes_.size(); file++) {
    order.push_back(file);
    std::error_code error;
    std::filesystem::create_directories(DirectoryOf(file), error);
    if (error) {
      return Status::Errno(error.value(), "make " + DirectoryOf(file));
    }
  }
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i = 0; i < order.size(); i++) {
    const bool present = i < present_at_start_;
    if (present) {
      RETURN_IF_ERROR(WriteFile(PathOf(order[i]), SizeOf(order[i]), contents));
    }
    const MutexLock lock(mutex_);
    if (present) {
      AddPresent(order[i]);
    } else {
      absent_.push_back(order[i]);
    }
  }
  return Status::Ok();
}

// `width` files to a directory, and `width` directories to a directory: the digits of its number lead to it.
std::string FileSet::DirectoryOf(uint32_t file) const {
  std::string path;
  for (uint64_t number = file / width_; number > 0; number /= width_) {
    path = "/d" + std::to_string(number % width_) + path;
  }
  return root_ + path;
}

std::string FileSet::PathOf(uint32_t file) const { return DirectoryOf(file) + "/f" + std::to_string(file); }

std::optional<uint32_t> FileSet::Borrow(Random& random) {
  const MutexLock lock(mutex_);
  if (present_.empty()) {
    return std::nullopt;
  }
  const uint32_t file = present_[random.Below(present_.size())];
  users_[file]++;
  return file;
}

void FileSet::GiveBack(uint32_t file) {
  const MutexLock lock(mutex_);
  users_[file]--;
}

std::optional<uint32_t> FileSet::TakeAbsent() {
  const MutexLock lock(mutex_);
  if (absent_.empty()) {
    return std::nullopt;
  }
  const uint32_t file = absent_.back();
  absent_.pop_back();
  return file;
}

std::optional<uint32_t> FileSet::TakePresent(Random& random) {
  const MutexLock lock(mutex_);
  const size_t start = present_.empty() ? 0 : random.Below(present_.size());
  for (size_t i = 0; i < present_.size(); i++) {
    const uint32_t file = present_[(start + i) % present_.size()];
    if (users_[file] == 0) {
      RemovePresent(file);
      return file;
    }
  }
  return std::nullopt;
}

void FileSet::PutBorrowed(uint32_t file) {
  const MutexLock lock(mutex_);
  AddPresent(file);
  users_[file] = 1;
}

void FileSet::PutAbsent(uint32_t file) {
  const MutexLock lock(mutex_);
  absent_.push_back(file);
}

void FileSet::AddPresent(uint32_t file) {
  place_[file] = static_cast<uint32_t>(present_.size());
  present_.push_back(file);
}

void FileSet::RemovePresent(uint32_t file) {
  const uint32_t last = present_.back();
  present_[place_[file]] = last;
  place_[last] = place_[file];
  present_.pop_back();
}

}  // namespace termfs::benchmarks
