// SPDX-License-Identifier: Apache-2.0
#include "mount/kernel_cache.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "mount/mounts_below.h"

namespace termfs::mount {

using std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kIdle{10};           // the waits are in loops; this only bounds one
constexpr std::chrono::milliseconds kLookAgain{1};  // whether the kernel has made an inode
constexpr std::chrono::milliseconds kLookAgainForEnd{50};
constexpr std::chrono::seconds kLooksAtReply{2};  // a program that waits for one may not have run for so long
// How long a read waits for the kernel to know how long the file is; how often it looks, and has it ask.
constexpr std::chrono::milliseconds kSizePatience{500};
constexpr std::chrono::microseconds kLooksAgain{50};
constexpr std::chrono::milliseconds kAsksAgain{20};
constexpr std::chrono::nanoseconds kEntrySlack = std::chrono::milliseconds(100);
constexpr int32_t kNotifyNewEpoch = 8;  // FUSE_NOTIFY_INC_EPOCH of <linux/fuse.h> 7.44
constexpr uint32_t kExpireOnly = 1;     // FUSE_EXPIRE_ONLY

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

steady_clock::time_point TimeOf(int64_t nanoseconds) {
  return steady_clock::time_point(std::chrono::duration_cast<steady_clock::duration>(Nanoseconds(nanoseconds)));
}

// Unmounting, or not known to the kernel, or nothing agreed with it yet.
bool Expected(int error) {
  return error == 0 || error == -ENOENT || error == -ENODEV || error == -ENOTCONN || error == -ENOSYS;
}

// The entry is looked up again when it is used next. By hand: versions of libfuse differ in how they are asked.
int ExpireEntry(fuse_session* session, uint64_t parent, const std::string& name) {
  struct {  // fuse_notify_inval_entry_out of <linux/fuse.h> 7.38
    uint64_t parent;
    uint32_t name_bytes;
    uint32_t flags;
  } body{.parent = parent, .name_bytes = static_cast<uint32_t>(name.size()), .flags = kExpireOnly};
  fuse_out_header header{.len = static_cast<uint32_t>(sizeof(header) + sizeof(body) + name.size() + 1),
                         .error = FUSE_NOTIFY_INVAL_ENTRY,
                         .unique = 0};
  const std::array<iovec, 3> parts = {{{.iov_base = &header, .iov_len = sizeof(header)},
                                       {.iov_base = &body, .iov_len = sizeof(body)},
                                       {.iov_base = const_cast<char*>(name.c_str()), .iov_len = name.size() + 1}}};
  return writev(fuse_session_fd(session), parts.data(), parts.size()) < 0 ? -errno : 0;
}

// Memory that cannot be read.
void* Unreadable() {
  static void* const page = mmap(nullptr, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page;
}

// The file has at least `size` bytes (not 0), whatever replies say that are on their way: the kernel takes over the
// size that a notification with its last byte implies before it looks at the byte, which it is not given. So none of
// its pages has other bytes than before, whatever has changed since the size was asked for.
int NotifySize(fuse_session* session, uint64_t ino, uint64_t size) {
  struct {
    fuse_out_header header;
    fuse_notify_store_out body;
  } message{.header = {.len = sizeof(message) + 1, .error = FUSE_NOTIFY_STORE, .unique = 0},
            .body = {.nodeid = ino, .offset = size - 1, .size = 1, .padding = 0}};
  const std::array<iovec, 2> parts = {
      {{.iov_base = &message, .iov_len = sizeof(message)}, {.iov_base = Unreadable(), .iov_len = 1}}};
  return writev(fuse_session_fd(session), parts.data(), parts.size()) < 0 ? -errno : 0;
}

}  // namespace

class KernelCacheNotifier::Use {
 public:
  explicit Use(KernelCacheNotifier& cache) : cache_(cache) {
    MutexLock lock(cache_.mutex_);
    session_ = cache_.session_;
    cache_.in_kernel_ += session_ != nullptr ? 1 : 0;
  }
  ~Use() {
    MutexLock lock(cache_.mutex_);
    cache_.in_kernel_ -= session_ != nullptr ? 1 : 0;
    cache_.changed_.NotifyAll();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  fuse_session* session() const { return session_; }

 private:
  KernelCacheNotifier& cache_;
  fuse_session* session_ = nullptr;
};

KernelCacheNotifier::KernelCacheNotifier()
    : pages_thread_([this] { Run(&KernelCacheNotifier::pages_, "termfs-notify", &KernelCacheNotifier::NotifyPages); }),
      entries_thread_(
          [this] { Run(&KernelCacheNotifier::entries_, "termfs-entries", &KernelCacheNotifier::NotifyEntry); }) {}

KernelCacheNotifier::~KernelCacheNotifier() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  pages_thread_.join();
  entries_thread_.join();
}

void KernelCacheNotifier::Attach(fuse_session* session, const std::string& mountpoint) {
  dev_t device = 0;
  if (!mountpoint.empty()) {
    Result<dev_t> known = DeviceOf(mountpoint);
    if (known.ok()) {
      device = *known;
    } else {
      LOG_WARNING("what is mounted below this mount cannot be known: {}", known.status().ToDebugString());
    }
  }
  MutexLock lock(mutex_);
  session_ = session;
  device_ = device;
  if (device != 0) {
    refresher_ = std::make_shared<SizeRefresher>(mountpoint, device);
    asker_ = std::make_shared<SizeRefresher>(mountpoint, device);
    looker_ = std::make_shared<SizeRefresher>(mountpoint, device);
    sizes_.LooksAtSizes(true);
  }
  attached_.store(true);
}

void KernelCacheNotifier::Detach() {
  attached_.store(false);
  std::shared_ptr<SizeRefresher> refresher;  // they end without the lock
  std::shared_ptr<SizeRefresher> asker;
  std::shared_ptr<SizeRefresher> looker;
  MutexLock lock(mutex_);
  refresher = std::move(refresher_);
  asker = std::move(asker_);
  looker = std::move(looker_);
  session_ = nullptr;
  while (in_kernel_ > 0) {  // ends with the request that it waits for, which has a deadline
    changed_.WaitFor(mutex_, kIdle);
  }
}

bool KernelCacheNotifier::InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) {
  const auto begin = steady_clock::now();
  MutexLock lock(mutex_);
  if (session_ == nullptr) {
    return true;
  }
  const uint64_t number = ++pages_.queued;
  pages_.items.push_back({ino, offset, length});
  changed_.NotifyAll();
  while (pages_.done < number) {
    const auto deadline = std::min(begin, pages_.since) + kPatience;
    if (steady_clock::now() >= deadline) {
      if (const auto left_out = goes_on_without_.Next()) {  // behind one page that is in use any number may wait
        LOG_WARNING(
            "the kernel has not yet dropped its pages of inode {}; going on without ({} more such since the "
            "last line)",
            ino, *left_out);
      }
      return false;  // stays queued
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

void KernelCacheNotifier::RefreshSize(uint64_t ino, uint64_t generation) {
  std::shared_ptr<SizeRefresher> refresher;
  {
    MutexLock lock(mutex_);
    refresher = refresher_;
  }
  if (refresher == nullptr) {
    return;
  }
  const auto gives_up = [this, ino] { return IsCutting(ino); };
  BeginNotification(ino);
  if (!refresher->Refresh(ino, generation, gives_up)) {
    LOG_DEBUG("the kernel was not made to ask for the size of inode {}", ino);
  }
  sizes_.EndNotification(ino);
}

void KernelCacheNotifier::AwaitSize(uint64_t ino, uint64_t generation, uint64_t least, uint64_t most) {
  std::shared_ptr<SizeRefresher> asker;
  std::shared_ptr<SizeRefresher> looker;
  {
    MutexLock lock(mutex_);
    asker = asker_;
    looker = looker_;
  }
  if (asker == nullptr || looker == nullptr) {
    return;
  }
  const auto begin = steady_clock::now();
  auto asks_again = begin;
  for (auto now = begin; now < begin + kSizePatience; now = steady_clock::now()) {
    const uint64_t given = sizes_.given(ino);
    const std::optional<uint64_t> known = looker->Look(ino, generation);
    if (!known) {
      sizes_.LooksAtSizes(!looker->useless());
      return;
    }
    sizes_.Seen(ino, *known, given);
    if (*known >= least && *known <= most) {
      return;
    }
    if (now >= asks_again && !IsCutting(ino)) {
      asker->BeginRefresh(ino, generation, [this, ino] { return IsCutting(ino); });
      asks_again = now + kAsksAgain;
    }
    std::this_thread::sleep_for(kLooksAgain);
  }
  LOG_DEBUG("the kernel goes by another size of inode {} than {} to {} bytes", ino, least, most);
}

bool KernelCacheNotifier::IsCutting(uint64_t ino) {
  MutexLock lock(mutex_);
  return std::find(cutting_.begin(), cutting_.end(), ino) != cutting_.end();
}

KernelCacheNotifier::OwnCut::OwnCut(KernelCacheNotifier& cache, uint64_t ino) : cache_(cache), ino_(ino) {
  cache_.sizes_.BeginOwnCut(ino_, steady_clock::now());
  MutexLock lock(cache_.mutex_);
  cache_.cutting_.push_back(ino_);
}

void KernelCacheNotifier::OwnCut::BeforeAnswer() {
  cache_.BeginNotification(ino_);
  cache_.sizes_.EndNotification(ino_);
}

KernelCacheNotifier::OwnCut::~OwnCut() {
  {
    MutexLock lock(cache_.mutex_);
    cache_.cutting_.erase(std::find(cache_.cutting_.begin(), cache_.cutting_.end(), ino_));
  }
  cache_.sizes_.EndOwnCut(ino_, steady_clock::now());
}

void KernelCacheNotifier::InvalidateAttributes(uint64_t ino, steady_clock::time_point recalled) {
  const Use use(*this);
  if (use.session() == nullptr || NotifyAttributes(use.session(), ino) != -ENOENT) {
    return;
  }
  // What was noted later than the recall was not given; but another inode's note may have taken this one's place.
  const auto given = TimeOf(given_[ino % given_.size()].load(std::memory_order_seq_cst));
  const auto made = std::min(given, recalled) + kMaking;
  // The kernel may be about to make the inode, of a reply that it has: it is told once more when it is there.
  if (steady_clock::now() < made) {
    NewEpoch();  // should that take longer, its name is looked up again in any case
  }
  while (steady_clock::now() < made) {
    std::this_thread::sleep_for(kLookAgain);
    if (NotifyAttributes(use.session(), ino) != -ENOENT) {
      return;
    }
  }
}

void KernelCacheNotifier::AfterWriteBack(uint64_t ino) {
  if (steady_clock::now() >= TimeOf(given_[ino % given_.size()].load(std::memory_order_seq_cst)) + kLooksAtReply) {
    return;
  }
  const Use use(*this);
  if (use.session() != nullptr) {
    NotifyAttributes(use.session(), ino);
  }
}

void KernelCacheNotifier::BeginNotification(uint64_t ino) {
  while (true) {
    const auto now = steady_clock::now();
    const auto until = sizes_.BeginNotification(ino, now);
    if (until <= now) {
      return;
    }
    std::this_thread::sleep_for(std::min<steady_clock::duration>(until - now, kLookAgain));
  }
}

void KernelCacheNotifier::StoreSize(uint64_t ino, uint64_t size) {
  const Use use(*this);
  const int error = use.session() != nullptr ? NotifySize(use.session(), ino, size) : 0;
  if (error != -EFAULT && !Expected(error)) {
    LOG_WARNING("the kernel did not take over the size of inode {}: {}", ino, std::strerror(-error));
  }
}

bool KernelCacheNotifier::InvalidateEntry(uint64_t parent, std::string_view name) {
  if (mounts_below_.load(std::memory_order_relaxed)) {
    HasMountsBelow();  // maybe not any more
  }
  if (!has_epochs() || steady_clock::now() >= EntriesEnd()) {
    return true;  // the kernel asks for every entry
  }
  if (UsesNoneOf(parent)) {
    return true;
  }
  const auto begin = steady_clock::now();
  const auto deadline = std::min(begin + kEntryPatienceAboveMounts, EntriesEnd());
  const Entry entry{.parent = parent, .name = std::string(name)};
  if (!Notified(entry, true, begin + kEntryPatience)) {
    if (NewEpoch()) {
      return true;
    }
    if (!Notified(entry, false, deadline)) {
      return steady_clock::now() >= EntriesEnd();
    }
  }
  NoteNotified(parent, begin);
  return DropMoved(parent, name, deadline) || steady_clock::now() >= EntriesEnd();
}

bool KernelCacheNotifier::UsesNoneOf(uint64_t directory) {
  int64_t voided = 0;
  {
    MutexLock lock(mutex_);
    const Directory& known = directories_[directory % directories_.size()];
    voided = known.ino == directory ? known.voided : 0;
  }
  return any_name_given_.load(std::memory_order_seq_cst) < voided &&
         names_given_[directory % names_given_.size()].load(std::memory_order_seq_cst) < voided;
}

void KernelCacheNotifier::NoteNotified(uint64_t directory, steady_clock::time_point begin) {
  const auto now = steady_clock::now();
  {
    MutexLock lock(mutex_);
    Directory& known = directories_[directory % directories_.size()];
    if (known.ino != directory) {
      known = {.ino = directory, .since = begin};
    }
    if (now - known.since > kCostWindow) {
      known.since = begin;
      known.waited = {};
    }
    known.waited += now - begin;
    if (known.waited < kCostly || now < drops_again_) {
      return;
    }
    drops_again_ = now + kBetweenDrops;
  }
  if (!NewEpoch()) {
    return;
  }
  MutexLock lock(mutex_);
  Directory& known = directories_[directory % directories_.size()];
  if (known.ino == directory) {
    known.voided = std::chrono::duration_cast<Nanoseconds>(begin.time_since_epoch()).count();
  }
}

bool KernelCacheNotifier::DropMoved(uint64_t parent, std::string_view name, steady_clock::time_point deadline) {
  std::vector<MovedNames::Name> dropped;
  while (true) {
    std::optional<std::vector<MovedNames::Name>> names;
    {
      MutexLock lock(mutex_);
      names = moved_.Where(parent, name, steady_clock::now());
    }
    const auto is_left = [&](const MovedNames::Name& one) {
      return std::find(dropped.begin(), dropped.end(), one) == dropped.end();
    };
    if (names.has_value() && std::none_of(names->begin(), names->end(), is_left)) {
      return true;
    }
    if (NewEpoch()) {
      return true;
    }
    if (!names.has_value()) {
      return false;
    }
    for (const MovedNames::Name& one : *names) {
      if (is_left(one)) {
        if (!Notified({.parent = one.parent, .name = one.name, .expires = true}, false, deadline)) {
          return false;
        }
        dropped.push_back(one);
      }
    }
  }
}

void KernelCacheNotifier::Moves(MovedNames::Name from, MovedNames::Name to, bool exchange) {
  for (const uint64_t directory : {from.parent, to.parent}) {
    names_given_[directory % names_given_.size()].store(NowNanoseconds(), std::memory_order_seq_cst);
  }
  const auto until = EntriesEnd();
  if (has_epochs() && steady_clock::now() < until) {
    MutexLock lock(mutex_);
    moved_.Add(std::move(from), std::move(to), exchange, until);
  }
}

bool KernelCacheNotifier::Notified(const Entry& entry, bool gives_up_early, steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  if (session_ == nullptr) {
    return true;
  }
  const auto held_up = [&]() REQUIRES(mutex_) { return gives_up_early && IsChanging(entry.parent); };
  if (held_up() || (gives_up_early && entries_.done < entries_.queued)) {
    return false;
  }
  const uint64_t number = ++entries_.queued;
  entries_.items.push_back(entry);
  changed_.NotifyAll();
  while (entries_.done < number && !held_up() && changed_.WaitUntil(mutex_, deadline)) {
  }
  return entries_.done >= number;
}

void KernelCacheNotifier::ServerLost() {
  {
    const Use use(*this);
    if (use.session() == nullptr) {
      return;
    }
    NotifyAttributes(use.session(), FUSE_ROOT_ID);
  }
  if (!has_epochs() || steady_clock::now() >= EntriesEnd() || NewEpoch()) {
    return;
  }
  LOG_INFO("something is mounted below this mount: waiting until the time of its directory entries is over");
  MutexLock lock(mutex_);
  while (session_ != nullptr && !ending_ && steady_clock::now() < EntriesEnd()) {
    changed_.WaitFor(mutex_, kLookAgainForEnd);
  }
}

bool KernelCacheNotifier::AboutToGive(uint64_t ino, uint64_t directory, Nanoseconds entry) {
  const int64_t now = NowNanoseconds();
  if (ino != 0) {
    given_[ino % given_.size()].store(now, std::memory_order_seq_cst);
  }
  if (!has_epochs() || !attached_.load(std::memory_order_relaxed) || mounts_below_.load(std::memory_order_relaxed)) {
    return false;
  }
  if (entry > Nanoseconds(0)) {
    (directory == 0 ? any_name_given_ : names_given_[directory % names_given_.size()])
        .store(now, std::memory_order_seq_cst);
    const int64_t until = now + entry.count();
    int64_t known = entries_until_.load(std::memory_order_seq_cst);
    // Not for each one a store into what all threads look at.
    while (until > known + kEntrySlack.count() && !entries_until_.compare_exchange_weak(known, until)) {
    }
  }
  return true;
}

steady_clock::time_point KernelCacheNotifier::EntriesEnd() const {
  return TimeOf(entries_until_.load(std::memory_order_seq_cst)) + kEntrySlack + kEntryMargin;
}

bool KernelCacheNotifier::HasMountsBelow() {
  dev_t device;
  {
    MutexLock lock(mutex_);
    device = device_;
  }
  const bool below = device != 0 && AnyMountBelow(device);
  mounts_below_.store(below, std::memory_order_relaxed);
  return below;
}

bool KernelCacheNotifier::IsChanging(uint64_t directory) const {
  return std::find(changing_.begin(), changing_.end(), directory) != changing_.end();
}

KernelCacheNotifier::Change::Change(KernelCacheNotifier& cache, uint64_t directory)
    : cache_(cache), directory_(directory) {
  MutexLock lock(cache_.mutex_);
  cache_.changing_.push_back(directory_);
  if (!cache_.entries_.items.empty() || cache_.entries_.done < cache_.entries_.queued) {
    cache_.changed_.NotifyAll();
  }
}

KernelCacheNotifier::Change::~Change() {
  MutexLock lock(cache_.mutex_);
  cache_.changing_.erase(std::find(cache_.changing_.begin(), cache_.changing_.end(), directory_));
}

template <typename Item>
void KernelCacheNotifier::Run(Line<Item> KernelCacheNotifier::*lines, const char* name,
                              void (KernelCacheNotifier::*notify)(fuse_session*, const Item&)) {
  pthread_setname_np(pthread_self(), name);
  while (true) {
    Item next{};
    {
      MutexLock lock(mutex_);
      Line<Item>& line = this->*lines;
      while (line.items.empty() && !ending_) {
        changed_.WaitFor(mutex_, kIdle);
      }
      if (line.items.empty()) {
        return;
      }
      next = std::move(line.items.front());
      line.items.pop_front();
      line.since = steady_clock::now();
    }
    {
      const Use use(*this);
      if (use.session() != nullptr) {
        (this->*notify)(use.session(), next);
      }
    }
    MutexLock lock(mutex_);
    (this->*lines).done++;
    (this->*lines).since = steady_clock::time_point::max();
    changed_.NotifyAll();
  }
}

void KernelCacheNotifier::NotifyPages(fuse_session* session, const Pages& pages) {
  constexpr uint64_t kLast = std::numeric_limits<int64_t>::max();
  const uint64_t offset = std::min(pages.offset, kLast);
  const uint64_t length = std::min(pages.length, kLast - offset);  // 0: to the end, as in the kernel
  BeginNotification(pages.ino);
  const int error =
      fuse_lowlevel_notify_inval_inode(session, pages.ino, static_cast<off_t>(offset), static_cast<off_t>(length));
  sizes_.EndNotification(pages.ino);
  if (!Expected(error)) {
    LOG_WARNING("the kernel did not drop its pages of inode {}: {}", pages.ino, std::strerror(-error));
  }
}

int KernelCacheNotifier::NotifyAttributes(fuse_session* session, uint64_t ino) {
  BeginNotification(ino);
  const int error = fuse_lowlevel_notify_inval_inode(session, ino, -1, 0);  // negative: no pages
  sizes_.EndNotification(ino);
  if (!Expected(error)) {
    LOG_WARNING("the kernel did not drop the attributes of inode {}: {}", ino, std::strerror(-error));
  }
  return error;
}

void KernelCacheNotifier::NotifyEntry(fuse_session* session, const Entry& entry) {
  const int error = entry.expires
                        ? ExpireEntry(session, entry.parent, entry.name)
                        : fuse_lowlevel_notify_inval_entry(session, entry.parent, entry.name.data(), entry.name.size());
  if (!Expected(error) && error != -ENOTDIR) {
    LOG_WARNING("the kernel did not drop an entry of directory {}: {}", entry.parent, std::strerror(-error));
  }
}

bool KernelCacheNotifier::NewEpoch() {
  if (!has_epochs() || HasMountsBelow()) {
    return false;
  }
  const Use use(*this);
  if (use.session() == nullptr) {
    return true;
  }
  {
    // Before the epoch: what is noted from here on may have been looked up in the new one.
    MutexLock lock(mutex_);
    moved_.Clear();
  }
  // By hand: libfuse 3.14 has no name for it.
  const fuse_out_header header{.len = sizeof(header), .error = kNotifyNewEpoch, .unique = 0};
  const ssize_t sent = write(fuse_session_fd(use.session()), &header, sizeof(header));
  if (sent < 0 && !Expected(-errno)) {
    LOG_ERROR("the kernel did not make its directory entries void: {}", std::strerror(errno));
  }
  return true;
}

}  // namespace termfs::mount
