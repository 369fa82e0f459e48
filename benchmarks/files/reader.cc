// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/files/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>

#include "benchmarks/known_bytes.h"
#include "benchmarks/must.h"
#include "driver/softnic/softnic.h"
#include "fs/client/file_system.h"

namespace termfs::benchmarks::files {
namespace {

using fs::client::FileSystem;
using fs::client::Lane;
using fs::client::OpenFile;
using std::chrono::steady_clock;
using term::Child;

constexpr size_t kChunk = 1U << 20;
constexpr size_t kDrawn = 1U << 17;  // before a turn
constexpr uint64_t kSeedOfHotness = 1;

enum class Order : uint32_t { kFill, kRun, kSync };
struct Command {
  Order order = Order::kRun;
  Turn turn{};
};

std::string FileName(uint64_t file) { return "piece" + std::to_string(file); }

// What one process has open of one volume.
class Volume {
 public:
  Volume(driver::Nic& nic, const Place& place) : place_(place) {
    fs::client::MountOptions options;
    options.session.program = "file_bench";
    library_ = Must(FileSystem::Connect(nic, place.volume, options, nullptr));
    lane_ = Must(library_->OpenLane());
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageSize, kChunk)));
  }
  ~Volume() {
    for (OpenFile* file : open_) {
      library_->Release(*lane_, file);
    }
  }
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;

  void Fill(uint64_t files) {
    for (uint64_t file = 0; file < files; file++) {
      OpenFile* const made =
          Must(library_->Create(*lane_, {}, fs::kRootInode, FileName(file), S_IFREG | 0644, O_RDWR | O_CREAT | O_TRUNC))
              .second;
      for (uint64_t offset = 0; offset < kFileBytes; offset += kChunk) {
        FillKnown(file, offset, lane_->buffer().first(kChunk));
        Must(library_->Write(*lane_, made, offset, lane_->buffer().first(kChunk), {}));
      }
      Must(library_->Sync(*lane_, made, false));
      library_->Release(*lane_, made);
    }
  }

  void Open(uint64_t files) {
    for (uint64_t file = open_.size(); file < files; file++) {
      const fs::Attributes found = Must(library_->Lookup(*lane_, fs::kRootInode, FileName(file)));
      open_.push_back(Must(library_->Open(*lane_, found.ino, O_RDWR)));
      if (!place_.mount.empty()) {
        const std::string path = place_.mount + "/" + FileName(file);
        mounted_.emplace_back(open64(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
        if (!mounted_.back().valid()) {
          Die(ErrnoStatus("open " + path));
        }
      }
    }
  }

  void Sync() {
    for (OpenFile* const file : open_) {
      Must(library_->Sync(*lane_, file, false));
    }
  }

  void Access(const Turn& turn, uint64_t at) {
    const uint64_t file = at / kFileBytes;
    const uint64_t offset = at % kFileBytes;
    const auto read = turn.way == Way::kMount ? AccessMount(turn, file, offset) : AccessLibrary(turn, file, offset);
    if (!turn.writes) {
      CheckWord(file, offset, read, 0, turn.bytes);
      CheckWord(file, offset, read, turn.bytes - kKnownWord, turn.bytes);
    }
  }

  std::pair<uint64_t, uint64_t> PagesAndHits() const {
    std::pair<uint64_t, uint64_t> counts;
    for (const MetricValue& metric : library_->Metrics()) {
      if (metric.name == "read_pages_total") {
        counts.first = metric.value;
      } else if (metric.name == "read_hit_pages_total") {
        counts.second = metric.value;
      }
    }
    return counts;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::span<const std::byte> AccessMount(const Turn& turn, uint64_t file, uint64_t offset) {
    const int handle = mounted_[file].get();
    const std::span<std::byte> piece(memory_.get(), turn.bytes);
    ssize_t done = 0;
    if (turn.writes) {
      FillKnown(file, offset, piece);
      done = pwrite64(handle, piece.data(), piece.size(), static_cast<off64_t>(offset));
    } else {
      done = pread64(handle, piece.data(), piece.size(), static_cast<off64_t>(offset));
    }
    if (done != static_cast<ssize_t>(piece.size())) {
      Die(ErrnoStatus("access a file of " + place_.mount));
    }
    return piece;
  }

  std::span<const std::byte> AccessLibrary(const Turn& turn, uint64_t file, uint64_t offset) {
    if (!turn.writes) {
      return Must(library_->Read(*lane_, open_[file], offset, turn.bytes));
    }
    const std::span<std::byte> piece = lane_->buffer().first(turn.bytes);
    FillKnown(file, offset, piece);
    Must(library_->Write(*lane_, open_[file], offset, piece, {}));
    return piece;
  }

  void CheckWord(uint64_t file, uint64_t offset, std::span<const std::byte> read, size_t at, size_t wanted) const {
    uint64_t word = 0;
    if (read.size() == wanted) {
      std::memcpy(&word, read.data() + at, sizeof(word));
    }
    if (word != KnownWord(file, offset + at)) {
      Die(Status::Error(EIO,
                        place_.name + ": " + FileName(file) + " holds wrong bytes at " + std::to_string(offset + at)));
    }
  }

  const Place& place_;
  std::unique_ptr<FileSystem> library_;
  std::unique_ptr<Lane> lane_;
  std::vector<OpenFile*> open_;
  std::vector<UniqueFd> mounted_;  // empty: it is not mounted
  std::unique_ptr<std::byte, Free> memory_;
};

// One client process.
class Reader {
 public:
  Reader(const std::vector<Place>& places, uint64_t files, uint32_t process, uint32_t processes, Tally* tally)
      : files_(files), process_(process), processes_(processes), tally_(tally), nic_(Must(driver::CreateSoftNic())) {
    for (const Place& place : places) {
      volumes_.push_back(std::make_unique<Volume>(*nic_, place));
    }
  }

  void Obey(const Command& command) {
    Volume& volume = *volumes_[command.turn.place];
    if (command.order == Order::kFill) {
      return volume.Fill(files_);
    }
    if (command.order == Order::kSync) {
      return volume.Sync();
    }
    new (tally_) Tally;
    volume.Open(files_);
    Run(command.turn, volume);
  }

 private:
  void Run(const Turn& turn, Volume& volume) {
    term::AccessPattern pattern(
        {.theta = turn.theta, .region_bytes = files_ * kFileBytes, .access_bytes = turn.bytes, .seed = kSeedOfHotness},
        process_, processes_, static_cast<uint32_t>(turn.seed));
    Draw(pattern);
    const auto counted = volume.PagesAndHits();
    tally_->processor_seconds -= ProcessorSeconds();
    const auto began = steady_clock::now();
    const auto end =
        began + std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(turn.seconds));
    auto now = began;
    steady_clock::duration drawing{};
    while (now < end) {
      if (next_ == drawn_.size()) [[unlikely]] {
        tally_->processor_seconds += ProcessorSeconds();
        Draw(pattern);
        tally_->processor_seconds -= ProcessorSeconds();
        const auto drawn = steady_clock::now();
        drawing += drawn - now;
        now = drawn;
      }
      volume.Access(turn, drawn_[next_++] * uint64_t{turn.bytes});
      const auto after = steady_clock::now();
      tally_->latencies.Record(static_cast<uint64_t>((after - now).count()));
      tally_->accesses++;
      now = after;
    }
    tally_->processor_seconds += ProcessorSeconds();
    tally_->rate = static_cast<double>(tally_->accesses) / std::chrono::duration<double>(now - began - drawing).count();
    const auto after = volume.PagesAndHits();
    tally_->read_pages = after.first - counted.first;
    tally_->hit_pages = after.second - counted.second;
  }

  void Draw(term::AccessPattern& pattern) {
    drawn_.resize(kDrawn);
    std::generate(drawn_.begin(), drawn_.end(), [&] { return pattern.Next(0); });
    next_ = 0;
  }

  static double ProcessorSeconds() { return term::ProcessorSecondsOf(getpid()); }

  const uint64_t files_;
  const uint32_t process_;
  const uint32_t processes_;
  Tally* const tally_;
  const std::unique_ptr<driver::Nic> nic_;
  std::vector<std::unique_ptr<Volume>> volumes_;
  std::vector<uint32_t> drawn_;  // in pieces
  size_t next_ = 0;
};

void Serve(Reader& reader, int socket) {
  Command command;
  while (recv(socket, &command, sizeof(command), 0) == sizeof(command)) {
    reader.Obey(command);
    const uint32_t done = 0;
    Child::Send(socket, std::as_bytes(std::span(&done, 1)));
  }
}

}  // namespace

Readers::Readers(const std::vector<Place>& places, uint64_t files, uint32_t processes) {
  void* const memory =
      mmap(nullptr, sizeof(Tally) * processes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    Die(ErrnoStatus("share memory with the client processes"));
  }
  tallies_ = static_cast<Tally*>(memory);
  for (uint32_t i = 0; i < processes; i++) {
    processes_.push_back(std::make_unique<Child>("reader " + std::to_string(i), [&, i](int socket) {
      Reader reader(places, files, i, processes, tallies_ + i);
      Serve(reader, socket);
    }));
  }
  for (size_t place = 0; place < places.size(); place++) {
    processes_.front()->Tell(Command{.order = Order::kFill, .turn = {.place = place}});
    processes_.front()->Hear<uint32_t>();
  }
}

void Readers::Run(const Turn& turn) {
  for (const auto& process : processes_) {
    process->Tell(Command{.order = Order::kRun, .turn = turn});
  }
  for (const auto& process : processes_) {
    process->Hear<uint32_t>();
  }
}

void Readers::Sync(size_t place) {
  processes_.front()->Tell(Command{.order = Order::kSync, .turn = {.place = place}});
  processes_.front()->Hear<uint32_t>();
}

}  // namespace termfs::benchmarks::files
