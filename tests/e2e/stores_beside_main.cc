// SPDX-License-Identifier: Apache-2.0
//
// stores_beside FILE CALL READER STATE ROUNDS [OTHER]: one thread makes a call that changes bytes of a page of FILE,
// and at the same time another thread stores to other bytes of that page through a shared mapping. Both changes must be
// there afterwards, and nothing else may have changed. `stores_beside list` prints the calls.
//
//   READER  who looks when both have ended: mapping, rdwr (pread by the descriptor of the mapping), rdonly (pread by
//   one
//           that was opened for reading at the beginning), open (a new one each time), other (OTHER, the same file on
//           another mount, by a held descriptor: the call's bytes at once, the stored ones after msync)
//   ROUNDS  a number, or how long: 0.1s
//   STATE   of the page before: hole, filled (written and read through the mapping), hot (the same few pages again and
//           again, dirty as the last round has left them)
//
// A round has a unit of two pages, for calls that cross from one page to the next. Prints a line; exit code 1 when a
// change was lost, 2 when something else failed, 3 when the file system does not have the call.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPage = 4096;
constexpr size_t kUnit = 2 * kPage;
constexpr size_t kStored = 8;          // bytes of a store
constexpr size_t kMostStores = 32;     // of a round
constexpr size_t kStoresAt = 256;      // in the page
constexpr uint64_t kEnd = UINT64_MAX;  // instead of a round
constexpr uint64_t kSoon = 200'000;    // nanoseconds
constexpr char kFill = 'o';
constexpr size_t kLetters = 26;
constexpr uint64_t kSpanOfShort = 32;
constexpr uint64_t kSpan = 512;  // units, before the file is made again

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(errno == EOPNOTSUPP ? 3 : 2);
}

template <typename T>
T Must(T result, const char* what) {
  if (result < 0) {
    Die(what);
  }
  return result;
}

void MustBe(ssize_t result, size_t wanted, const char* what) {
  if (result < 0) {
    Die(what);
  }
  if (static_cast<size_t>(result) != wanted) {
    std::fprintf(stderr, "%s: %zd bytes of %zu\n", what, result, wanted);
    std::exit(2);
  }
}

// Descriptors that the calls use, and memory for their data.
struct Files {
  int plain = -1;   // O_RDWR; the file is mapped by it
  int writer = -1;  // O_WRONLY
  int append = -1;  // O_WRONLY | O_APPEND
  int direct = -1;  // O_RDWR | O_DIRECT
  int source = -1;  // kLetters blocks of kUnit bytes, one letter each
  int pipe[2] = {-1, -1};
  aio_context_t aio = 0;
  char* data = nullptr;  // kUnit bytes, aligned
};

// What a call changes: bytes [begin, begin + length) of the unit; `at` is the unit's place in the file.
struct Job {
  off_t at = 0;
  size_t begin = 0;
  size_t length = 0;
  char value = 0;
  size_t letter = 0;
  off_t place() const { return at + static_cast<off_t>(begin); }
};

void Pwrite(const Files& files, const Job& job) {
  MustBe(pwrite(files.writer, files.data, job.length, job.place()), job.length, "pwrite");
}

void PwriteMapped(const Files& files, const Job& job) {
  MustBe(pwrite(files.plain, files.data, job.length, job.place()), job.length, "pwrite");
}

void PwriteSync(const Files& files, const Job& job) {
  const iovec part{files.data, job.length};
  MustBe(pwritev2(files.writer, &part, 1, job.place(), RWF_DSYNC), job.length, "pwritev2");
}

void Append(const Files& files, const Job& job) {
  MustBe(write(files.append, files.data, job.length), job.length, "write");
}

void Copy(const Files& files, const Job& job) {  // it may end early
  off_t from = static_cast<off_t>(job.letter * kUnit);
  off_t to = job.place();
  for (size_t left = job.length; left > 0;) {
    const ssize_t copied = Must(copy_file_range(files.source, &from, files.writer, &to, left, 0), "copy_file_range");
    if (copied == 0) {
      MustBe(copied, left, "copy_file_range");
    }
    left -= static_cast<size_t>(copied);
  }
}

void Truncate(const Files& files, const Job& job) {
  Must(ftruncate(files.writer, job.place()), "ftruncate");
  Must(ftruncate(files.writer, job.place() + static_cast<off_t>(job.length)), "ftruncate");
}

void Punch(const Files& files, const Job& job) {
  Must(fallocate(files.writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, job.place(), static_cast<off_t>(job.length)),
       "fallocate");
}

void Zero(const Files& files, const Job& job) {
  Must(fallocate(files.writer, FALLOC_FL_ZERO_RANGE, job.place(), static_cast<off_t>(job.length)), "fallocate");
}

void Direct(const Files& files, const Job& job) {
  MustBe(pwrite(files.direct, files.data, job.length, job.place()), job.length, "pwrite with O_DIRECT");
}

void Submit(const Files& files, const Job& job) {
  iocb block{};
  block.aio_lio_opcode = IOCB_CMD_PWRITE;
  block.aio_fildes = static_cast<uint32_t>(files.direct);
  block.aio_buf = reinterpret_cast<uintptr_t>(files.data);
  block.aio_nbytes = job.length;
  block.aio_offset = job.place();
  iocb* blocks[] = {&block};
  io_event event{};
  MustBe(syscall(SYS_io_submit, files.aio, 1, blocks), 1, "io_submit");
  MustBe(syscall(SYS_io_getevents, files.aio, 1, 1, &event, nullptr), 1, "io_getevents");
  errno = event.res < 0 ? static_cast<int>(-event.res) : 0;
  MustBe(event.res, job.length, "the result of io_submit");
}

void Splice(const Files& files, const Job& job) {
  MustBe(write(files.pipe[1], files.data, job.length), job.length, "write into a pipe");
  loff_t to = job.place();
  MustBe(splice(files.pipe[0], nullptr, files.writer, &to, job.length, 0), job.length, "splice");
}

void Sendfile(const Files& files, const Job& job) {
  Must(lseek(files.writer, job.place(), SEEK_SET), "lseek");
  off_t from = static_cast<off_t>(job.letter * kUnit);
  MustBe(sendfile(files.writer, files.source, &from, job.length), job.length, "sendfile");
}

// `stores_at`: 0 for the first page of the unit, kPage for the second.
struct Call {
  std::string_view name;
  void (*make)(const Files&, const Job&);
  size_t begin;
  size_t least, most;  // how many bytes
  size_t step;         // by which that number grows from round to round
  size_t stores_at;
  bool zeroes;
  bool resizes;  // needs the unit at the end of the file
};

constexpr std::array kCalls{
    Call{"pwrite", Pwrite, 1024, 1, 3000, 37, 0, false, false},
    Call{"pwrite_of_mapped_descriptor", PwriteMapped, 1024, 1, 3000, 37, 0, false, false},
    Call{"pwrite_across_first_page", Pwrite, 3000, 1100, 4000, 41, 0, false, false},
    Call{"pwrite_across_second_page", Pwrite, 3000, 1100, 1300, 7, kPage, false, false},
    Call{"pwritev2_dsync", PwriteSync, 1024, 1, 3000, 37, 0, false, false},
    Call{"append", Append, 1024, 1, 3000, 37, 0, false, true},
    Call{"copy_part", Copy, 1024, 1, 3000, 37, 0, false, false},
    Call{"copy_aligned", Copy, 0, kPage + 1, kPage + 200, 1, kPage, false, false},
    Call{"truncate_down_up", Truncate, 1024, 7168, 7168, 1, 0, true, true},
    Call{"punch_hole", Punch, 1024, 1, 7000, 37, 0, true, false},
    Call{"zero_range", Zero, 1024, 1, 7000, 37, 0, true, false},
    Call{"pwrite_direct", Direct, 1024, 512, 3072, 512, 0, false, false},
    Call{"io_submit_direct", Submit, 1024, 512, 3072, 512, 0, false, false},
    Call{"splice", Splice, 1024, 1, 3000, 37, 0, false, false},
    Call{"sendfile", Sendfile, 1024, 1, 3000, 37, 0, false, false},
};

class Test {
 public:
  Test(const Call& call, std::string_view reader, std::string_view state, const std::string& rounds)
      : call_(call),
        reader_(reader),
        state_(state),
        rounds_(std::strtoull(rounds.c_str(), nullptr, 10)),
        seconds_(rounds.ends_with('s') ? std::strtod(rounds.c_str(), nullptr) : 0) {
    span_ = state != "hot" ? (seconds_.count() > 0 ? kSpanOfShort : std::min(kSpan, rounds_)) : call.resizes ? 1 : 4;
  }

  void Open(const std::string& path, const char* other) {
    files_.plain = Must(open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0644), path.c_str());
    files_.writer = Must(open(path.c_str(), O_WRONLY), path.c_str());
    files_.append = Must(open(path.c_str(), O_WRONLY | O_APPEND), path.c_str());
    files_.direct = Must(open(path.c_str(), O_RDWR | O_DIRECT), path.c_str());
    const std::string source = path + ".source";
    files_.source = Must(open(source.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0644), source.c_str());
    for (size_t i = 0; i < kLetters; i++) {
      const std::string block(kUnit, Letter(i));
      MustBe(write(files_.source, block.data(), kUnit), kUnit, "write");
    }
    Must(pipe(files_.pipe), "pipe");
    Must(syscall(SYS_io_setup, 4, &files_.aio), "io_setup");
    files_.data = static_cast<char*>(std::aligned_alloc(kPage, kUnit));
    path_ = path;
    if (reader_ == "other") {
      held_ = Must(open(other, O_RDONLY), other);
    } else {
      held_ = Must(open(path.c_str(), O_RDONLY), path.c_str());
    }
    void* place = mmap(nullptr, span_ * kUnit, PROT_READ | PROT_WRITE, MAP_SHARED, files_.plain, 0);
    if (place == MAP_FAILED) {
      Die("mmap");
    }
    mapped_ = static_cast<char*>(place);
    images_.assign(span_ * kUnit, 0);
  }

  int Run() {
    std::thread writer([this] { Write(); });
    std::thread storer([this] { Store(); });
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds_);
    uint64_t round = 0;
    for (; seconds_.count() > 0 ? Clock::now() < end : round < rounds_; round++) {
      Prepare(round);
      storing_ = true;
      ended_ = 0;
      turn_ = round + 1;
      turn_.notify_all();
      for (int ended = 0; (ended = ended_) < 2;) {
        ended_.wait(ended);
      }
      Verify(round);
    }
    turn_ = kEnd;
    turn_.notify_all();
    writer.join();
    storer.join();
    if (!call_.resizes) {
      Must(msync(mapped_, span_ * kUnit, MS_SYNC), "msync");
      Must(fsync(files_.plain), "fsync");
      for (uint64_t unit = 0; unit < span_; unit++) {
        Compare(unit, "pread in the end", files_.plain, kUnit);
      }
    }
    std::printf(
        "%.*s %.*s %.*s: %llu rounds, %llu stores: lost writes %llu, lost stores %llu, other damage %llu, "
        "not seen by its own caller %llu: %s\n",
        Part(call_.name), call_.name.data(), Part(reader_), reader_.data(), Part(state_), state_.data(), Long(round),
        Long(stores_), Long(lost_writes_), Long(lost_stores_), Long(damage_), Long(early_), Faults() ? "FAULT" : "ok");
    return Faults() != 0 ? 1 : 0;
  }

 private:
  static int Part(std::string_view text) { return static_cast<int>(text.size()); }
  static unsigned long long Long(uint64_t number) { return number; }
  static char Letter(uint64_t number) { return static_cast<char>('A' + number % kLetters); }
  uint64_t Faults() const { return lost_writes_ + lost_stores_ + damage_ + early_; }
  char* Image(uint64_t unit) { return images_.data() + unit * kUnit; }

  // Sizes and bytes as they are to be before the round; images_ says the same.
  void Prepare(uint64_t round) {
    const uint64_t unit = round % span_;
    const off_t at = static_cast<off_t>(unit * kUnit);
    char* image = Image(unit);
    if (unit == 0 && (round == 0 || state_ != "hot")) {
      Must(ftruncate(files_.plain, 0), "ftruncate");
      std::fill(images_.begin(), images_.end(), 0);
      if (!call_.resizes) {
        Must(ftruncate(files_.plain, static_cast<off_t>(span_ * kUnit)), "ftruncate");
        for (uint64_t i = 0; state_ != "hole" && i < span_; i++) {
          Fill(i, 0, kUnit);
        }
      }
    }
    const size_t used = call_.make == Append ? call_.begin : kUnit;
    if (call_.resizes) {
      Must(ftruncate(files_.plain, at + static_cast<off_t>(used)), "ftruncate");
      std::fill(image + used, image + kUnit, 0);
      if (state_ != "hole" && (state_ != "hot" || round == 0)) {
        Fill(unit, 0, used);
      }
    }
    job_ = {.at = at, .begin = call_.begin, .length = call_.least, .letter = round % kLetters};
    job_.length += round * call_.step % (call_.most - call_.least + call_.step) / call_.step * call_.step;
    job_.length = std::min(job_.length, call_.most);
    job_.value = call_.zeroes ? '\0' : Letter(round);
    if (call_.zeroes) {  // it has something to zero
      Fill(unit, job_.begin, job_.length);
    }
    end_ = call_.make == Append ? job_.begin + job_.length : kUnit;
    std::memset(files_.data, job_.value, kUnit);
    if (state_ == "filled") {
      for (size_t page = 0; page < used; page += kPage) {
        seen_ = mapped_[unit * kUnit + page];
      }
    }
  }

  void Fill(uint64_t unit, size_t begin, size_t length) {
    std::memset(Image(unit) + begin, kFill, length);
    MustBe(pwrite(files_.plain, Image(unit) + begin, length, static_cast<off_t>(unit * kUnit + begin)), length,
           "pwrite");
  }

  // False when there is no such round.
  bool Await(uint64_t round) {
    uint64_t turn = 0;
    while ((turn = turn_) <= round) {
      turn_.wait(turn);
    }
    return turn != kEnd;
  }

  void End() {
    ended_++;
    ended_.notify_all();
  }

  static void Spin(std::chrono::nanoseconds time) {
    for (const auto until = Clock::now() + time; Clock::now() < until;) {
    }
  }

  void Write() {
    std::vector<char> seen(kUnit);
    for (uint64_t round = 0; Await(round); round++) {
      const auto begin = Clock::now();
      call_.make(files_, job_);
      took_ = (took_ * 7 + (Clock::now() - begin).count()) / 8;
      storing_ = false;
      if (reader_ != "other" && round % 2 == 1) {  // its own bytes are there now, whatever the other thread does
        Read(job_.at / static_cast<off_t>(kUnit), seen.data(), job_.begin + job_.length);
        early_ += std::count(seen.begin() + static_cast<long>(job_.begin),
                             seen.begin() + static_cast<long>(job_.begin + ReadableLength()),
                             job_.value) != static_cast<long>(ReadableLength());
      }
      End();
    }
  }

  // Of the call's bytes: those that the mapping has, which ends with the page in which the file ends.
  size_t ReadableLength() const { return job_.length; }

  // At any moment of the call; in each fourth round again and again until it has ended.
  void Store() {
    std::minstd_rand random(1);
    for (uint64_t round = 0; Await(round); round++) {
      const uint64_t longest =
          static_cast<uint64_t>(took_) * 5 / 4;  // beside busy CPUs a call takes long without doing much
      Spin(std::chrono::nanoseconds(random() % (1 + (round % 2 == 0 ? std::min(longest, kSoon) : longest))));
      char* to = mapped_ + job_.at + call_.stores_at + kStoresAt + (call_.stores_at == 0 ? 0 : 2048);
      made_ = 0;
      do {
        std::memset(to + made_ * kStored, StoredLetter(round), kStored);
        made_++;
        if (round % 4 == 3) {
          Spin(std::chrono::microseconds(5));
        }
      } while (round % 4 == 3 && storing_ && made_ < kMostStores);
      early_ += std::count(to, to + made_ * kStored, StoredLetter(round)) != static_cast<long>(made_ * kStored);
      End();
    }
  }

  static char StoredLetter(uint64_t round) { return static_cast<char>('a' + round % kLetters); }

  // The first `length` bytes of a unit, as the reader sees them.
  void Read(uint64_t unit, char* to, size_t length) {
    const off_t at = static_cast<off_t>(unit * kUnit);
    if (reader_ == "mapping") {
      std::memcpy(to, mapped_ + at, length);
      return;
    }
    const bool opens = reader_ == "open";
    const int file = opens               ? Must(open(path_.c_str(), O_RDONLY), path_.c_str())
                     : reader_ == "rdwr" ? files_.plain
                                         : held_;
    const ssize_t got = Must(pread(file, to, length, at), "pread");
    std::memset(to + got, '?', length - static_cast<size_t>(got));  // a file that is too short is damage
    if (opens) {
      close(file);
    }
  }

  void Verify(uint64_t round) {
    const uint64_t unit = round % span_;
    char* image = Image(unit);
    std::memset(image + job_.begin, job_.value, job_.length);
    const size_t stored = call_.stores_at + kStoresAt + (call_.stores_at == 0 ? 0 : 2048);
    std::vector<char> seen(kUnit);
    if (reader_ == "other") {
      Read(unit, seen.data(), end_);
      lost_writes_ += std::memcmp(seen.data() + job_.begin, image + job_.begin, job_.length) != 0;
      Must(msync(mapped_ + job_.at, kUnit, MS_SYNC), "msync");
    }
    std::memset(image + stored, StoredLetter(round), made_ * kStored);
    stores_ += made_;
    Read(unit, seen.data(), end_);
    Judge(image, seen.data(), end_, reader_.data());
  }

  void Compare(uint64_t unit, const char* how, int file, size_t length) {
    std::vector<char> seen(length);
    MustBe(pread(file, seen.data(), length, static_cast<off_t>(unit * kUnit)), length, how);
    Judge(Image(unit), seen.data(), length, how);
  }

  // Which bytes are not as they should be: letters of stores are small, those of calls large, or zeros.
  void Judge(const char* image, const char* seen, size_t length, const char* how) {
    if (std::memcmp(image, seen, length) == 0) {
      return;
    }
    size_t at = 0;
    bool write = false;
    bool store = false;
    bool other = false;
    for (size_t i = length; i-- > 0;) {
      if (image[i] != seen[i]) {
        at = i;
        const bool small = image[i] >= 'a' && image[i] <= 'z' && image[i] != kFill;
        const bool in_call = i >= job_.begin && i < job_.begin + job_.length;
        (small ? store : in_call || (image[i] >= 'A' && image[i] <= 'Z') ? write : other) = true;
      }
    }
    lost_stores_ += store;
    lost_writes_ += write;
    damage_ += other;
    if (shown_++ < 3) {
      std::printf("  round of letter %zu, %s: byte %zu of the unit is %d, not %d; the call's are %zu to %zu\n",
                  job_.letter, how, at, seen[at], image[at], job_.begin, job_.begin + job_.length);
    }
  }

  const Call& call_;
  const std::string_view reader_;
  const std::string_view state_;
  const uint64_t rounds_;
  const std::chrono::duration<double> seconds_;  // 0: rounds_ are made
  uint64_t span_ = 0;                            // units of the file
  std::string path_;
  Files files_;
  int held_ = -1;
  char* mapped_ = nullptr;
  std::vector<char> images_;  // what the file should hold
  Job job_;                   // of the round; written while both threads wait
  size_t end_ = 0;            // of the file, in the unit, after the round
  size_t made_ = 0;           // stores of the round
  volatile char seen_ = 0;
  std::atomic<uint64_t> turn_ = 0;  // rounds that have begun
  std::atomic<int> ended_ = 0;      // threads that have ended the round
  std::atomic<bool> storing_ = false;
  std::atomic<int64_t> took_ = 50'000;  // nanoseconds of a call, about
  std::atomic<uint64_t> early_ = 0;
  uint64_t stores_ = 0, lost_writes_ = 0, lost_stores_ = 0, damage_ = 0, shown_ = 0;
};

int Usage() {
  std::fprintf(stderr,
               "usage: stores_beside FILE CALL mapping|rdwr|rdonly|open|other hole|filled|hot ROUNDS [OTHER]\n"
               "       stores_beside list\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "list") {
    for (const Call& call : kCalls) {
      std::printf("%.*s\n", static_cast<int>(call.name.size()), call.name.data());
    }
    return 0;
  }
  if (argc < 6) {
    return Usage();
  }
  const std::string_view reader = argv[3];
  const std::string_view state = argv[4];
  const auto* call = std::find_if(kCalls.begin(), kCalls.end(), [&](const Call& one) { return one.name == argv[2]; });
  const auto is_one_of = [](std::string_view word, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (call == kCalls.end() || !is_one_of(reader, {"mapping", "rdwr", "rdonly", "open", "other"}) ||
      !is_one_of(state, {"hole", "filled", "hot"}) || (reader == "other" && argc < 7)) {
    return Usage();
  }
  static Test test(*call, reader, state, argv[5]);
  test.Open(argv[1], argc > 6 ? argv[6] : nullptr);
  return test.Run();
}
