// SPDX-License-Identifier: Apache-2.0
//
// Ending: lets an inode end in the transaction that takes its last name, when nobody has it open, works on it, or is
// expected back for it. So an unlink is one transaction, and leaves nothing to be done but for its pages.
//
//   transaction: MayBeOpen --no--> [in the gate, `releasing`] --committed--> gone: whoever opens it finds nothing
//                    |                       +------------------failed-----> as before
//                    +--yes--> an orphan: its last closer gives it to the reclaimer
//                    +--in a grace--> an orphan: the end of the grace, or its last closer, gives it to the reclaimer
//
// An inode that another one replaces has a grace (fs/server/replaced.h), as has one that was exchanged, or lost another
// name so, just before.
//
// An opener is counted before it looks at the inode, and who makes and opens one in one request is counted before it
// has a name. So either MayBeOpen sees the opener, or the opener sees `releasing` and passes the gate before it looks.
//
// Thread-safety: one thread at a time. Ownership: everything is borrowed.
#pragma once

#include "fs/server/clients.h"
#include "fs/server/inode_table.h"
#include "fs/server/replaced.h"
#include "metadata/namespace.h"

namespace termfs::fs::server {

class Ending {
 public:
  enum class By { kRemoval, kReplacement };
  Ending(metadata::Namespace& names, InodeTable& inodes, const Clients& clients, ReplacedInodes& replaced, By by)
      : names_(names), inodes_(inodes), clients_(clients), replaced_(replaced), by_(by) {}
  ~Ending() { TakeBack(); }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  // For the transaction.
  metadata::MayBeOpen may_be_open() {
    return [this](uint64_t ino) { return MayBeOpen(ino); };
  }
  // It has been committed. Ends what did not fit into it: `removed` is an orphan then only if somebody may have it
  // open, or the store failed. Where one may block.
  void Committed(metadata::Removed& removed);

 private:
  bool MayBeOpen(uint64_t ino);
  // True: it has one now.
  bool BeginGrace(uint64_t ino);
  void TakeBack();

  metadata::Namespace& names_;
  InodeTable& inodes_;
  const Clients& clients_;
  ReplacedInodes& replaced_;
  const By by_;
  InodeRef inode_;  // its gate is ours
  InodeRef grace_;  // begun for it
};

}  // namespace termfs::fs::server
