// SPDX-License-Identifier: Apache-2.0
//
// An ioengine for fio that uses the client library of termfs, without a kernel in between:
//
//   fio --ioengine=external:build/benchmarks/fio/libtermfs_fio.so --volume=/srv/vol --filename=a/file --size=1G ...
//
// A job is a client of its own, with one lane (fs/client/file_system.h), which its thread uses. With an --iodepth above
// 1 reads of what is not in memory are under way together in it; for writes and syncs there are threads then, up to the
// depth, each with a lane. Requests are copied between fio's buffers and the lanes', which fio's own engines need not
// do.
//
// As on a file system, files are made before the jobs start: with contents where they will be read or overwritten, else
// as --fallocate says. --directory is checked by fio on the host, so directories are a part of --filename here.
//
// Nothing is connected when fio forks a job: what happens before has a connection for as long as it takes.
#include <errno.h>
#include <fcntl.h>
#include <fio.h>
#include <linux/falloc.h>
#include <optgroup.h>
#include <stdint.h>
#include <stdlib.h>

#include "benchmarks/fio/volume.h"

__attribute__((visibility("default"))) extern struct ioengine_ops ioengine;

struct Options {
  void* unused;  // fio takes an option at offset 0 for none
  char* volume;
};

struct Job {
  struct FioVolume* volume;
  struct FioRequest** reaped;
  bool one_by_one;
};

static int Connect(struct thread_data* td, unsigned reads, struct FioVolume** volume) {
  const struct Options* options = td->eo;
  char why[512];
  if (options->volume == NULL) {
    log_err("termfs: volume= is not given: the directory of a volume that is served\n");
    return EINVAL;
  }
  const int error = FioConnect(options->volume, reads, td_max_bs(td), volume, why, sizeof(why));
  if (error != 0) {
    log_err("termfs: %s: %s\n", options->volume, why);
  }
  return error;
}

// Before the jobs start: how large the files are.
static int Setup(struct thread_data* td) {
  struct FioVolume* volume;
  struct fio_file* f;
  unsigned i;
  if (td->io_ops != &ioengine) {
    log_err("termfs: this engine was built with headers of another fio\n");
    return 1;
  }
  int error = Connect(td, 0, &volume);
  if (error != 0) {
    td_verror(td, error, "connect");
    return 1;
  }
  for_each_file(td, f, i) {
    f->filetype = FIO_TYPE_FILE;
    error = FioSizeOf(volume, f->file_name, &f->real_file_size);
    if (error != 0 && error != ENOENT) {
      td_verror(td, error, "stat");
      break;
    }
    fio_file_set_size_known(f);
  }
  FioDisconnect(volume);
  return td->error != 0;
}

static int WriteContents(struct thread_data* td, struct FioVolume* volume, struct FioFile* file, uint64_t size) {
  const size_t piece = 1U << 20;
  struct FioRequest request = {.kind = kFioWrite, .file = file, .buffer = malloc(piece)};
  if (request.buffer == NULL) {
    return ENOMEM;
  }
  for (; request.offset < size && !td->terminate && request.error == 0; request.offset += request.length) {
    request.length = size - request.offset < piece ? size - request.offset : piece;
    fill_io_buffer(td, request.buffer, request.length, request.length);
    FioCarryOut(volume, &request);
  }
  if (request.error == 0 && td->o.create_fsync) {
    request.kind = kFioSync;
    FioCarryOut(volume, &request);
  }
  free(request.buffer);
  return request.error;
}

static int Reserve(struct thread_data* td, struct FioVolume* volume, struct FioFile* file, uint64_t size) {
  switch (td->o.fallocate_mode) {
    case FIO_FALLOCATE_NONE:
      return 0;
    case FIO_FALLOCATE_TRUNCATE:
      return FioResize(volume, file, size);
    case FIO_FALLOCATE_KEEP_SIZE:
      return FioAllocate(volume, file, FALLOC_FL_KEEP_SIZE, size);
    default:
      return FioAllocate(volume, file, 0, size);
  }
}

static int LayOut(struct thread_data* td, const char* path, uint64_t size) {
  const bool contents = td_read(td) || (td->o.overwrite && !td->o.file_append);
  const int flags = O_RDWR | (td->o.allow_create ? O_CREAT : 0) | (td->o.file_append && !contents ? 0 : O_TRUNC);
  struct FioVolume* volume;
  struct FioFile* file;
  int error = Connect(td, 0, &volume);
  if (error != 0) {
    return error;
  }
  error = FioOpen(volume, path, flags, &file);
  if (error == 0) {
    error = contents ? WriteContents(td, volume, file, size) : Reserve(td, volume, file, size);
    FioClose(volume, file);
  }
  FioDisconnect(volume);
  return error;
}

// Before the jobs start: fio knows by now how large the file is to be.
static int Prepopulate(struct thread_data* td, struct fio_file* f) {
  const uint64_t size = f->io_size + f->file_offset;
  if (f->real_file_size >= size || td->o.create_on_open || td->o.fill_device) {
    return 0;
  }
  if (read_only) {
    log_err("fio: %s is shorter than its job needs, and nothing may be written\n", f->file_name);
    return 1;
  }
  const int error = LayOut(td, f->file_name, size);
  if (error != 0) {
    td_verror(td, error, "layout");
    return 1;
  }
  f->real_file_size = size;
  return 0;
}

static int Init(struct thread_data* td) {
  struct Job* job = calloc(1, sizeof(*job));
  if (job == NULL) {
    return ENOMEM;
  }
  job->one_by_one = td->o.iodepth == 1;
  job->reaped = calloc(td->o.iodepth, sizeof(*job->reaped));
  const int error = job->reaped == NULL ? ENOMEM : Connect(td, job->one_by_one ? 0 : td->o.iodepth, &job->volume);
  if (error != 0) {
    free(job->reaped);
    free(job);
    return error;
  }
  // So that the clock is looked at before: most reads are done when they have been queued.
  td->flags |= (unsigned long long)(job->one_by_one ? FIO_SYNCIO : FIO_ASYNCIO_SETS_ISSUE_TIME) << TD_ENG_FLAG_SHIFT;
  td->io_ops_data = job;
  return 0;
}

static void Cleanup(struct thread_data* td) {
  struct Job* job = td->io_ops_data;
  if (job != NULL) {
    FioDisconnect(job->volume);
    free(job->reaped);
    free(job);
    td->io_ops_data = NULL;
  }
}

static int OpenFile(struct thread_data* td, struct fio_file* f) {
  struct Job* job = td->io_ops_data;
  struct FioFile* file;
  int flags = td_write(td) && !read_only ? O_RDWR : O_RDONLY;
  if (td_write(td) && td->o.allow_create && !read_only) {
    flags |= O_CREAT;
  }
  const int error = FioOpen(job->volume, f->file_name, flags, &file);
  if (error != 0) {
    td_verror(td, error, "open");
    return 1;
  }
  FILE_SET_ENG_DATA(f, file);
  return 0;
}

static int CloseFile(struct thread_data* td, struct fio_file* f) {
  struct Job* job = td->io_ops_data;
  FioClose(job->volume, FILE_ENG_DATA(f));
  FILE_SET_ENG_DATA(f, NULL);
  return 0;
}

static int UnlinkFile(struct thread_data* td, struct fio_file* f) {
  struct Job* job = td->io_ops_data;
  struct FioVolume* volume = job == NULL ? NULL : job->volume;
  if (volume == NULL && Connect(td, 0, &volume) != 0) {
    return EIO;
  }
  const int error = FioUnlink(volume, f->file_name);
  if (job == NULL) {
    FioDisconnect(volume);
  }
  return error;
}

static int InitRequest(struct thread_data* td, struct io_u* io_u) {
  (void)td;
  struct FioRequest* request = calloc(1, sizeof(*request));
  if (request == NULL) {
    return ENOMEM;
  }
  request->owner = io_u;
  io_u->engine_data = request;
  return 0;
}

static void FreeRequest(struct thread_data* td, struct io_u* io_u) {
  (void)td;
  free(io_u->engine_data);
  io_u->engine_data = NULL;
}

static bool KindOf(enum fio_ddir direction, enum FioKind* kind) {
  switch (direction) {
    case DDIR_READ:
      *kind = kFioRead;
      return true;
    case DDIR_WRITE:
      *kind = kFioWrite;
      return true;
    case DDIR_SYNC:
      *kind = kFioSync;
      return true;
    case DDIR_DATASYNC:
    case DDIR_SYNC_FILE_RANGE:
      *kind = kFioDataSync;
      return true;
    default:
      return false;
  }
}

static void TakeResults(const struct FioRequest* request, struct io_u* io_u) {
  io_u->error = request->error;
  io_u->resid = request->error != 0 ? 0 : request->length - request->done;
}

static enum fio_q_status Queue(struct thread_data* td, struct io_u* io_u) {
  struct Job* job = td->io_ops_data;
  struct FioRequest* request = io_u->engine_data;
  fio_ro_check(td, io_u);
  if (!KindOf(io_u->ddir, &request->kind)) {
    io_u->error = EOPNOTSUPP;
    return FIO_Q_COMPLETED;
  }
  const bool has_bytes = request->kind == kFioRead || request->kind == kFioWrite;
  request->file = FILE_ENG_DATA(io_u->file);
  request->offset = io_u->offset;
  request->buffer = io_u->xfer_buf;
  request->length = has_bytes ? io_u->xfer_buflen : 0;
  if (!job->one_by_one && fio_fill_issue_time(td)) {
    fio_gettime(&io_u->issue_time, NULL);
  }
  if (job->one_by_one) {
    FioCarryOut(job->volume, request);
  } else if (!FioBegin(job->volume, request)) {
    return FIO_Q_QUEUED;
  }
  TakeResults(request, io_u);
  return FIO_Q_COMPLETED;
}

static int GetEvents(struct thread_data* td, unsigned least, unsigned most, const struct timespec* limit) {
  struct Job* job = td->io_ops_data;
  return FioReap(job->volume, least, most, limit == NULL, job->reaped);  // fio knows no limit but 0
}

static struct io_u* Event(struct thread_data* td, int number) {
  struct Job* job = td->io_ops_data;
  struct io_u* io_u = job->reaped[number]->owner;
  TakeResults(job->reaped[number], io_u);
  return io_u;
}

static struct fio_option options[] = {
    {
        .name = "volume",
        .lname = "Volume of termfs",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct Options, volume),
        .help = "Directory of a volume that is served",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

struct ioengine_ops ioengine = {
    .name = "termfs",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL,
    .setup = Setup,
    .init = Init,
    .queue = Queue,
    .getevents = GetEvents,
    .event = Event,
    .cleanup = Cleanup,
    .open_file = OpenFile,
    .close_file = CloseFile,
    .unlink_file = UnlinkFile,
    .prepopulate_file = Prepopulate,
    .io_u_init = InitRequest,
    .io_u_free = FreeRequest,
    .option_struct_size = sizeof(struct Options),
    .options = options,
};
