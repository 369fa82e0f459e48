// SPDX-License-Identifier: Apache-2.0
//
// What the files of a volume must be after a crash: a plain model of a few names and small files, in memory that
// processes share, kept by the one that makes the calls and read by the one that comes after it.
//
// After a kill:       names, sizes and bytes are those of the last acknowledged call, or the call in flight is there,
//                     too, its bytes in part.
// After power loss:   names and sizes are those after some call, none before the last sync; each byte is one that was
//                     synced or written since.
//
// Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace termfs {

class FileModel {
 public:
  static constexpr size_t kNames = 12;
  static constexpr size_t kFiles = 24;  // live at a time
  static constexpr size_t kMaxBytes = 160 << 10;
  static constexpr size_t kHistory = 4096;
  static constexpr int8_t kNone = -1;

  // All that metadata says.
  struct Tree {
    std::array<int8_t, kNames> file;      // by name
    std::array<uint32_t, kFiles> size{};  // by file; of those without a name 0
    friend bool operator==(const Tree&, const Tree&) = default;
  };
  struct Bytes {
    std::array<uint8_t, kMaxBytes> now{};
    std::array<uint32_t, kMaxBytes> allowed{};  // after power loss: bit n for value n
  };

  FileModel() {
    now_.file.fill(kNone);
    history_[0] = now_;
    for (Bytes& bytes : bytes_) {
      bytes.allowed.fill(1);
    }
  }

  const Tree& now() const { return now_; }
  uint64_t inode(int8_t file) const { return inodes_[static_cast<size_t>(file)]; }
  int8_t FileOfInode(uint64_t inode) const {
    const auto found = std::find(inodes_.begin(), inodes_.end(), inode);
    return inode == 0 || found == inodes_.end() ? kNone : static_cast<int8_t>(found - inodes_.begin());
  }
  // One that no tree since the last sync names.
  int8_t FreeFile() const {
    for (size_t file = 0; file < kFiles; ++file) {
      const auto names = [&](const Tree& tree) {
        return std::find(tree.file.begin(), tree.file.end(), static_cast<int8_t>(file)) != tree.file.end();
      };
      if (std::none_of(history_.begin() + static_cast<ptrdiff_t>(first_),
                       history_.begin() + static_cast<ptrdiff_t>(last_) + 1, names)) {
        return static_cast<int8_t>(file);
      }
    }
    return kNone;
  }
  // A value of a file's own: bytes of another file are never among those allowed.
  uint8_t ValueFor(int8_t file, uint64_t choice) const {
    return static_cast<uint8_t>(1 + (static_cast<uint64_t>(file) * 5 + serial_[static_cast<size_t>(file)] * 7) % 30 +
                                choice % 2);
  }
  bool HistoryFull() const { return last_ + 2 >= kHistory; }

  // --- Before and after each call. The tree that it will make; the bytes [at, at + length) of `file` that it may make
  // `value`.
  void Begin(const Tree& next, int8_t file = kNone, uint64_t at = 0, uint64_t length = 0, uint8_t value = 0) {
    next_ = next;
    file_ = file;
    at_ = at;
    length_ = length;
    value_ = value;
    for (uint64_t i = at; i < at + length; ++i) {
      bytes_[static_cast<size_t>(file)].allowed[i] |= 1U << value;
    }
    history_[last_ + 1] = next;
    Fence();
    pending_ = true;
    Fence();
  }
  void End() {
    Apply();
    Fence();
    pending_ = false;
    ++acknowledged_;
  }
  // A new file's number; its bytes begin as zeros.
  void NewFile(int8_t file) {
    Bytes& bytes = bytes_[static_cast<size_t>(file)];
    bytes.now.fill(0);
    bytes.allowed.fill(1);
    inodes_[static_cast<size_t>(file)] = 0;
    ++serial_[static_cast<size_t>(file)];
  }
  // The file that a call in flight may have made under this name, if its number was not told.
  int8_t CreatedIn(size_t name) const {
    const int8_t file = pending_ ? next_.file[name] : kNone;
    return file != kNone && now_.file[name] == kNone && inodes_[static_cast<size_t>(file)] == 0 ? file : kNone;
  }
  void SetInode(int8_t file, uint64_t inode) { inodes_[static_cast<size_t>(file)] = inode; }
  // Sync of `file` has returned: all names, and its bytes.
  void Synced(int8_t file) {
    SyncedTree();
    Settle(file);
  }
  void SyncedTree() {
    history_[0] = now_;
    first_ = last_ = 0;
  }

  // --- Afterwards, by the next process. What is wrong with what was found; empty: nothing, and that is the truth now.
  std::string Judge(const Tree& found) {
    if (power_lost_) {
      for (size_t k = first_; k <= last_ + (pending_ ? 1 : 0); ++k) {
        if (history_[k] == found) {
          judged_ = found;
          return {};
        }
      }
      return "names and sizes are those of no moment since the last sync: " + Describe(found) +
             "\n  last: " + Describe(now_) + (pending_ ? "\n  next: " + Describe(next_) : "");
    }
    if (!(found == now_) && !(pending_ && found == next_)) {
      return "found " + Describe(found) + "\n  was " + Describe(now_) + (pending_ ? "\n  next " + Describe(next_) : "");
    }
    judged_ = found;
    return {};
  }
  std::string JudgeByte(int8_t file, uint64_t i, uint8_t found) {
    Bytes& bytes = bytes_[static_cast<size_t>(file)];
    const bool in_flight = pending_ && file == file_ && i >= at_ && i < at_ + length_ && found == value_;
    const bool right =
        power_lost_ ? found < 32 && (bytes.allowed[i] >> found & 1) != 0 : found == bytes.now[i] || in_flight;
    if (!right) {
      return "file " + std::to_string(file) + " byte " + std::to_string(i) + " is " + std::to_string(found) + ", was " +
             std::to_string(bytes.now[i]) + ", allowed after power loss " + std::to_string(bytes.allowed[i]) +
             (pending_ && file == file_ ? "; in flight " + std::to_string(at_) + "+" + std::to_string(length_) +
                                              " of " + std::to_string(value_)
                                        : "");
    }
    return {};
  }
  void Accept(int8_t file, uint64_t i, uint8_t found) {
    Bytes& bytes = bytes_[static_cast<size_t>(file)];
    bytes.now[i] = found;
    if (power_lost_) {
      bytes.allowed[i] = 1U << found;
    }
  }
  // Everything was judged and accepted. Beyond the ends there are zeros. What was found after a loss of power is on the
  // disk; after a kill what is synced is still what was.
  void Accepted() {
    now_ = judged_;
    for (size_t file = 0; file < kFiles; ++file) {
      for (uint64_t i = now_.size[file]; i < kMaxBytes; ++i) {
        bytes_[file].now[i] = 0;
        bytes_[file].allowed[i] = power_lost_ ? 1U : bytes_[file].allowed[i] | 1U;
      }
    }
    if (power_lost_) {
      history_[0] = now_;
      first_ = last_ = 0;
    } else if (pending_ && now_ == next_) {
      ++last_;
    }
    pending_ = false;
    Fence();
    power_lost_ = false;
  }
  void LosePower() { power_lost_ = true; }
  bool power_lost() const { return power_lost_; }
  uint64_t acknowledged() const { return acknowledged_; }

 private:
  static void Fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
  void Apply() {
    for (uint64_t i = at_; i < at_ + length_; ++i) {
      bytes_[static_cast<size_t>(file_)].now[i] = value_;
    }
    now_ = next_;
    ++last_;
  }
  void Settle(int8_t file) {
    Bytes& bytes = bytes_[static_cast<size_t>(file)];
    for (uint64_t i = 0; i < kMaxBytes; ++i) {
      bytes.allowed[i] = 1U << bytes.now[i];
    }
  }
  static std::string Describe(const Tree& tree) {
    std::string text;
    for (size_t name = 0; name < kNames; ++name) {
      if (const int8_t file = tree.file[name]; file != kNone) {
        text += " n" + std::to_string(name) + "=" + std::to_string(file) + "(" +
                std::to_string(tree.size[static_cast<size_t>(file)]) + ")";
      }
    }
    return text;
  }

  Tree now_;
  Tree next_;
  Tree judged_;
  bool pending_ = false;
  bool power_lost_ = false;
  int8_t file_ = kNone;  // of the call in flight
  uint64_t at_ = 0;
  uint64_t length_ = 0;
  uint8_t value_ = 0;
  uint64_t acknowledged_ = 0;
  size_t first_ = 0;  // of the history: as of the last sync
  size_t last_ = 0;   // now
  std::array<Tree, kHistory> history_;
  std::array<uint64_t, kFiles> inodes_{};
  std::array<uint64_t, kFiles> serial_{};
  std::array<Bytes, kFiles> bytes_;
};

}  // namespace termfs
