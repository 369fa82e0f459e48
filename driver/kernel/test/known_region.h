/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cases of the driver's tests stand on: checks that end a case, a device and a queue pair, and regions over files
 * whose pages are known. One program includes this, once; it has one thread that uses the device.
 */
#pragma once

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/kernel/abi/uverbs_calls.h"

#define PAGE ((size_t)4096)
#define PAGES 64
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define TERM_ACCESS (ACCESS | IBV_ACCESS_ON_DEMAND | TERM_MR_ACCESS)

static const char* failure; /* of the case that runs */
static char failure_text[256];

#define FAIL(...)                                                                \
  do {                                                                           \
    if (failure == NULL) {                                                       \
      int used = snprintf(failure_text, sizeof(failure_text), "%d: ", __LINE__); \
      snprintf(failure_text + used, sizeof(failure_text) - used, __VA_ARGS__);   \
      failure = failure_text;                                                    \
    }                                                                            \
    return;                                                                      \
  } while (0)
#define CHECK(condition)              \
  do {                                \
    if (!(condition)) {               \
      FAIL("not so: %s", #condition); \
    }                                 \
  } while (0)
#define CHECK_EQ(a, b)                                         \
  do {                                                         \
    long long left_ = (long long)(a), right_ = (long long)(b); \
    if (left_ != right_) {                                     \
      FAIL("%s is %lld, not %lld", #a, left_, right_);         \
    }                                                          \
  } while (0)
/* Of a step that checks by itself. */
#define STEP(call)         \
  do {                     \
    call;                  \
    if (failure != NULL) { \
      return;              \
    }                      \
  } while (0)

/* The line of a case that has ended, and whether it failed. */
static inline int report(const char* name) {
  const int failed = failure != NULL;
  if (failed) {
    printf("FAIL %s: %s\n", name, failure);
  } else {
    printf("ok %s\n", name);
  }
  fflush(stdout);
  failure = NULL;
  return failed;
}

static inline void give_up(const char* what) {
  perror(what);
  exit(2);
}

/* ---- A device and a queue pair, `near`, that is connected to `far` on the same device or to one on another host. */

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_cq* cq;
static struct ibv_qp *near, *far;
static uint8_t* buffer; /* local, registered */
static struct ibv_mr* buffer_mr;
static const char* directory;

static inline struct ibv_qp* make_pair(void) {
  struct ibv_qp_init_attr init = {.send_cq = cq,
                                  .recv_cq = cq,
                                  .cap = {.max_send_wr = 64, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
                                  .qp_type = IBV_QPT_RC,
                                  .sq_sig_all = 1};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  if (qp == NULL) {
    give_up("ibv_create_qp");
  }
  return qp;
}

/* What the other end of a connection has to know. */
struct end_point {
  uint32_t qp_num;
  uint32_t mtu; /* enum ibv_mtu */
  union ibv_gid gid;
};

/* The port's GID of an IPv4 address: which one it is depends on what other addresses the interface has. */
static inline uint8_t gid_index(void) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  union ibv_gid gid;
  for (uint8_t index = 0; ibv_query_gid(context, 1, index, &gid) == 0; index++) {
    if (memcmp(gid.raw, mapped, sizeof(mapped)) == 0) {
      return index;
    }
  }
  give_up("no GID of an IPv4 address");
  return 0;
}

static inline struct end_point end_point_of(const struct ibv_qp* qp) {
  struct end_point end = {.qp_num = qp->qp_num};
  struct ibv_port_attr port;
  if (ibv_query_gid(context, 1, gid_index(), &end.gid) != 0 || ibv_query_port(context, 1, &port) != 0) {
    give_up("query the port");
  }
  end.mtu = port.active_mtu;
  return end;
}

static inline void connect_pair(struct ibv_qp* qp, const struct end_point* peer) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
  int wrong = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTR,
      .path_mtu = (enum ibv_mtu)peer->mtu,
      .dest_qp_num = peer->qp_num,
      .max_dest_rd_atomic = 16,
      .min_rnr_timer = 1,
      .ah_attr = {
          .is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index(), .hop_limit = 1}}};
  wrong |= ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr =
      (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
  wrong |= ibv_modify_qp(
      qp, &attr,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (wrong != 0) {
    give_up("connect the queue pairs");
  }
}

static inline void connect_both(void) {
  near = make_pair();
  far = make_pair();
  const struct end_point near_end = end_point_of(near), far_end = end_point_of(far);
  connect_pair(near, &far_end);
  connect_pair(far, &near_end);
}

static inline void disconnect(void) {
  ibv_destroy_qp(near);
  ibv_destroy_qp(far);
}

static inline void open_device(const char* name) {
  int count = 0;
  struct ibv_device** devices = ibv_get_device_list(&count);
  for (int i = 0; i < count; i++) {
    if (strcmp(ibv_get_device_name(devices[i]), name) == 0) {
      context = ibv_open_device(devices[i]);
    }
  }
  if (context == NULL) {
    give_up("open the device");
  }
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 128, NULL, NULL, 0);
  buffer = aligned_alloc(PAGE, PAGES * PAGE);
  buffer_mr = ibv_reg_mr(pd, buffer, PAGES * PAGE, ACCESS);
  if (pd == NULL || cq == NULL || buffer_mr == NULL) {
    give_up("prepare the device");
  }
}

/* One operation, to its end. */
static inline enum ibv_wc_status run(struct ibv_send_wr* request) {
  struct ibv_send_wr* bad = NULL;
  struct ibv_wc completion;
  int got = 0;
  request->send_flags = IBV_SEND_SIGNALED;
  if (ibv_post_send(near, request, &bad) != 0) {
    give_up("ibv_post_send");
  }
  const time_t until = time(NULL) + 60;
  while ((got = ibv_poll_cq(cq, 1, &completion)) == 0 && time(NULL) < until) {
  }
  return got <= 0 ? IBV_WC_GENERAL_ERR : completion.status;
}

static inline enum ibv_wc_status transfer_at(enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote, size_t length) {
  struct ibv_sge local = {.addr = (uintptr_t)buffer, .length = (uint32_t)length, .lkey = buffer_mr->lkey};
  struct ibv_send_wr request = {.opcode = opcode, .sg_list = &local, .num_sge = 1};
  request.wr.rdma.remote_addr = remote;
  request.wr.rdma.rkey = rkey;
  return run(&request);
}
static inline enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, struct ibv_mr* mr, const void* remote,
                                          size_t length) {
  return transfer_at(opcode, mr->rkey, (uintptr_t)remote, length);
}
static inline enum ibv_wc_status read_into_buffer(struct ibv_mr* mr, const void* remote, size_t length) {
  memset(buffer, 0xee, length);
  return transfer(IBV_WR_RDMA_READ, mr, remote, length);
}

/* ---- Files whose pages are known, mapped. */

static inline uint8_t byte_of(uint64_t page, size_t at) { return (uint8_t)(page * 37 + at * 11 + (at >> 8) + 5); }

static inline bool is_page(const uint8_t* bytes, uint64_t page, size_t from, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (bytes[i] != byte_of(page, from + i)) {
      return false;
    }
  }
  return true;
}
static inline bool is_pattern(const uint8_t* bytes, const struct term_mr_info* info, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (bytes[i] != info->pattern[i % TERM_MR_PATTERN_BYTES]) {
      return false;
    }
  }
  return true;
}

struct region {
  int file;
  uint8_t* memory;
  size_t bytes;
  struct ibv_mr* mr;
  struct term_mr_info info;
  const _Atomic uint64_t* bitmap;
};

static inline bool bit(const struct region* region, uint64_t page) {
  return (atomic_load(&region->bitmap[page / 64]) >> (page % 64) & 1) != 0;
}

static inline int open_file(const char* name, size_t pages) {
  char path[512];
  uint8_t bytes[PAGE];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (uint64_t page = 0; file >= 0 && page < pages; page++) {
    for (size_t i = 0; i < PAGE; i++) {
      bytes[i] = byte_of(page, i);
    }
    if (write(file, bytes, PAGE) != (ssize_t)PAGE) {
      give_up("write");
    }
  }
  if (file < 0 || fsync(file) != 0) {
    give_up(path);
  }
  unlink(path);
  return file;
}

static inline void drop(struct region* region, size_t page, size_t count) {
  /* Out of the page table, and out of the page cache, too. */
  madvise(region->memory + page * PAGE, count * PAGE, MADV_DONTNEED);
  posix_fadvise(region->file, (off_t)(page * PAGE), (off_t)(count * PAGE), POSIX_FADV_DONTNEED);
}

static inline void begin(struct region* region, size_t pages, int access) {
  memset(region, 0, sizeof(*region));
  region->bytes = pages * PAGE;
  region->file = open_file("region", pages);
  region->memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->file, 0);
  CHECK(region->memory != MAP_FAILED);
  drop(region, 0, pages);
  region->mr = ibv_reg_mr(pd, region->memory, region->bytes, access);
  if (region->mr == NULL) {
    FAIL("ibv_reg_mr: %s", strerror(errno));
  }
  if ((access & TERM_MR_ACCESS) == 0 || (access & IBV_ACCESS_ON_DEMAND) == 0) {
    return;
  }
  CHECK_EQ(term_query_mr(region->mr, &region->info), 0);
  region->bitmap =
      mmap(NULL, region->info.bitmap_bytes, PROT_READ, MAP_SHARED, context->cmd_fd, (off_t)region->info.bitmap_offset);
  CHECK(region->bitmap != MAP_FAILED);
}

static inline void end(struct region* region) {
  if (region->mr != NULL) {
    ibv_dereg_mr(region->mr);
  }
  if (region->bitmap != NULL && region->bitmap != MAP_FAILED) {
    munmap((void*)region->bitmap, region->info.bitmap_bytes);
  }
  munmap(region->memory, region->bytes);
  close(region->file);
}

static inline int prefetch(struct region* region, size_t page, size_t count) {
  return term_advise_mr(region->mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, (uintptr_t)region->memory + page * PAGE,
                        (uint32_t)(count * PAGE));
}
static inline int find(struct region* region, size_t page, size_t count) {
  return term_advise_mr(region->mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
                        (uintptr_t)region->memory + page * PAGE, (uint32_t)(count * PAGE));
}

/* Every page: what a READ says is what the bitmap says. */
static inline void check_all(struct region* region, uint64_t* present) {
  *present = 0;
  for (uint64_t page = 0; page < region->info.pages; page++) {
    CHECK_EQ(read_into_buffer(region->mr, region->memory + page * PAGE, PAGE), IBV_WC_SUCCESS);
    if (bit(region, page)) {
      CHECK(is_page(buffer, page, 0, PAGE));
      ++*present;
    } else {
      CHECK(is_pattern(buffer, &region->info, PAGE));
    }
  }
  CHECK_EQ(term_query_mr(region->mr, &region->info), 0);
  CHECK_EQ(region->info.present, *present);
}

/* ---- Pages that come and go, on a thread of their own. */

struct race {
  struct region* region;
  pthread_t thread;
  atomic_bool stop;
  uint64_t moved;
};

static inline uint32_t draw(uint32_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

static inline void* come_and_go(void* argument) {
  struct race* race = argument;
  uint32_t state = 2463534242U;
  while (!atomic_load(&race->stop)) {
    const size_t page = draw(&state) % PAGES;
    const size_t count = 1 + draw(&state) % (PAGES - page);
    switch (draw(&state) % 4) {
      case 0:
        drop(race->region, page, count);
        break;
      case 1:
        madvise(race->region->memory + page * PAGE, count * PAGE, MADV_PAGEOUT);
        break;
      case 2:
        find(race->region, page, count);
        break;
      default:
        prefetch(race->region, page, count);
    }
    race->moved++;
  }
  return NULL;
}

static inline void start_race(struct race* race, struct region* region) {
  memset(race, 0, sizeof(*race));
  race->region = region;
  if (pthread_create(&race->thread, NULL, come_and_go, race) != 0) {
    give_up("pthread_create");
  }
}

static inline void end_race(struct race* race) {
  atomic_store(&race->stop, true);
  pthread_join(race->thread, NULL);
}
