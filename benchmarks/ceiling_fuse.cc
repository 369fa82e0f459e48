// SPDX-License-Identifier: Apache-2.0
//
// ceiling_fuse MOUNTPOINT MIB [THREADS [auto|io_uring|device]]: the least that a FUSE file system can do: one file,
// `data`, in memory, read and written through the same libfuse, mount options and thread loop (mount/fuse_server.h) as
// termfs, and through libfuse's callbacks alone. What it reaches is the ceiling of any such mount on this machine. Runs
// in the foreground until it is unmounted or gets SIGTERM.
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "mount/daemon.h"
#include "mount/fuse_server.h"

namespace {

using termfs::Result;
using termfs::Status;
using termfs::mount::FuseServer;
using termfs::mount::FuseThread;

constexpr fuse_ino_t kFile = 2;
constexpr char kName[] = "data";

struct Ceiling {
  char* data = nullptr;
  size_t size = 0;
};

Ceiling& Of(fuse_req_t request) { return *static_cast<Ceiling*>(fuse_req_userdata(request)); }

struct stat StatOf(fuse_req_t request, fuse_ino_t ino) {
  struct stat st {};
  st.st_ino = ino;
  st.st_mode = ino == kFile ? S_IFREG | 0644 : S_IFDIR | 0755;
  st.st_nlink = ino == kFile ? 1 : 2;
  st.st_size = ino == kFile ? static_cast<off_t>(Of(request).size) : 0;
  st.st_blksize = 128 << 10;
  return st;
}

void OnInit(void*, fuse_conn_info* connection) {
  termfs::mount::Agree(connection, FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS);
}

void OnLookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (parent != FUSE_ROOT_ID || std::strcmp(name, kName) != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = StatOf(request, kFile);
  fuse_reply_entry(request, &entry);
}

void OnGetAttributes(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  const struct stat st = StatOf(request, ino);
  fuse_reply_attr(request, &st, 0);
}

void OnSetAttributes(fuse_req_t request, fuse_ino_t ino, struct stat*, int, fuse_file_info*) {
  OnGetAttributes(request, ino, nullptr);  // the file keeps its size
}

void OnOpen(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  termfs::mount::MakeDirect(info);
  fuse_reply_open(request, info);
}

void OnRead(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  const Ceiling& ceiling = Of(request);
  const size_t start = std::min(static_cast<size_t>(offset), ceiling.size);
  fuse_reply_buf(request, ceiling.data + start, std::min(size, ceiling.size - start));
}

void OnWrite(fuse_req_t request, fuse_ino_t, const char* data, size_t size, off_t offset, fuse_file_info*) {
  const Ceiling& ceiling = Of(request);
  const size_t start = std::min(static_cast<size_t>(offset), ceiling.size);
  const size_t length = std::min(size, ceiling.size - start);
  if (length < size) {
    fuse_reply_err(request, ENOSPC);
    return;
  }
  std::memcpy(ceiling.data + start, FuseServer::Written(data, length).data(), length);
  fuse_reply_write(request, length);
}

class CeilingThread : public FuseThread {
 public:
  static Result<std::unique_ptr<FuseThread>> Create() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      return termfs::ErrnoStatus("allocate a thread's buffer");
    }
    return std::unique_ptr<FuseThread>(new CeilingThread(static_cast<std::byte*>(memory)));
  }
  ~CeilingThread() override { munmap(memory_, kBytes); }
  std::span<std::byte> buffer() override { return {memory_, kBytes}; }

 private:
  static constexpr size_t kBytes = termfs::mount::kRequestBufferBytes;
  explicit CeilingThread(std::byte* memory) : memory_(memory) {}
  std::byte* const memory_;
};

fuse_lowlevel_ops Operations() {
  fuse_lowlevel_ops table{};
  table.init = &OnInit;
  table.lookup = &OnLookup;
  table.getattr = &OnGetAttributes;
  table.setattr = &OnSetAttributes;
  table.open = &OnOpen;
  table.read = &OnRead;
  table.write = &OnWrite;
  return table;
}

Status Run(const FuseServer::Options& options, size_t bytes) {
  ASSIGN_OR_RETURN(const termfs::UniqueFd signals, termfs::mount::BlockEndSignals());
  Ceiling ceiling;
  ceiling.size = bytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return termfs::ErrnoStatus("allocate the file");
  }
  ceiling.data = static_cast<char*>(memory);
  ASSIGN_OR_RETURN(const auto server, FuseServer::Create(Operations(), &ceiling, options));
  RETURN_IF_ERROR(server->Mount());
  RETURN_IF_ERROR(server->Start(&CeilingThread::Create));
  pollfd ends[2] = {{.fd = server->ended_fd(), .events = POLLIN, .revents = 0},
                    {.fd = signals.get(), .events = POLLIN, .revents = 0}};
  while (poll(ends, 2, 60'000) <= 0) {
  }
  RETURN_IF_ERROR(server->Unmount(/*lazily=*/true));
  return server->Stop(std::chrono::seconds(10));
}

bool ParseArgument(const char* text, unsigned& value) {
  const char* end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, value);
  return parsed.ec == std::errc() && parsed.ptr == end && value > 0;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned mebibytes = 0;
  FuseServer::Options options;
  options.mount_options = {"default_permissions", "allow_other", "fsname=ceiling", "subtype=termfs_ceiling"};
  if (argc < 3 || argc > 5 || !ParseArgument(argv[2], mebibytes) ||
      (argc > 3 && !ParseArgument(argv[3], options.threads)) ||
      (argc > 4 && !termfs::mount::ParseTransport(argv[4], options.transport))) {
    std::fprintf(stderr, "usage: ceiling_fuse MOUNTPOINT MIB [THREADS [auto|io_uring|device]]\n");
    return 2;
  }
  options.mountpoint = argv[1];
  const Status status = Run(options, size_t{mebibytes} << 20);
  if (!status.ok()) {
    std::fprintf(stderr, "ceiling_fuse: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
