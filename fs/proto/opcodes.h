// SPDX-License-Identifier: Apache-2.0
//
// The operations between client and server. A request's body is the table of fs/proto/fs.fbs named here, its reply's
// body the one after the arrow; kFsRead and kFsWrite, which are hot, are fixed structs of fs/proto/data.h.
//
// Requests whose effect must not happen twice carry a mark (tlib::RequestMark): kFsWrite that appends or is a first
// one, kFsSet, kFsMake, kFsLink, kFsUnlink, kFsRemoveDirectory, kFsRename, kFsOpen with O_TRUNC, kFsCreate,
// kFsSetXattr, kFsRemoveXattr, kFsCopy. The server keeps a receipt of the last one of each slot, stored together with
// the effect, and answers by it when the same request comes again in another session of the client.
#pragma once

#include <cstdint>

#include "tlib/rpc/messages.h"

namespace termfs::fs {

enum Opcode : uint16_t {
  kFsRead = tlib::kFirstServiceOpcode,  // ReadBody -> ReadReply, Map; bytes by `out`
  kFsWrite,                             // WriteBody, bytes by `in` -> WriteReply, Map
  kFsLookup,                            // Name -> AttributesReply
  kFsGetAttributes,                     // Inode -> AttributesReply
  kFsSet,                               // Set -> AttributesReply
  kFsMake,                              // Make (target of a symlink by `in`) -> AttributesReply
  kFsReadLink,                          // Inode -> target by `out`
  kFsLink,                              // Link -> AttributesReply
  kFsUnlink,                            // Name -> AttributesReply, of the directory only
  kFsRemoveDirectory,                   // Name -> the same
  kFsRename,                            // Rename -> AttributesReply, without attributes
  kFsReadDirectory,                     // ReadDirectory -> Directory by `out`
  kFsOpen,                              // Open -> Opened
  kFsCreate,                            // Make -> Opened
  kFsRelease,                           // Release ->
  kFsSync,                              // Sync ->
  kFsSeek,                              // Seek -> Position
  kFsAllocate,                          // Allocate ->
  kFsSetXattr,                          // Xattr, value by `in` ->
  kFsGetXattr,                          // Xattr -> value by `out`
  kFsListXattr,                         // Inode -> names, each with a NUL, by `out`
  kFsRemoveXattr,                       // Xattr ->
  kFsStat,                              // Inode -> VolumeSpace
  kFsInvalidated,                       // Ticket ->
  kFsReopen,                            // Reopen ->
  kFsResumed,                           // Resumed -> Memory; everything is open again that was in the session before,
                                        // and nothing that was granted in any before is used any more
  kFsGrants,                            // Grants ->
  kFsCopy,                              // Copy -> Copied
  kFsMakeUnnamed,                       // Make, without a name -> Opened
  kFsLock,                              // Lock -> Locked
  kFsTestLock,                          // Lock -> Lock: one that is in the way; type 2 (none): nothing is
  kFsCancelLock,                        // Ticket -> ; ENOENT: it does not wait, or not any more, and was not granted
  kFsReclaim,                           // Reclaim -> Reclaimed; before Resumed
  kFsCachePages,                        // CachePages -> ; the file is open, and its pages are about to be cached
  kFsEnd,

  // From the server to the client, fixed structs of fs/proto/data.h.
  kFsRevoke = 128,  // RevokeBody ->
  kFsInvalidate,    // InvalidateBody -> ; kFsInvalidated follows when the kernel has dropped what it cached
  kFsRecall,        // Recall (of fs.fbs) -> ; the same for attributes and directory entries
  kFsFirstWrite,    // FirstWriteBody -> FirstWriteReply; from then on none will be posted
  kFsLockGranted,   // Ticket (of fs.fbs) -> ; what waited is to be asked for again
  kFsShrunk,        // ShrunkBody -> ; kFsInvalidated follows when the kernel goes by the smaller size

  // Over the control channel.
  kAdminStatus = 192,  // -> Status
  kAdminMetrics,       // -> Metrics
  kAdminSet,           // Setting ->
  kAdminQuotas,        // -> Quotas
};

}  // namespace termfs::fs
