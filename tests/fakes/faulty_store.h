// SPDX-License-Identifier: Apache-2.0
//
// FaultyStore: a KeyValueStore over another whose commits fail at will: with an error (EIO, tagged "injected"), or with
// conflicts (EAGAIN) that a Retry must survive. A failed commit leaves nothing behind, as the seam promises.
//
// Thread-safety: any thread. Ownership: borrows the other store.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "metadata/key_value_store.h"

namespace termfs::metadata {

class FaultyStore : public KeyValueStore {
 public:
  explicit FaultyStore(KeyValueStore& store) : store_(store) {}

  // The next `count` commits after `passing` more fail with `code`.
  void FailCommits(int code, int count, int passing = 0) {
    code_ = code;
    failing_ = count;
    passing_ = passing;
  }
  void Heal() { failing_ = 0; }
  // Runs `action` once, just before the next commit: what another thread might do in between. Not thread-safe.
  void BeforeNextCommit(std::function<void()> action) { before_commit_ = std::move(action); }
  int commits() const { return commits_; }
  int syncs() const { return syncs_; }

  std::unique_ptr<Transaction> Begin() override { return std::make_unique<FaultyTransaction>(*this, store_.Begin()); }
  std::unique_ptr<Reader> Snapshot() override { return store_.Snapshot(); }
  Status SyncWal() override {
    ++syncs_;
    return store_.SyncWal();
  }

 private:
  class FaultyTransaction : public Transaction {
   public:
    FaultyTransaction(FaultyStore& owner, std::unique_ptr<Transaction> transaction)
        : owner_(owner), transaction_(std::move(transaction)) {}
    Result<std::optional<std::string>> Get(std::string_view key) override { return transaction_->Get(key); }
    Result<std::optional<std::string>> GetForUpdate(std::string_view key) override {
      return transaction_->GetForUpdate(key);
    }
    Result<std::vector<KeyValue>> Scan(std::string_view begin, std::string_view end, size_t limit,
                                       ScanOrder order) override {
      return transaction_->Scan(begin, end, limit, order);
    }
    Status Grows() override { return transaction_->Grows(); }
    void Frees() override { transaction_->Frees(); }
    Status Put(std::string_view key, std::string_view value) override { return transaction_->Put(key, value); }
    Status Delete(std::string_view key) override { return transaction_->Delete(key); }
    Status Commit() override {
      ++owner_.commits_;
      if (owner_.before_commit_) {
        std::exchange(owner_.before_commit_, nullptr)();
      }
      if (owner_.passing_ > 0) {
        --owner_.passing_;
      } else if (owner_.failing_ > 0) {
        --owner_.failing_;
        return Status::Error(owner_.code_, "injected: commit failed");
      }
      return transaction_->Commit();
    }

   private:
    FaultyStore& owner_;
    const std::unique_ptr<Transaction> transaction_;
  };

  KeyValueStore& store_;
  std::function<void()> before_commit_;
  std::atomic<int> code_ = 0;
  std::atomic<int> failing_ = 0;
  std::atomic<int> passing_ = 0;
  std::atomic<int> commits_ = 0;
  std::atomic<int> syncs_{0};
};

}  // namespace termfs::metadata
