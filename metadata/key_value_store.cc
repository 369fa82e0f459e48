// SPDX-License-Identifier: Apache-2.0
#include "metadata/key_value_store.h"

#include <thread>

namespace termfs::metadata {

namespace {

Status Attempt(KeyValueStore& store, const std::function<Status(Transaction&)>& body) {
  const std::unique_ptr<Transaction> transaction = store.Begin();
  RETURN_IF_ERROR(body(*transaction));
  return transaction->Commit();
}

}  // namespace

Status ForEach(Reader& reader, std::string begin, std::string_view end,
               const std::function<Status(const KeyValue&)>& visit) {
  constexpr size_t kPortion = 1000;
  while (true) {
    ASSIGN_OR_RETURN(const auto pairs, reader.Scan(begin, end, kPortion));
    for (const KeyValue& pair : pairs) {
      RETURN_IF_ERROR(visit(pair));
    }
    if (pairs.size() < kPortion) {
      return Status::Ok();
    }
    begin = pairs.back().key + '\0';
  }
}

Status Retry(KeyValueStore& store, const std::function<Status(Transaction&)>& body) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    Status status = Attempt(store, body);
    if (status.code() != EAGAIN) {
      return status;
    }
    std::this_thread::yield();
  }
  return Status::Error(EBUSY, "metadata transaction: too many conflicts with others");
}

}  // namespace termfs::metadata
