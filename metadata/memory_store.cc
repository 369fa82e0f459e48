// SPDX-License-Identifier: Apache-2.0
//
// Multi-version: a key maps to its values by the sequence number of the commit that wrote them. A transaction reads as
// of its first call, and Commit compares, for each key it claimed, the last commit that claimed it too. Versions that
// no reader can see are dropped when their key is written again.
#include "metadata/memory_store.h"

#include <iterator>
#include <map>
#include <set>

#include "base/mutex.h"

namespace termfs::metadata {

namespace {

using Value = std::optional<std::string>;  // nothing: deleted
using Writes = std::map<std::string, Value, std::less<>>;

struct Entry {
  uint64_t last_claim = 0;
  std::map<uint64_t, Value> versions;
};

// Merges [base, base_end) as visible at `sequence` with the newer [own, own_end); both in the order that `before` says.
template <typename BaseIterator, typename OwnIterator, typename Before>
std::vector<KeyValue> MergeScan(BaseIterator base, BaseIterator base_end, OwnIterator own, OwnIterator own_end,
                                size_t limit, Before before, const std::function<const Value*(const Entry&)>& visible) {
  std::vector<KeyValue> result;
  while (result.size() < limit && (base != base_end || own != own_end)) {
    const bool take_own = own != own_end && (base == base_end || !before(base->first, own->first));
    if (take_own) {
      if (base != base_end && base->first == own->first) {
        ++base;
      }
      if (own->second) {
        result.push_back({own->first, *own->second});
      }
      ++own;
      continue;
    }
    if (const Value* value = visible(base->second); value != nullptr && *value) {
      result.push_back({base->first, **value});
    }
    ++base;
  }
  return result;
}

class MemoryStore : public KeyValueStore {
 public:
  std::unique_ptr<Transaction> Begin() override;
  std::unique_ptr<Reader> Snapshot() override;
  Status SyncWal() override { return Status::Ok(); }

  uint64_t Register() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    active_.insert(sequence_);
    return sequence_;
  }

  void Unregister(uint64_t sequence) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    active_.erase(active_.find(sequence));
  }

  Value Get(std::string_view key, uint64_t sequence) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = entries_.find(key);
    const Value* value = it == entries_.end() ? nullptr : Visible(it->second, sequence);
    return value == nullptr ? std::nullopt : *value;
  }

  std::vector<KeyValue> Scan(std::string_view begin, std::string_view end, size_t limit, ScanOrder order,
                             uint64_t sequence, const Writes& own) EXCLUDES(mutex_) {
    if (begin >= end) {
      return {};
    }
    MutexLock lock(mutex_);
    const auto base_first = entries_.lower_bound(begin);
    const auto base_last = entries_.lower_bound(end);
    const auto own_first = own.lower_bound(begin);
    const auto own_last = own.lower_bound(end);
    const auto visible = [sequence](const Entry& entry) { return Visible(entry, sequence); };
    if (order == ScanOrder::kAscending) {
      return MergeScan(base_first, base_last, own_first, own_last, limit, std::less<std::string>(), visible);
    }
    return MergeScan(std::make_reverse_iterator(base_last), std::make_reverse_iterator(base_first),
                     std::make_reverse_iterator(own_last), std::make_reverse_iterator(own_first), limit,
                     std::greater<std::string>(), visible);
  }

  Status Commit(uint64_t sequence, const Writes& writes, const std::set<std::string, std::less<>>& claims)
      EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const std::string& key : claims) {
      const auto it = entries_.find(key);
      if (it != entries_.end() && it->second.last_claim > sequence) {
        return Status::Error(EAGAIN, "transaction conflicts with another");
      }
    }
    ++sequence_;
    for (const std::string& key : claims) {
      entries_[key].last_claim = sequence_;
    }
    for (const auto& [key, value] : writes) {
      entries_[key].versions[sequence_] = value;
    }
    for (const std::string& key : claims) {
      Prune(key);
    }
    return Status::Ok();
  }

 private:
  static const Value* Visible(const Entry& entry, uint64_t sequence) {
    const auto it = entry.versions.upper_bound(sequence);
    return it == entry.versions.begin() ? nullptr : &std::prev(it)->second;
  }

  void Prune(const std::string& key) REQUIRES(mutex_) {
    const uint64_t oldest = active_.empty() ? sequence_ : *active_.begin();
    const auto it = entries_.find(key);
    std::map<uint64_t, Value>& versions = it->second.versions;
    const auto keep = versions.upper_bound(oldest);
    if (keep != versions.begin()) {
      versions.erase(versions.begin(), std::prev(keep));
    }
    const bool gone = versions.empty() || (versions.size() == 1 && !versions.begin()->second);
    if (gone && it->second.last_claim <= oldest) {
      entries_.erase(it);
    }
  }

  Mutex mutex_;
  uint64_t sequence_ GUARDED_BY(mutex_) = 0;
  std::multiset<uint64_t> active_ GUARDED_BY(mutex_);  // the sequence numbers that readers and transactions read at
  std::map<std::string, Entry, std::less<>> entries_ GUARDED_BY(mutex_);
};

class MemoryReader : public Reader {
 public:
  explicit MemoryReader(MemoryStore& store) : store_(store), sequence_(store.Register()) {}
  ~MemoryReader() override { store_.Unregister(sequence_); }

  Result<Value> Get(std::string_view key) override { return store_.Get(key, sequence_); }
  Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                     ScanOrder order) override {
    return store_.Scan(begin, end, limit, order, sequence_, {});
  }

 private:
  MemoryStore& store_;
  const uint64_t sequence_;
};

class MemoryTransaction : public Transaction {
 public:
  explicit MemoryTransaction(MemoryStore& store) : store_(store) {}
  ~MemoryTransaction() override {
    if (started_) {
      store_.Unregister(sequence_);
    }
  }

  Result<Value> Get(std::string_view key) override {
    Start();
    const auto own = writes_.find(key);
    return own != writes_.end() ? own->second : store_.Get(key, sequence_);
  }
  Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                     ScanOrder order) override {
    Start();
    return store_.Scan(begin, end, limit, order, sequence_, writes_);
  }
  Result<Value> GetForUpdate(std::string_view key) override {
    Start();
    claims_.emplace(key);
    return Get(key);
  }
  Status Put(std::string_view key, std::string_view value) override { return Write(key, std::string(value)); }
  Status Delete(std::string_view key) override { return Write(key, std::nullopt); }
  Status Commit() override {
    Start();
    return store_.Commit(sequence_, writes_, claims_);
  }

 private:
  void Start() {
    if (!started_) {
      sequence_ = store_.Register();
      started_ = true;
    }
  }
  Status Write(std::string_view key, Value value) {
    Start();
    claims_.emplace(key);
    writes_.insert_or_assign(std::string(key), std::move(value));
    return Status::Ok();
  }

  MemoryStore& store_;
  bool started_ = false;
  uint64_t sequence_ = 0;
  Writes writes_;
  std::set<std::string, std::less<>> claims_;
};

std::unique_ptr<Transaction> MemoryStore::Begin() { return std::make_unique<MemoryTransaction>(*this); }
std::unique_ptr<Reader> MemoryStore::Snapshot() { return std::make_unique<MemoryReader>(*this); }

}  // namespace

std::unique_ptr<KeyValueStore> NewMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace termfs::metadata
