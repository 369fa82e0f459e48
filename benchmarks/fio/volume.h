// SPDX-License-Identifier: Apache-2.0
//
// FioVolume: a served volume as fio's engine (engine.c) needs it, in C: files by their paths, and as many requests at a
// time as there are lanes, each on a thread of its own.
//
// Thread-safety: one thread, the job's. With lanes, requests are carried out by others, which touch the request and its
//                buffer until it is reaped.
// Ownership:     requests and buffers are the caller's. Files are closed before the volume, when nothing is on its way.
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
  struct FioRequest* next;
};

// `lanes`: how many requests are carried out at once; 0: only FioCarryOut will be called. The text of an error goes to
// `why`.
int FioConnect(const char* directory, unsigned lanes, struct FioVolume** volume, char* why, size_t why_bytes);
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
// REQUIRES: lanes.
void FioSubmit(struct FioVolume* volume, struct FioRequest* request);
// Waits until `least` requests are done, or `nanoseconds` have passed (negative: for as long as it takes, which the
// client library bounds); up to `most` of them are in `reaped` then. How many.
unsigned FioReap(struct FioVolume* volume, unsigned least, unsigned most, int64_t nanoseconds,
                 struct FioRequest** reaped);

#ifdef __cplusplus
}
#endif
