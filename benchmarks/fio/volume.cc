// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/fio/volume.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/fio/lane_threads.h"
#include "driver/softnic/softnic.h"
#include "fs/client/file_system.h"

using termfs::Result;
using termfs::Status;
using termfs::benchmarks::fio::kLargest;
using termfs::benchmarks::fio::LaneThreads;
using termfs::fs::client::FileSystem;
using termfs::fs::client::Lane;
using termfs::fs::client::OpenFile;
using termfs::fs::client::ReadDone;

namespace {

constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

termfs::fs::client::Caller Self() { return {.uid = geteuid(), .gid = getegid()}; }

}  // namespace

struct FioVolume {
  std::unique_ptr<termfs::driver::Nic> nic;
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<Lane> own;  // the job's thread's
  std::unique_ptr<LaneThreads> threads;
  std::chrono::milliseconds longest_wait{};
  size_t place_bytes = 0;
  std::vector<size_t> free_places;  // of `own`
  std::vector<ReadDone> arrived;
  std::vector<FioRequest*> done;  // and not reaped
  size_t reads_under_way = 0;

  Status Connect(const std::string& directory, unsigned reads, size_t largest) {
    ASSIGN_OR_RETURN(nic, termfs::driver::CreateSoftNic());
    termfs::fs::client::MountOptions options;
    options.session.program = "fio";
    options.max_io_bytes = kLargest;
    longest_wait = options.session.call_timeout;
    ASSIGN_OR_RETURN(files, FileSystem::Connect(*nic, directory, options, nullptr));
    ASSIGN_OR_RETURN(threads, LaneThreads::Create(*files));
    place_bytes = std::min(largest, kLargest);
    ASSIGN_OR_RETURN(own, files->OpenLane(reads * place_bytes));
    for (unsigned i = reads; i-- > 0;) {
      free_places.push_back(i * place_bytes);
    }
    return Status::Ok();
  }

  size_t under_way() const { return reads_under_way + threads->under_way(); }

  bool Begin(FioRequest& request) {
    if (request.kind != kFioRead) {
      const Status begun = threads->Begin(request);  // which writes the request's results, so they are not touched here
      if (!begun.ok()) {
        request.error = begun.code();
      }
      return !begun.ok();
    }
    request.done = 0;
    request.error = 0;
    request.at_end = false;
    request.place = free_places.back();
    free_places.pop_back();
    reads_under_way++;
    return GoOn(request);
  }

  // Reads piece by piece for as long as each is there at once. True: the request is done.
  bool GoOn(FioRequest& request) {
    while (request.error == 0 && !request.at_end && request.done < request.length) {
      const auto begun = files->BeginRead(*own, {.file = request.file->open,
                                                 .offset = request.offset + request.done,
                                                 .size = NextPiece(request),
                                                 .place = request.place,
                                                 .token = reinterpret_cast<uintptr_t>(&request)});
      if (begun.ok() && !begun->has_value()) {
        return false;
      }
      if (!Take(request, begun.ok() ? Result<std::span<const std::byte>>(**begun) : begun.status())) {
        break;
      }
    }
    reads_under_way--;
    free_places.push_back(request.place);
    return true;
  }

  size_t NextPiece(const FioRequest& request) const { return std::min(place_bytes, request.length - request.done); }

  // False: there is no next piece.
  bool Take(FioRequest& request, const Result<std::span<const std::byte>>& bytes) {
    request.error = bytes.status().code();
    if (!bytes.ok()) {
      return false;
    }
    const size_t asked = NextPiece(request);
    std::memcpy(static_cast<std::byte*>(request.buffer) + request.done, bytes->data(), bytes->size());
    request.done += bytes->size();
    request.at_end = bytes->size() < asked;
    return !request.at_end;
  }

  // Takes in what has come. `wait`: not before something has, if anything is under way; with threads it may be nothing.
  Status TakeIn(bool wait) {
    const bool only_reads = threads->under_way() == 0;
    if (wait && !only_reads) {
      WaitForAny();
    }
    threads->TakeEnded(done);
    return TakeReads(wait && only_reads);
  }

  void WaitForAny() {
    termfs::tlib::client::ReadsFds reads;
    if (files->ArmReads(*own, reads)) {
      std::array<pollfd, 3> fds{{{reads[0], POLLIN, 0}, {reads[1], POLLIN, 0}, {threads->fd(), POLLIN, 0}}};
      poll(fds.data(), fds.size(), static_cast<int>(longest_wait.count()));  // whatever it says: it is asked again
    }
    files->DisarmReads(*own);
  }

  Status TakeReads(bool wait) {
    arrived.clear();
    RETURN_IF_ERROR(wait ? files->AwaitReads(*own, arrived) : files->PollReads(*own, arrived));
    for (const ReadDone& read : arrived) {  // all of them before the lane is used again
      Take(RequestOf(read), read.data);
    }
    for (const ReadDone& read : arrived) {
      if (FioRequest& request = RequestOf(read); GoOn(request)) {
        done.push_back(&request);
      }
    }
    return Status::Ok();
  }

  static FioRequest& RequestOf(const ReadDone& read) {
    return *reinterpret_cast<FioRequest*>(static_cast<uintptr_t>(read.token));
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

int FioConnect(const char* directory, unsigned reads, size_t largest, FioVolume** volume, char* why, size_t why_bytes) {
  auto connected = std::make_unique<FioVolume>();
  const Status status = connected->Connect(directory, reads, largest);
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

void FioCarryOut(FioVolume* volume, FioRequest* request) {
  termfs::benchmarks::fio::CarryOut(*volume->files, *volume->own, *request);
}

bool FioBegin(FioVolume* volume, FioRequest* request) { return volume->Begin(*request); }

int FioReap(FioVolume* volume, unsigned least, unsigned most, bool wait, FioRequest** reaped) {
  std::vector<FioRequest*>& done = volume->done;
  do {
    if (const Status taken = volume->TakeIn(wait && done.size() < least); !taken.ok()) {
      return -taken.code();
    }
  } while (wait && done.size() < least && volume->under_way() > 0);
  const size_t number = std::min<size_t>(most, done.size());
  std::copy_n(done.begin(), number, reaped);
  done.erase(done.begin(), done.begin() + static_cast<ptrdiff_t>(number));
  return static_cast<int>(number);
}
