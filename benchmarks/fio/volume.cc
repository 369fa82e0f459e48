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

constexpr int kLook = 1000;  // milliseconds; to see whether a read is late
constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

termfs::fs::client::Caller Self() { return {.uid = geteuid(), .gid = getegid()}; }

}  // namespace

// Of one job, and on its thread. Reads are under way in one lane, the rest is carried out by threads.
struct FioVolume {
 public:
  Status Connect(const std::string& directory, unsigned reads, size_t largest) {
    ASSIGN_OR_RETURN(nic_, termfs::driver::CreateSoftNic());
    termfs::fs::client::MountOptions options;
    options.session.program = "fio";
    options.max_io_bytes = kLargest;
    ASSIGN_OR_RETURN(files_, FileSystem::Connect(*nic_, directory, options, nullptr));
    ASSIGN_OR_RETURN(threads_, LaneThreads::Create(*files_));
    place_bytes_ = std::min(largest, kLargest);
    ASSIGN_OR_RETURN(own_, files_->OpenLane(reads * place_bytes_));
    for (unsigned i = reads; i-- > 0;) {
      free_places_.push_back(i * place_bytes_);
    }
    return Status::Ok();
  }

  bool Begin(FioRequest& request) {
    if (request.kind != kFioRead) {
      const Status begun =
          threads_->Begin(request);  // which writes the request's results, so they are not touched here
      if (!begun.ok()) {
        request.error = begun.code();
      }
      return !begun.ok();
    }
    request.done = 0;
    request.error = 0;
    request.at_end = false;
    request.place = free_places_.back();
    free_places_.pop_back();
    reads_under_way_++;
    return GoOn(request);
  }

  // As FioReap.
  int Reap(unsigned least, unsigned most, bool wait, FioRequest** reaped) {
    do {
      if (const Status taken = TakeIn(wait && done_.size() < least); !taken.ok()) {
        return -taken.code();
      }
    } while (wait && done_.size() < least && under_way() > 0);
    const size_t number = std::min<size_t>(most, done_.size());
    std::copy_n(done_.begin(), number, reaped);
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(number));
    return static_cast<int>(number);
  }

  void CarryOut(FioRequest& request) { termfs::benchmarks::fio::CarryOut(*files_, *own_, request); }

  Result<uint64_t> SizeOf(std::string_view path) {
    ASSIGN_OR_RETURN(const Place place, Find(path, false));
    ASSIGN_OR_RETURN(const auto found, files_->Lookup(*own_, place.parent, place.name));
    return found.size;
  }

  Result<FioFile> Open(std::string_view path, int flags) {
    ASSIGN_OR_RETURN(const Place place, Find(path, (flags & O_CREAT) != 0));
    if ((flags & O_CREAT) != 0) {
      ASSIGN_OR_RETURN(const auto made,
                       files_->Create(*own_, Self(), place.parent, place.name, S_IFREG | kFileMode, flags));
      return FioFile{made.first.ino, made.second};
    }
    ASSIGN_OR_RETURN(const auto found, files_->Lookup(*own_, place.parent, place.name));
    ASSIGN_OR_RETURN(OpenFile * opened, files_->Open(*own_, found.ino, flags));
    return FioFile{found.ino, opened};
  }

  void Close(const FioFile& file) { files_->Release(*own_, file.open); }

  Status Unlink(std::string_view path) {
    ASSIGN_OR_RETURN(const Place place, Find(path, false));
    return files_->Unlink(*own_, place.parent, place.name);
  }

  Status Resize(const FioFile& file, uint64_t size) {
    termfs::fs::client::SetAttributes what;
    what.size = size;
    return files_->Set(*own_, file.ino, what, file.open).status();
  }

  Status Allocate(const FioFile& file, int mode, uint64_t size) {
    return files_->Allocate(*own_, file.open, mode, 0, size);
  }

 private:
  size_t under_way() const { return reads_under_way_ + threads_->under_way(); }

  // Reads piece by piece for as long as each is there at once. True: the request is done.
  bool GoOn(FioRequest& request) {
    while (request.error == 0 && !request.at_end && request.done < request.length) {
      const auto begun = files_->BeginRead(*own_, {.file = request.file->open,
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
    reads_under_way_--;
    free_places_.push_back(request.place);
    return true;
  }

  size_t NextPiece(const FioRequest& request) const { return std::min(place_bytes_, request.length - request.done); }

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
    const bool only_reads = threads_->under_way() == 0;
    if (wait && !only_reads) {
      WaitForAny();
    }
    threads_->TakeEnded(done_);
    return TakeReads(wait && only_reads);
  }

  void WaitForAny() {
    termfs::tlib::client::ReadsFds reads;
    if (files_->ArmReads(*own_, reads)) {
      std::array<pollfd, 3> fds{{{reads[0], POLLIN, 0}, {reads[1], POLLIN, 0}, {threads_->fd(), POLLIN, 0}}};
      poll(fds.data(), fds.size(), kLook);  // whatever it says: it is asked again
    }
    files_->DisarmReads(*own_);
  }

  Status TakeReads(bool wait) {
    arrived_.clear();
    RETURN_IF_ERROR(wait ? files_->AwaitReads(*own_, arrived_) : files_->PollReads(*own_, arrived_));
    for (const ReadDone& read : arrived_) {  // all of them before the lane is used again
      Take(RequestOf(read), read.data);
    }
    for (const ReadDone& read : arrived_) {
      if (FioRequest& request = RequestOf(read); GoOn(request)) {
        done_.push_back(&request);
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
    auto found = files_->Lookup(*own_, place.parent, place.name);
    if (make && found.status().code() == ENOENT) {
      found = files_->MakeDirectory(*own_, Self(), place.parent, place.name, S_IFDIR | kDirectoryMode);
    }
    if (make && found.status().code() == EEXIST) {  // another job was faster
      found = files_->Lookup(*own_, place.parent, place.name);
    }
    RETURN_IF_ERROR(found.status());
    return found->ino;
  }

  std::unique_ptr<termfs::driver::Nic> nic_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<Lane> own_;  // the job's thread's
  std::unique_ptr<LaneThreads> threads_;
  size_t place_bytes_ = 0;
  std::vector<size_t> free_places_;  // of own_
  std::vector<ReadDone> arrived_;
  std::vector<FioRequest*> done_;  // and not reaped
  size_t reads_under_way_ = 0;
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
  const auto found = volume->SizeOf(path);
  *size = found.ok() ? *found : 0;
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
  volume->Close(*file);
  delete file;
}

int FioUnlink(FioVolume* volume, const char* path) { return volume->Unlink(path).code(); }

int FioResize(FioVolume* volume, FioFile* file, uint64_t size) { return volume->Resize(*file, size).code(); }

int FioAllocate(FioVolume* volume, FioFile* file, int mode, uint64_t size) {
  return volume->Allocate(*file, mode, size).code();
}

void FioCarryOut(FioVolume* volume, FioRequest* request) { volume->CarryOut(*request); }

bool FioBegin(FioVolume* volume, FioRequest* request) { return volume->Begin(*request); }

int FioReap(FioVolume* volume, unsigned least, unsigned most, bool wait, FioRequest** reaped) {
  return volume->Reap(least, most, wait, reaped);
}
