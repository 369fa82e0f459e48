// SPDX-License-Identifier: Apache-2.0
//
// Clients that may come back after their session was lost, and the receipts of what was done for them.
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

// What comes from the store may be anything.
int64_t AddWrapping(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

Status Leave(Operation& op, const Stamp& stamp, Receipt receipt) {
  const std::string key = ReceiptKey(stamp.client, stamp.slot);
  ASSIGN_OR_RETURN(const auto present, op.transaction().GetForUpdate(key));
  if (present) {
    ASSIGN_OR_RETURN(const Receipt last, DecodeReceipt(*present));
    if (last.sequence > stamp.sequence || (last.sequence == stamp.sequence && !last.partly)) {
      return Status::Error(ECANCELED, "the client has gone on without this request");
    }
    receipt.inodes = last.inodes;
  }
  receipt.sequence = stamp.sequence;
  receipt.inodes = AddWrapping(receipt.inodes, op.TakeInodeDelta());
  return op.transaction().Put(key, EncodeReceipt(receipt));
}

}  // namespace

Status Namespace::Run(const Stamp* stamp, Receipt& receipt, const std::function<Status(Operation&)>& body) {
  if (stamp == nullptr) {
    return Run(body);
  }
  return Run([&](Operation& op) -> Status {
    RETURN_IF_ERROR(body(op));
    return Leave(op, *stamp, receipt);
  });
}

Status Namespace::AddClient(const ClientRecord& client) {
  return Retry(store_, [&](Transaction& transaction) {
    return transaction.Put(ClientKey(client.client), EncodeClient(client));
  });
}

Status Namespace::RemoveClient(ClientNumber client) {
  return Retry(store_, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto receipts,
                     transaction.Scan(ReceiptKey(client, 0), ReceiptKey(client, kMaxSlots), kMaxSlots));
    int64_t inodes = 0;
    for (const KeyValue& found : receipts) {
      ASSIGN_OR_RETURN(const auto claimed, transaction.GetForUpdate(found.key));
      if (claimed) {
        ASSIGN_OR_RETURN(const Receipt receipt, DecodeReceipt(*claimed));
        inodes = AddWrapping(inodes, receipt.inodes);
        RETURN_IF_ERROR(transaction.Delete(found.key));
      }
    }
    RETURN_IF_ERROR(transaction.Delete(ClientKey(client)));
    // Last, as in Operation::Finish.
    return inodes == 0 ? Status::Ok()
                       : AddToInodeCount(transaction, static_cast<uint8_t>(client % kInodeCountShards), inodes);
  });
}

Result<std::vector<ClientRecord>> Namespace::ListClients() {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  std::vector<ClientRecord> clients;
  RETURN_IF_ERROR(ForEach(*reader, ClientKey(0), EndOfType('L'), [&](const KeyValue& pair) -> Status {
    Decoder key(pair.key);
    key.U8();
    const ClientNumber client = key.U64();
    if (!key.Finished()) {
      return Status::Error(EIO, "damaged key of a client: run termfs fsck");
    }
    ASSIGN_OR_RETURN(clients.emplace_back(), DecodeClient(client, pair.value));
    return Status::Ok();
  }));
  return clients;
}

Result<std::optional<Receipt>> Namespace::FindReceipt(const Stamp& stamp) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const auto value, reader->Get(ReceiptKey(stamp.client, stamp.slot)));
  if (!value) {
    return std::optional<Receipt>();
  }
  ASSIGN_OR_RETURN(const Receipt receipt, DecodeReceipt(*value));
  return receipt.sequence == stamp.sequence ? std::optional<Receipt>(receipt) : std::nullopt;
}

}  // namespace termfs::metadata
