/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of the kernel's MR object that rdma-core 44 has no functions for, called through the uverbs ioctl of a device
 * that libibverbs has opened. C, so that it serves the driver's test, and C++.
 *
 * Errors: 0, or the errno.
 */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "driver/kernel/abi/term_mr_abi.h"

#define TERM_UVERBS_ATTRS 4

struct term_uverbs_call {
  uint16_t method;
  uint16_t used;
  struct ib_uverbs_attr attrs[TERM_UVERBS_ATTRS];
};

static inline void term_uverbs_begin(struct term_uverbs_call* call, uint16_t method) {
  memset(call, 0, sizeof(*call));
  call->method = method;
}

/* `data`: a value where `length` is at most 8, else an address. */
static inline void term_uverbs_add(struct term_uverbs_call* call, uint16_t id, uint16_t length, uint64_t data) {
  struct ib_uverbs_attr* attr = &call->attrs[call->used++];
  attr->attr_id = id;
  attr->len = length;
  attr->flags = UVERBS_ATTR_F_MANDATORY;
  attr->data = data;
}

/* The drivers that may have TeRM MRs. The kernel answers EINVAL to the number of another driver than the device's. */
static inline int term_uverbs_run(struct ibv_context* context, const struct term_uverbs_call* call) {
  static const uint16_t drivers[] = {RDMA_DRIVER_RXE, RDMA_DRIVER_MLX5};
  /* The header ends with an array of no length, which C++ knows at the end of a structure only. */
  struct ib_uverbs_ioctl_hdr header;
  const size_t bytes = sizeof(header) + call->used * sizeof(call->attrs[0]);
  uint64_t message[(sizeof(header) + sizeof(call->attrs)) / sizeof(uint64_t)];
  int error = EINVAL;
  memset(&header, 0, sizeof(header));
  header.length = (uint16_t)bytes;
  header.object_id = UVERBS_OBJECT_MR;
  header.method_id = call->method;
  header.num_attrs = call->used;
  for (size_t i = 0; error == EINVAL && i < sizeof(drivers) / sizeof(drivers[0]); i++) {
    header.driver_id = drivers[i];
    memcpy(message, &header, sizeof(header));
    memcpy((char*)message + sizeof(header), call->attrs, bytes - sizeof(header));
    error = ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, message) == 0 ? 0 : errno;
  }
  return error;
}

/*
 * EPROTONOSUPPORT: the driver knows no TeRM MRs; EOPNOTSUPP: this MR is none; EPROTO: the driver is of another version
 * of the interface, info->abi_version, and nothing else in `info` may be used: term_version_text() says so.
 */
static inline int term_query_mr(struct ibv_mr* mr, struct term_mr_info* info) {
  struct term_uverbs_call call;
  term_uverbs_begin(&call, TERM_MR_METHOD_QUERY);
  term_uverbs_add(&call, TERM_MR_ATTR_MR, 0, mr->handle);
  term_uverbs_add(&call, TERM_MR_ATTR_INFO, sizeof(*info), (uint64_t)(uintptr_t)info);
  memset(info, 0, sizeof(*info));
  const int error = term_uverbs_run(mr->context, &call);
  return error == 0 && info->abi_version != TERM_MR_ABI_VERSION ? EPROTO : error;
}

/* What to tell an administrator after EPROTO. */
static inline void term_version_text(uint32_t driver_version, char* text, size_t size) {
  snprintf(
      text, size,
      "the RDMA driver's TeRM memory regions are of version %u, this program's of version %u: install the driver and "
      "the program from one release",
      driver_version, (unsigned)TERM_MR_ABI_VERSION);
}

/* `advice`: IB_UVERBS_ADVISE_MR_ADVICE_...; the range is covered when this returns. */
static inline int term_advise_mr(struct ibv_mr* mr, uint64_t advice, uint64_t address, uint32_t length) {
  struct ib_uverbs_sge range = {.addr = address, .length = length, .lkey = mr->lkey};
  struct term_uverbs_call call;
  term_uverbs_begin(&call, UVERBS_METHOD_ADVISE_MR);
  term_uverbs_add(&call, UVERBS_ATTR_ADVISE_MR_PD_HANDLE, 0, mr->pd->handle);
  term_uverbs_add(&call, UVERBS_ATTR_ADVISE_MR_ADVICE, sizeof(uint64_t), advice);
  term_uverbs_add(&call, UVERBS_ATTR_ADVISE_MR_FLAGS, sizeof(uint32_t), IB_UVERBS_ADVISE_MR_FLAG_FLUSH);
  term_uverbs_add(&call, UVERBS_ATTR_ADVISE_MR_SGE_LIST, sizeof(range), (uint64_t)(uintptr_t)&range);
  return term_uverbs_run(mr->context, &call);
}
