// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/fio/volume.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "driver/softnic/softnic.h"
#include "fs/client/file_system.h"

using termfs::MutexLock;
using termfs::Result;
using termfs::Status;
using termfs::fs::client::FileSystem;
using termfs::fs::client::Lane;
using termfs::fs::client::OpenFile;

struct FioFile {
  uint64_t ino;
  OpenFile* open;
};

namespace {

constexpr size_t kLargest = 1U << 20;  // bytes of one operation of the client library
constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

termfs::fs::client::Caller Self() { return {.uid = geteuid(), .gid = getegid()}; }

// First come, first served; the order in which they are done is another.
class RequestQueue {
 public:
  void Push(FioRequest* request) EXCLUDES(mutex_) {
    request->next = nullptr;
    const MutexLock lock(mutex_);
    (last_ == nullptr ? first_ : last_->next) = request;
    last_ = request;
    count_++;
    if (waiting_for_ != 0 && count_ >= waiting_for_) {
      changed_.NotifyOne();
    }
  }

  // Null when the queue is closed.
  FioRequest* Take() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (first_ == nullptr && !closed_) {
      waiting_for_ = 1;
      changed_.WaitFor(mutex_, std::chrono::seconds(1));
    }
    return first_ == nullptr ? nullptr : TakeFirst();
  }

  // One taker at a time.
  unsigned TakeSome(unsigned least, unsigned most, int64_t nanoseconds, FioRequest** taken) EXCLUDES(mutex_) {
    using std::chrono::steady_clock;
    const auto deadline = steady_clock::now() + std::chrono::nanoseconds(std::max<int64_t>(nanoseconds, 0));
    const MutexLock lock(mutex_);
    while (count_ < least && (nanoseconds < 0 || steady_clock::now() < deadline)) {
      waiting_for_ = least;
      changed_.WaitUntil(mutex_, nanoseconds < 0 ? steady_clock::now() + std::chrono::seconds(1) : deadline);
    }
    waiting_for_ = 0;
    unsigned number = 0;
    for (; number < most && first_ != nullptr; number++) {
      taken[number] = TakeFirst();
    }
    return number;
  }

  void Close() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

 private:
  FioRequest* TakeFirst() REQUIRES(mutex_) {
    FioRequest* const request = first_;
    first_ = request->next;
    if (first_ == nullptr) {
      last_ = nullptr;
    }
    count_--;
    return request;
  }

  termfs::Mutex mutex_;
  termfs::CondVar changed_;
  FioRequest* first_ GUARDED_BY(mutex_) = nullptr;
  FioRequest* last_ GUARDED_BY(mutex_) = nullptr;
  unsigned count_ GUARDED_BY(mutex_) = 0;
  unsigned waiting_for_ GUARDED_BY(mutex_) = 0;  // somebody may be asleep until there are so many
  bool closed_ GUARDED_BY(mutex_) = false;
};

Status ReadPiece(FileSystem& volume, Lane& lane, FioRequest& request, size_t length) {
  ASSIGN_OR_RETURN(const auto got, volume.Read(lane, request.file->open, request.offset + request.done, length));
  std::memcpy(static_cast<std::byte*>(request.buffer) + request.done, got.data(), got.size());
  request.done += got.size();
  return Status::Ok();
}

Status WritePiece(FileSystem& volume, Lane& lane, FioRequest& request, size_t length) {
  const std::span data(static_cast<const std::byte*>(request.buffer) + request.done, length);
  RETURN_IF_ERROR(volume.Write(lane, request.file->open, request.offset + request.done, data, false, false));
  request.done += length;
  return Status::Ok();
}

Status CarryOut(FileSystem& volume, Lane& lane, FioRequest& request) {
  if (request.kind == kFioSync || request.kind == kFioDataSync) {
    return volume.Sync(lane, request.file->open, request.kind == kFioDataSync);
  }
  const auto piece = request.kind == kFioRead ? ReadPiece : WritePiece;
  while (request.done < request.length) {
    const size_t before = request.done;
    const size_t length = std::min(kLargest, request.length - before);
    RETURN_IF_ERROR(piece(volume, lane, request, length));
    if (request.done - before < length) {
      break;  // the end of the file
    }
  }
  return Status::Ok();
}

void CarryOutToTheEnd(FileSystem& volume, Lane& lane, FioRequest& request) {
  request.done = 0;
  request.error = CarryOut(volume, lane, request).code();
}

}  // namespace

struct FioVolume {
  std::unique_ptr<termfs::driver::Nic> nic;
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<Lane> own;  // the job's thread's
  std::vector<std::unique_ptr<Lane>> lanes;
  RequestQueue submitted;
  RequestQueue done;
  std::vector<std::jthread> threads;

  Status Connect(const std::string& directory, unsigned number_of_lanes) {
    ASSIGN_OR_RETURN(nic, termfs::driver::CreateSoftNic());
    termfs::fs::client::MountOptions options;
    options.session.program = "fio";
    options.max_io_bytes = kLargest;
    ASSIGN_OR_RETURN(files, FileSystem::Connect(*nic, directory, options, nullptr));
    ASSIGN_OR_RETURN(own, files->OpenLane());
    for (unsigned i = 0; i < number_of_lanes; i++) {
      ASSIGN_OR_RETURN(auto lane, files->OpenLane());
      lanes.push_back(std::move(lane));
    }
    for (const auto& lane : lanes) {
      threads.emplace_back([this, &lane] { Serve(*lane); });
    }
    return Status::Ok();
  }

  ~FioVolume() { submitted.Close(); }

  void Serve(Lane& lane) {
    while (FioRequest* const request = submitted.Take()) {
      CarryOutToTheEnd(*files, lane, *request);
      done.Push(request);
    }
  }

  struct Place {
    uint64_t parent;
    std::string_view name;
  };

  // Where `path` is, or is to be. `make`: also the directories on the way.
  Result<Place> Find(std::string_view path, bool make) {
    Place place{termfs::fs::kRootInode, {}};
    while (!path.empty()) {
      const size_t length = std::min(path.find('/'), path.size());
      const std::string_view part = path.substr(0, length);
      path.remove_prefix(std::min(length + 1, path.size()));
      if (part.empty()) {
        continue;
      }
      if (!place.name.empty()) {
        ASSIGN_OR_RETURN(place.parent, Enter(place, make));
      }
      place.name = part;
    }
    if (place.name.empty()) {
      return Status::Error(EISDIR, "a file's path is empty");
    }
    return place;
  }

  Result<uint64_t> Enter(const Place& place, bool make) {
    auto found = files->Lookup(*own, place.parent, place.name);
    if (make && found.status().code() == ENOENT) {
      found = files->MakeDirectory(*own, Self(), place.parent, place.name, S_IFDIR | kDirectoryMode);
    }
    if (make && found.status().code() == EEXIST) {  // another job was faster
      found = files->Lookup(*own, place.parent, place.name);
    }
    RETURN_IF_ERROR(found.status());
    return found->ino;
  }

  Result<FioFile> Open(std::string_view path, int flags) {
    ASSIGN_OR_RETURN(const Place place, Find(path, (flags & O_CREAT) != 0));
    if ((flags & O_CREAT) != 0) {
      ASSIGN_OR_RETURN(const auto made,
                       files->Create(*own, Self(), place.parent, place.name, S_IFREG | kFileMode, flags));
      return FioFile{made.first.ino, made.second};
    }
    ASSIGN_OR_RETURN(const auto found, files->Lookup(*own, place.parent, place.name));
    ASSIGN_OR_RETURN(OpenFile * opened, files->Open(*own, found.ino, flags));
    return FioFile{found.ino, opened};
  }
};

int FioConnect(const char* directory, unsigned lanes, FioVolume** volume, char* why, size_t why_bytes) {
  auto connected = std::make_unique<FioVolume>();
  const Status status = connected->Connect(directory, lanes);
  if (!status.ok()) {
    const std::string text = status.ToString();
    why[text.copy(why, why_bytes - 1)] = '\0';
    return status.code();
  }
  *volume = connected.release();
  return 0;
}

void FioDisconnect(FioVolume* volume) { delete volume; }

int FioSizeOf(FioVolume* volume, const char* path, uint64_t* size) {
  *size = 0;
  const auto place = volume->Find(path, false);
  if (!place.ok()) {
    return place.status().code();
  }
  const auto found = volume->files->Lookup(*volume->own, place.value().parent, place.value().name);
  if (found.ok()) {
    *size = found.value().size;
  }
  return found.status().code();
}

int FioOpen(FioVolume* volume, const char* path, int flags, FioFile** file) {
  auto opened = volume->Open(path, flags);
  if (opened.ok()) {
    *file = new FioFile(*opened);
  }
  return opened.status().code();
}

void FioClose(FioVolume* volume, FioFile* file) {
  volume->files->Release(*volume->own, file->open);
  delete file;
}

int FioUnlink(FioVolume* volume, const char* path) {
  const auto place = volume->Find(path, false);
  return place.ok() ? volume->files->Unlink(*volume->own, place.value().parent, place.value().name).code()
                    : place.status().code();
}

int FioResize(FioVolume* volume, FioFile* file, uint64_t size) {
  termfs::fs::client::SetAttributes what;
  what.size = size;
  return volume->files->Set(*volume->own, file->ino, what, file->open).status().code();
}

int FioAllocate(FioVolume* volume, FioFile* file, int mode, uint64_t size) {
  return volume->files->Allocate(*volume->own, file->open, mode, 0, size).code();
}

void FioCarryOut(FioVolume* volume, FioRequest* request) { CarryOutToTheEnd(*volume->files, *volume->own, *request); }

void FioSubmit(FioVolume* volume, FioRequest* request) { volume->submitted.Push(request); }

unsigned FioReap(FioVolume* volume, unsigned least, unsigned most, int64_t nanoseconds, FioRequest** reaped) {
  return volume->done.TakeSome(least, most, nanoseconds, reaped);
}
