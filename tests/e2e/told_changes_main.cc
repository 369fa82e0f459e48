// SPDX-License-Identifier: Apache-2.0
//
// told_changes WRITTEN READ CHANGE free|turns READERS COUNT PACE FILES: a thread changes the file WRITTEN, COUNT times,
// and after each change tells READERS threads of it through pipes. They have READ, the same file on another mount, open
// for reading from the beginning on, and read by that descriptor what they were told of: nothing of it may be missing,
// and nothing may be older. `free`: the writer goes on after PACE microseconds; `turns`: when all readers have
// answered. All of that is done FILES times, each with a new file: one that changes often is not cached for a while.
// `told_changes list` prints the changes.
//
// Prints a line; exit code 1 when something was missing or old, 2 when something else failed.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
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
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/e2e/must.h"

namespace {

using termfs::tests::Must;

constexpr size_t kRecord = 4096;
constexpr size_t kMost = 3 * kRecord;  // bytes that a reader asks for
constexpr size_t kSteps = 64;          // of a file that is cut, until it is made long again
constexpr int kLetters = 26;

void MustBe(ssize_t result, size_t wanted, const char* what) {
  if (static_cast<size_t>(Must(result, what)) != wanted) {
    std::fprintf(stderr, "%s: %zd bytes of %zu\n", what, result, wanted);
    std::exit(2);
  }
}

// What a reader is told: pread(offset, asked) gives `length` bytes, all of them `value`. `only_now`: until the next
// change begins; otherwise for ever.
struct Told {
  uint64_t number;
  off_t offset;
  size_t asked;
  size_t length;
  char value;
  bool only_now;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path) {
    unlink(path.c_str());
    file_ = Must(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644), path.c_str());
    append_ = Must(open(path.c_str(), O_WRONLY | O_APPEND), path.c_str());
    const std::string source = path + ".source";
    source_ = Must(open(source.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644), source.c_str());
    for (uint64_t i = 0; i < uint64_t{kLetters}; i++) {
      Record(i);
      MustBe(write(source_, record_.data(), kRecord), kRecord, "write");
    }
  }

  ~Writer() {
    for (const int file : {file_, append_, source_}) {
      close(file);
    }
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Each makes its change number i and says what there is to be read now.
  Told Append(uint64_t i) {
    Record(i);
    MustBe(write(append_, record_.data(), kRecord), kRecord, "write");
    return Grown(i, kRecord, Letter(i));
  }

  // Odd lengths, so that most records begin and end within a page.
  Told AppendShort(uint64_t i) {
    constexpr size_t kShort = 100;
    Record(i);
    MustBe(write(append_, record_.data(), kShort), kShort, "write");
    return Grown(i, kShort, Letter(i));
  }

  // Leaves a hole before it.
  Told WriteBeyond(uint64_t i) {
    Record(i);
    const auto offset = static_cast<off_t>((2 * i + 1) * kRecord);
    MustBe(pwrite(file_, record_.data(), kRecord, offset), kRecord, "pwrite");
    return {i, offset, kRecord, kRecord, Letter(i), false};
  }

  Told Extend(uint64_t i) {
    Must(ftruncate(file_, static_cast<off_t>((i + 1) * kRecord)), "ftruncate");
    return Grown(i, kRecord, 0);
  }

  Told Allocate(uint64_t i) {
    Must(fallocate(file_, 0, static_cast<off_t>(i * kRecord), kRecord), "fallocate");
    return Grown(i, kRecord, 0);
  }

  Told Copy(uint64_t i) {
    auto from = static_cast<off_t>(i % kLetters * kRecord);
    auto to = static_cast<off_t>(i * kRecord);
    MustBe(copy_file_range(source_, &from, file_, &to, kRecord, 0), kRecord, "copy_file_range");
    return Grown(i, kRecord, Letter(i));
  }

  Told Rewrite(uint64_t i) {
    Record(i);
    const int file = Must(open(path_.c_str(), O_WRONLY | O_TRUNC), "open");
    const size_t length = kRecord - i % 7 * 500;
    MustBe(write(file, record_.data(), length), length, "write");
    close(file);
    return {i, 0, kMost, length, Letter(i), true};
  }

  Told Overwrite(uint64_t i) {
    Record(i);
    MustBe(pwrite(file_, record_.data(), kRecord, 0), kRecord, "pwrite");
    return {i, 0, kRecord, kRecord, Letter(i), true};
  }

  // One record less; kSteps records again after that.
  Told Cut(uint64_t i) {
    const uint64_t left = kSteps - i % (kSteps + 1);
    Must(ftruncate(file_, static_cast<off_t>(left * kRecord)), "ftruncate");
    const uint64_t before = left == 0 ? 0 : left - 1;
    return {i, static_cast<off_t>(before * kRecord), kMost, (left - before) * kRecord, 0, true};
  }

 private:
  static char Letter(uint64_t i) { return static_cast<char>('A' + i % kLetters); }
  void Record(uint64_t i) { std::fill(record_.begin(), record_.end(), Letter(i)); }
  static Told Grown(uint64_t i, size_t length, char value) {
    return {i, static_cast<off_t>(i * length), length, length, value, false};
  }

  const std::string path_;
  std::array<char, kRecord> record_{};
  int file_ = -1, append_ = -1, source_ = -1;
};

struct Change {
  std::string_view name;
  Told (Writer::*make)(uint64_t);
};

constexpr std::array kChanges{
    Change{"append", &Writer::Append},
    Change{"append_short", &Writer::AppendShort},
    Change{"write_beyond", &Writer::WriteBeyond},
    Change{"extend", &Writer::Extend},
    Change{"allocate", &Writer::Allocate},
    Change{"copy", &Writer::Copy},
    Change{"rewrite", &Writer::Rewrite},
    Change{"overwrite", &Writer::Overwrite},
    Change{"cut", &Writer::Cut},
};

// Changes that have begun.
std::atomic<uint64_t> begun = 0;

// What readers have seen. `still`: again at once, in a second look. `zeros`: in place of bytes that the next change is
// cutting off.
struct Counts {
  unsigned long long looked = 0, empty = 0, short_of = 0, too_long = 0, old = 0, still = 0, zeros = 0;

  void Add(const Counts& other) {
    looked += other.looked;
    empty += other.empty;
    short_of += other.short_of;
    too_long += other.too_long;
    old += other.old;
    still += other.still;
    zeros += other.zeros;
  }
};

class Reader {
 public:
  explicit Reader(const char* path) : file_(Must(open(path, O_RDONLY), path)) {
    Must(pipe(told_), "pipe");
    Must(pipe(answers_), "pipe");
  }

  void Start(bool answers) {
    thread_ = std::thread([this, answers] {
      Told told{};
      while (read(told_[0], &told, sizeof told) == sizeof told) {
        Look(told);
        if (answers) {
          MustBe(write(answers_[1], "", 1), 1, "write");
        }
      }
    });
  }

  void Tell(const Told& told) { MustBe(write(told_[1], &told, sizeof told), sizeof told, "write"); }

  void Await() {
    char answer = 0;
    MustBe(read(answers_[0], &answer, 1), 1, "read");
  }

  void End() {
    close(told_[1]);
    thread_.join();
    for (const int file : {file_, told_[0], answers_[0], answers_[1]}) {
      close(file);
    }
  }

  const Counts& counts() const { return counts_; }

 private:
  void Look(const Told& told) {
    if (!IsRight(told, true)) {
      counts_.still += !IsRight(told, false);
    }
  }

  // Whether there is what was told, as far as that can be said.
  bool IsRight(const Told& told, bool counted) {
    std::array<char, kMost> seen{};
    const auto got = static_cast<size_t>(Must(pread(file_, seen.data(), told.asked, told.offset), "pread"));
    if (told.only_now && begun != told.number + 1) {
      return IsNotOlder(told, std::string_view(seen.data(), got), counted);
    }
    const auto length = std::min(got, told.length);
    const bool same = std::count(seen.begin(), seen.begin() + length, told.value) == static_cast<long>(length);
    if (counted) {
      counts_.looked++;
      counts_.empty += got == 0 && told.length > 0;
      counts_.short_of += got > 0 && got < told.length;
      counts_.too_long += got > told.length;
      counts_.old += !same;
    }
    return got == told.length && same;
  }

  // Other changes have begun since: bytes of theirs may be there, but none from before what was told.
  bool IsNotOlder(const Told& told, std::string_view seen, bool counted) {
    if (told.value == 0 || begun - told.number > kLetters / 2) {
      return true;
    }
    const bool older = std::any_of(seen.begin(), seen.end(), [&told](char letter) {
      return letter != 0 && (letter - told.value + kLetters) % kLetters > kLetters / 2;
    });
    if (counted) {
      counts_.looked++;
      counts_.old += older;
      counts_.zeros += seen.find('\0') != std::string_view::npos;
    }
    return !older;
  }

  const int file_;
  int told_[2], answers_[2];
  std::thread thread_;
  Counts counts_;
};

// With a new file. `number`: of readers.
void Run(char** names, const Change& change, bool turns, int number, uint64_t count, std::chrono::microseconds pace,
         Counts& counts) {
  Writer writer(names[0]);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < number; i++) {
    readers.push_back(std::make_unique<Reader>(names[1]));
    readers.back()->Start(turns);
  }
  for (uint64_t i = 0; i < count; i++) {
    begun = i + 1;
    const Told told = (writer.*change.make)(i);
    for (const auto& reader : readers) {
      reader->Tell(told);
    }
    for (const auto& reader : readers) {
      if (turns) {
        reader->Await();
      }
    }
    if (pace.count() > 0) {
      std::this_thread::sleep_for(pace);
    }
  }
  for (const auto& reader : readers) {
    reader->End();
    counts.Add(reader->counts());
  }
}

int Usage() {
  std::fprintf(stderr,
               "usage: told_changes WRITTEN READ CHANGE free|turns READERS COUNT PACE FILES\n"
               "       told_changes list\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "list") {
    for (const Change& change : kChanges) {
      std::printf("%.*s\n", static_cast<int>(change.name.size()), change.name.data());
    }
    return 0;
  }
  if (argc != 9) {
    return Usage();
  }
  const auto* change =
      std::find_if(kChanges.begin(), kChanges.end(), [&](const Change& one) { return one.name == argv[3]; });
  if (change == kChanges.end()) {
    return Usage();
  }
  Counts counts;
  for (int file = 0; file < std::atoi(argv[8]); file++) {
    Run(argv + 1, *change, std::string_view(argv[4]) == "turns", std::atoi(argv[5]),
        std::strtoull(argv[6], nullptr, 10), std::chrono::microseconds(std::strtoull(argv[7], nullptr, 10)), counts);
  }
  const bool fault = counts.empty + counts.short_of + counts.too_long + counts.old + counts.zeros > 0;
  std::printf(
      "%s %s, %s readers, pace %s: %llu looks: empty %llu, short %llu, too long %llu, old bytes %llu (a second look: "
      "%llu), zeros beside a cut %llu: %s\n",
      argv[3], argv[4], argv[5], argv[7], counts.looked, counts.empty, counts.short_of, counts.too_long, counts.old,
      counts.still, counts.zeros, fault ? "FAULT" : "ok");
  return fault ? 1 : 0;
}
