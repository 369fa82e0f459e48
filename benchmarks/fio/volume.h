// SPDX-License-Identifier: Apache-2.0
//
// FioVolume: a served volume as fio's engine (engine.c) needs it, in C: files by their paths, and requests under
// way: reads in one lane of the client library, writes and syncs on threads, each with a lane of its own.
//
// Thread-safety: one thread, the job's. Threads touch a write and its buffer until it is reaped.
// Ownership:     requests and buffers are the caller's. Files are closed before the volume, when nothing is under way.
// Errors:        0, or a positive errno.
// Fork:          a FioVolume has threads, so it does not survive a fork; close it before.
#pragma once

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
extern "C" {
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

struct FioVolume;
struct FioFile;

enum FioKind { kFioRead, kFioWrite, kFioSync, kFioDataSync };

struct FioRequest {
  enum FioKind kind;
  struct FioFile* file;
  uint64_t offset;
  void* buffer;
  size_t length;
  void* owner;  // the caller's
  // Results, once it is carried out, or reaped.
  int error;
  size_t done;  // bytes; fewer than `length` at the end of the file
  // FioVolume's.
  size_t place;
  bool at_end;
};

// `reads`: how many may be under way; 0: only FioCarryOut will be called. `largest`: bytes of one of them; what is
// longer takes several steps. Threads are started as they are needed. The text of an error goes to `why`.
int FioConnect(const char* directory, unsigned reads, size_t largest, struct FioVolume** volume, char* why,
               size_t why_bytes);
void FioDisconnect(struct FioVolume* volume);

// `path` is from the volume's root, with or without a leading slash. ENOENT leaves `size` 0.
int FioSizeOf(struct FioVolume* volume, const char* path, uint64_t* size);
// `flags`: as open(2); O_CREAT makes the directories on the way, too.
int FioOpen(struct FioVolume* volume, const char* path, int flags, struct FioFile** file);
void FioClose(struct FioVolume* volume, struct FioFile* file);
int FioUnlink(struct FioVolume* volume, const char* path);
int FioResize(struct FioVolume* volume, struct FioFile* file, uint64_t size);
// As fallocate(2).
int FioAllocate(struct FioVolume* volume, struct FioFile* file, int mode, uint64_t size);

// On the calling thread.
void FioCarryOut(struct FioVolume* volume, struct FioRequest* request);
// True: it is done. False: it is under way. REQUIRES: of a read: fewer than `reads` are.
bool FioBegin(struct FioVolume* volume, struct FioRequest* request);
// With `wait`, returns when `least` requests are done; up to `most` of them are in `reaped` then. How many, or a
// negative errno.
int FioReap(struct FioVolume* volume, unsigned least, unsigned most, bool wait, struct FioRequest** reaped);

#ifdef __cplusplus
}
#endif
