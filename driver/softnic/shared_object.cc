// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/shared_object.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/page.h"
#include "base/unnamed_file.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace termfs::driver::softnic {
namespace {

constexpr unsigned int kMfdNoexecSeal = 8;  // MFD_NOEXEC_SEAL, Linux 6.3; not in the C library's headers yet
// Of memory that the kernel clears at once: a huge page. A signal does not restart more, and others get the CPU.
constexpr size_t kAllocateStep = size_t{2} << 20;

int CreateMemfd(const std::string& name) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | kMfdNoexecSeal);
  if (fd >= 0 || errno != EINVAL) {
    return fd;
  }
  return memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// Whether madvise(MADV_HUGEPAGE) means anything for shared memory here.
bool HugePagesOnAdvice() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re"),
                                                   fclose);
  char line[128];
  return file && fgets(line, sizeof(line), file.get()) != nullptr && strstr(line, "[advise]") != nullptr;
}

void WarnUnlocked(int error) {
  static std::atomic<bool> warned{false};  // one line per process says it all
  if (!warned.exchange(true, std::memory_order_relaxed)) {
    LOG_WARNING("shared memory stays unlocked and may be swapped out: {}; raise the memlock limit", strerror(error));
  }
}

}  // namespace

Result<std::shared_ptr<SharedObject>> SharedObject::Create(const SharedObjectOptions& options) {
  if (options.bytes == 0 || options.bytes > (size_t{1} << 46)) {
    return Status::Error(EINVAL, "shared memory of " + std::to_string(options.bytes) + " bytes");
  }
  std::shared_ptr<SharedObject> object(new SharedObject);
  object->size_ = RoundUpToPage(options.bytes);
  object->peers_may_write_ = options.peers_may_write;
  object->path_ = options.path;
  object->resumed_ = options.resume;
  RETURN_IF_ERROR(options.path.empty() ? object->OpenMemfd(options) : object->OpenFile(options));
  void* mapped = mmap(nullptr, object->size_, PROT_READ | PROT_WRITE, MAP_SHARED, object->fd_.get(), 0);
  if (mapped == MAP_FAILED) {
    return ErrnoStatus("map shared memory " + options.name);
  }
  object->data_ = static_cast<std::byte*>(mapped);
  if (options.path.empty()) {
    RETURN_IF_ERROR(object->Seal(options.punchable));
  }
  if (options.sparse) {
    object->MakeSparse();
  } else if (HugePagesOnAdvice() && object->size_ >= (size_t{2} << 20)) {
    madvise(object->data_, object->size_, MADV_HUGEPAGE);  // advice: without it everything works
  }
  if (options.allocate) {
    RETURN_IF_ERROR(object->Allocate(0, object->size_));
  }
  return object;
}

Status SharedObject::OpenMemfd(const SharedObjectOptions& options) {
  fd_ = UniqueFd(CreateMemfd(options.name));
  if (!fd_.valid()) {
    return ErrnoStatus("create shared memory " + options.name);
  }
  if (ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) {
    return ErrnoStatus("size shared memory " + options.name);
  }
  return Status::Ok();
}

Status SharedObject::OpenFile(const SharedObjectOptions& options) {
  TERMFS_CHECK(!options.peers_may_write);
  const char* const path = options.path.c_str();
  if (!options.resume) {
    // The mode forbids what this descriptor may do: nobody but us has one for writing.
    ASSIGN_OR_RETURN(fd_, OpenUnnamed(options.path, 0400));
    return ftruncate(fd_.get(), static_cast<off_t>(size_)) == 0 ? Status::Ok() : ErrnoStatus("size " + options.path);
  }
  fd_ = UniqueFd(open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!fd_.valid() && errno == EACCES) {  // the owner's own mode stands in the way of who is not root
    if (chmod(path, 0600) == 0) {
      fd_ = UniqueFd(open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
      chmod(path, 0400);
    }
  }
  struct stat found {};
  if (!fd_.valid() || fstat(fd_.get(), &found) != 0) {
    return Status::Error(EUCLEAN, "open " + options.path + ": " + strerror(errno));
  }
  if (!S_ISREG(found.st_mode) || static_cast<size_t>(found.st_size) != size_) {
    return Status::Error(
        EUCLEAN, options.path + " has " + std::to_string(found.st_size) + " bytes, not " + std::to_string(size_));
  }
  if (found.st_uid != geteuid() || (found.st_mode & 0077) != 0 || found.st_nlink != 1) {
    return Status::Error(EUCLEAN, options.path + ", of user " + std::to_string(found.st_uid) +
                                      ", is not this user's alone, so another process may resize it; remove it");
  }
  return Status::Ok();
}

Status SharedObject::Keep() const { return path_.empty() || resumed_ ? Status::Ok() : NameFile(fd_, path_); }

SharedObject::~SharedObject() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

Status SharedObject::Seal(bool punchable) {
  // Before any descriptor leaves: a peer may neither resize nor add seals of its own.
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (!peers_may_write_ && !punchable) {
    seals |= F_SEAL_FUTURE_WRITE;
  }
  if (fchmod(fd_.get(), 0400) != 0) {
    return ErrnoStatus("restrict the mode of shared memory");
  }
  if (fcntl(fd_.get(), F_ADD_SEALS, seals) != 0) {
    return ErrnoStatus("seal shared memory");
  }
  return Status::Ok();
}

Result<UniqueFd> SharedObject::ReadOnlyFd() const {
  char path[32];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_.get());
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("reopen shared memory read-only");
  }
  return fd;
}

Result<UniqueFd> SharedObject::ReadWriteFd() const {
  if (!peers_may_write_) {
    return Status::Error(EPERM, "hand out shared memory for writing that was made for reading");
  }
  UniqueFd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoStatus("duplicate the descriptor of shared memory");
  }
  return fd;
}

Status SharedObject::Allocate(size_t offset, size_t length) {
  TERMFS_CHECK(offset <= size_ && length <= size_ - offset);
  // The kernel rather kills a process than refuses pages of shared memory, so ask before.
  const MemoryBound bound = TightestMemory(MemoryBounds());
  if (length > bound.available && !IsAllocated(offset, length)) {
    return Status::Error(ENOMEM, "allocate " + std::to_string(length >> 20) + " MiB of shared memory, of which " +
                                     bound.of + " has " + std::to_string(bound.available >> 20) + " MiB");
  }
  size_t done = 0;
  while (done < length) {
    const size_t step = std::min(length - done, kAllocateStep);
    if (fallocate(fd_.get(), 0, static_cast<off_t>(offset + done), static_cast<off_t>(step)) == 0) {
      Lock(offset + done, step);
      done += step;
      std::this_thread::yield();
      continue;
    }
    if (errno == EINTR) {
      continue;
    }
    const int error = errno;
    if (!resumed_) {
      Punch(offset, done);
    }
    const std::string what = "allocate " + std::to_string(length >> 10) + " KiB of shared memory";
    return error == ENOSPC && !path_.empty()
               ? Status::Error(ENOMEM, what + ": the tmpfs of " + path_ + " is full; enlarge it or lower dram-ratio")
               : Status::Errno(error == ENOSPC ? ENOMEM : error, what);
  }
  return Status::Ok();
}

// A lock for each page would make a mapping of each. This one locks what is touched, and lets go of what is punched.
void SharedObject::MakeSparse() {
  sparse_ = true;
  madvise(data_, size_, MADV_NOHUGEPAGE);  // where the tmpfs would have them; without it everything works
  if (mlock2(data_, size_, MLOCK_ONFAULT) != 0) {
    WarnUnlocked(errno);
  }
}

// By touching, as fallocate does not know of MADV_NOHUGEPAGE.
Status SharedObject::AllocateSparse(size_t offset, size_t length) {
  TERMFS_CHECK(sparse_ && offset <= size_ && length <= size_ - offset);
  while (madvise(data_ + offset, length, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR) {
      continue;
    }
    if (errno != EFAULT && errno != ENOMEM) {
      return ErrnoStatus("allocate a page of shared memory");
    }
    return Status::Error(ENOMEM, "allocate a page of shared memory: the tmpfs or the machine is full");
  }
  return Status::Ok();
}

bool SharedObject::IsAllocated(size_t offset, size_t length) const {
  return resumed_ && lseek(fd_.get(), static_cast<off_t>(offset), SEEK_DATA) == static_cast<off_t>(offset) &&
         lseek(fd_.get(), static_cast<off_t>(offset), SEEK_HOLE) >= static_cast<off_t>(offset + length);
}

void SharedObject::Lock(size_t offset, size_t length) {
  if (mlock(data_ + offset, length) == 0) {
    return;  // locking has filled the page tables as well
  }
  WarnUnlocked(errno);
  madvise(data_ + offset, length, MADV_POPULATE_WRITE);  // saves faults later; not needed
}

void SharedObject::Punch(size_t offset, size_t length) {
  if (length == 0) {
    return;
  }
  if (!sparse_) {
    munlock(data_ + offset, length);
  }
  while (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(length)) != 0) {
    if (errno != EINTR) {
      LOG_WARNING("give back {} bytes of shared memory: {}", length, strerror(errno));
      return;
    }
  }
}

}  // namespace termfs::driver::softnic
