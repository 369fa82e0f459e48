// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/workloads/flow.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "base/unique_fd.h"

namespace termfs::benchmarks {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kContents = 1U << 20;

// What an operation moved, or nothing when there was no file for it.
using Moved = std::optional<uint64_t>;

}  // namespace

// One thread's part: its descriptors, its buffer, its random numbers.
class Flow::Worker {
 public:
  Worker(Flow& flow, uint64_t number) : flow_(flow), random_(flow.seed_ + 1 + number) {
    uint64_t largest = kContents;
    for (const Operation& operation : flow.personality_.operations) {
      largest = std::max(largest, operation.bytes);
    }
    buffer_.resize(largest);
    for (size_t i = 0; i < buffer_.size(); i += kContents) {
      std::memcpy(&buffer_[i], flow.contents_.data(), std::min<size_t>(kContents, buffer_.size() - i));
    }
  }

  ~Worker() {
    for (Descriptor& descriptor : descriptors_) {
      CloseIfOpen(descriptor);
    }
  }

  // False: it was given up.
  Result<bool> Turn() {
    for (const Operation& operation : flow_.personality_.operations) {
      if (flow_.over()) {
        return true;
      }
      const auto start = steady_clock::now();
      ASSIGN_OR_RETURN(const Moved moved, CarryOut(operation));
      if (!moved) {
        return false;
      }
      ActionCounts& counts = flow_.counts_[static_cast<size_t>(operation.action)];
      counts.latency.Record(static_cast<uint64_t>((steady_clock::now() - start).count()));
      counts.bytes.Add(*moved);
    }
    flow_.turns_.Add();
    return true;
  }

 private:
  struct Descriptor {
    UniqueFd fd;
    FileSet* files = nullptr;
    uint32_t file = 0;
  };

  Result<Moved> CarryOut(const Operation& operation) {
    switch (operation.action) {
      case Action::kCreate:
        return Create(operation);
      case Action::kOpen:
        return Open(operation);
      case Action::kDelete:
        return Delete(SetOf(operation));
      case Action::kStat:
        return Stat(SetOf(operation));
      case Action::kClose:
        return Close(descriptors_[operation.fd]);
      case Action::kSync:
        return Sync(descriptors_[operation.fd]);
      case Action::kReadWhole:
        return ReadWhole(operation);
      case Action::kWriteWhole:
        return WriteWhole(operation);
      case Action::kAppendRandom:
        return AppendRandom(operation);
    }
    return Status::Error(EINVAL, "no such action");
  }

  FileSet& SetOf(const Operation& operation) { return *flow_.file_sets_[operation.files]; }

  static Status Failed(const char* what, const Descriptor& descriptor) {
    return ErrnoStatus(what + (" " + descriptor.files->PathOf(descriptor.file)));
  }

  static void CloseIfOpen(Descriptor& descriptor) {
    if (descriptor.fd.valid()) {
      descriptor.fd = UniqueFd();
      descriptor.files->GiveBack(descriptor.file);
    }
  }

  Result<Moved> Create(const Operation& operation) {
    Descriptor& descriptor = descriptors_[operation.fd];
    CloseIfOpen(descriptor);
    FileSet& files = SetOf(operation);
    const auto file = files.TakeAbsent();
    if (!file) {
      return Moved();
    }
    descriptor.files = &files;
    descriptor.file = *file;
    descriptor.fd = UniqueFd(open(files.PathOf(*file).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!descriptor.fd.valid()) {
      return Failed("create", descriptor);
    }
    files.PutBorrowed(*file);
    return Moved(0);
  }

  Result<Moved> Open(const Operation& operation) {
    Descriptor& descriptor = descriptors_[operation.fd];
    CloseIfOpen(descriptor);
    FileSet& files = SetOf(operation);
    const auto file = files.Borrow(random_);
    if (!file) {
      return Moved();
    }
    descriptor.files = &files;
    descriptor.file = *file;
    descriptor.fd = UniqueFd(open(files.PathOf(*file).c_str(), O_RDWR | O_CLOEXEC));
    if (!descriptor.fd.valid()) {
      return Failed("open", descriptor);
    }
    return Moved(0);
  }

  Result<Moved> Delete(FileSet& files) {
    const auto file = files.TakePresent(random_);
    if (!file) {
      return Moved();
    }
    if (unlink(files.PathOf(*file).c_str()) != 0) {
      return ErrnoStatus("delete " + files.PathOf(*file));
    }
    files.PutAbsent(*file);
    return Moved(0);
  }

  Result<Moved> Stat(FileSet& files) {
    const auto file = files.Borrow(random_);
    if (!file) {
      return Moved();
    }
    struct stat found;
    const int outcome = stat(files.PathOf(*file).c_str(), &found);
    const Status status = outcome == 0 ? Status::Ok() : ErrnoStatus("stat " + files.PathOf(*file));
    files.GiveBack(*file);
    RETURN_IF_ERROR(status);
    return Moved(0);
  }

  static Result<Moved> Close(Descriptor& descriptor) {
    const int outcome = close(descriptor.fd.release());
    const Status status = outcome == 0 ? Status::Ok() : Failed("close", descriptor);
    descriptor.files->GiveBack(descriptor.file);
    RETURN_IF_ERROR(status);
    return Moved(0);
  }

  static Result<Moved> Sync(Descriptor& descriptor) {
    if (fsync(descriptor.fd.get()) != 0) {
      return Failed("sync", descriptor);
    }
    return Moved(0);
  }

  Result<Moved> ReadWhole(const Operation& operation) {
    Descriptor& descriptor = descriptors_[operation.fd];
    uint64_t total = 0;
    for (;;) {
      const ssize_t got = pread(descriptor.fd.get(), buffer_.data(), operation.bytes, static_cast<off_t>(total));
      if (got < 0) {
        return Failed("read", descriptor);
      }
      if (got == 0) {
        return Moved(total);
      }
      total += static_cast<uint64_t>(got);
    }
  }

  Result<Moved> WriteWhole(const Operation& operation) {
    Descriptor& descriptor = descriptors_[operation.fd];
    const Descriptor& source = descriptors_[operation.source];
    const uint64_t size = source.files->SizeOf(source.file);
    uint64_t total = 0;
    while (total < size) {
      const ssize_t put = pwrite(descriptor.fd.get(), buffer_.data(), std::min(operation.bytes, size - total),
                                 static_cast<off_t>(total));
      if (put < 0) {
        return Failed("write", descriptor);
      }
      total += static_cast<uint64_t>(put);
    }
    return Moved(total);
  }

  // With lseek and write, as programs do that did not open it with O_APPEND.
  Result<Moved> AppendRandom(const Operation& operation) {
    Descriptor& descriptor = descriptors_[operation.fd];
    if (operation.files >= 0 && !descriptor.fd.valid()) {
      ASSIGN_OR_RETURN(const Moved opened, Open(operation));
      if (!opened) {
        return opened;
      }
    }
    const uint64_t size = 1 + random_.Below(operation.bytes);
    if (lseek(descriptor.fd.get(), 0, SEEK_END) < 0) {
      return Failed("seek in", descriptor);
    }
    const ssize_t put = write(descriptor.fd.get(), buffer_.data(), size);
    if (put < 0) {
      return Failed("append to", descriptor);
    }
    return Moved(static_cast<uint64_t>(put));
  }

  Flow& flow_;
  Random random_;
  std::vector<char> buffer_;
  std::array<Descriptor, kDescriptors> descriptors_;
};

Flow::Flow(Personality personality, std::string directory, uint64_t files, uint64_t seed)
    : personality_(std::move(personality)), random_(seed), seed_(seed), contents_(kContents) {
  for (char& byte : contents_) {
    byte = static_cast<char>(random_());
  }
  for (const FileSetSpec& spec : personality_.file_sets) {
    const uint64_t by_default = files != 0 ? files : personality_.files;
    file_sets_.push_back(std::make_unique<FileSet>(directory + "/" + spec.name, spec,
                                                   spec.entries != 0 ? spec.entries : by_default, random_));
  }
}

Status Flow::Prepare() {
  for (const auto& files : file_sets_) {
    RETURN_IF_ERROR(files->Prepare(contents_, random_));
  }
  return Status::Ok();
}

bool Flow::over() const {
  return stopped_.load(std::memory_order_relaxed) || interrupted_->load(std::memory_order_relaxed) ||
         steady_clock::now() >= end_;
}

void Flow::Work(uint64_t number) {
  Worker worker(*this, number);
  while (!over()) {
    const auto turn = worker.Turn();
    if (!turn.ok()) {
      stopped_ = true;
      const MutexLock lock(mutex_);
      outcome_ = outcome_.ok() ? turn.status() : outcome_;
    } else if (!turn.value() && personality_.ends_with_files) {
      stopped_ = true;
    } else if (!turn.value()) {
      turns_given_up_.Add();
      std::this_thread::yield();
    }
  }
}

Status Flow::Run(uint64_t threads, std::chrono::seconds limit, const std::atomic<bool>& interrupted) {
  interrupted_ = &interrupted;
  const auto start = steady_clock::now();
  end_ = start + limit;
  {
    std::vector<std::jthread> workers;
    for (uint64_t i = 0; i < threads; i++) {
      workers.emplace_back([this, i] { Work(i); });
    }
  }
  seconds_ = std::chrono::duration<double>(steady_clock::now() - start).count();
  const MutexLock lock(mutex_);
  return outcome_;
}

}  // namespace termfs::benchmarks
