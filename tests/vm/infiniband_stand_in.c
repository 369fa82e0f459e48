/* SPDX-License-Identifier: Apache-2.0 */
/*
 * InfiniBand's link layer on Soft-RoCE, to a program that this library is preloaded into: there is no device in
 * software that has one. Its port says that it is InfiniBand and has the LID $STAND_IN_LID and one GID; a queue pair is
 * connected to the LID n and nothing else, which is 10.9.10.n on the network below. What goes over the link is RoCE as
 * ever: this shows that a program asks for a path as InfiniBand has it, no more.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#define GIDS 256

static int (*real_query_port)(struct ibv_context*, uint8_t, struct ibv_port_attr*, size_t);

static uint16_t lid(void) {
  const char* given = getenv("STAND_IN_LID");
  return given != NULL ? (uint16_t)atoi(given) : 0;
}

static int query_port(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attributes, size_t size) {
  const int error = real_query_port(context, port, attributes, size);
  attributes->link_layer = IBV_LINK_LAYER_INFINIBAND;
  attributes->lid = lid();
  return error;
}

struct ibv_context* ibv_open_device(struct ibv_device* device) {
  struct ibv_context* (*real)(struct ibv_device*) =
      (struct ibv_context * (*)(struct ibv_device*)) dlsym(RTLD_NEXT, "ibv_open_device");
  struct ibv_context* context = real(device);
  struct verbs_context* extended = context == NULL ? NULL : verbs_get_ctx(context);
  if (extended != NULL) {
    real_query_port = extended->query_port;
    extended->query_port = query_port;
  }
  return context;
}

typedef ssize_t query_gids(struct ibv_context*, struct ibv_gid_entry*, size_t, uint32_t, size_t);

ssize_t _ibv_query_gid_table(struct ibv_context* context, struct ibv_gid_entry* entries, size_t room, uint32_t flags,
                             size_t entry_size) {
  (void)context, (void)flags;
  if (room == 0 || entry_size != sizeof(*entries)) {
    return -EINVAL;
  }
  memset(entries, 0, sizeof(*entries));
  entries->port_num = 1;
  entries->gid_type = IBV_GID_TYPE_IB;
  entries->gid.raw[0] = 0xfe;
  entries->gid.raw[1] = 0x80;
  entries->gid.raw[15] = (uint8_t)lid();
  return 1;
}

/* Which of the port's real GIDs is its IPv4 address. */
static int gid_index(struct ibv_context* context) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  struct ibv_gid_entry entries[GIDS];
  query_gids* real = (query_gids*)dlsym(RTLD_NEXT, "_ibv_query_gid_table");
  const ssize_t count = real(context, entries, GIDS, 0, sizeof(entries[0]));
  for (ssize_t i = 0; i < count; i++) {
    if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 && memcmp(entries[i].gid.raw, mapped, sizeof(mapped)) == 0) {
      return (int)entries[i].gid_index;
    }
  }
  return -1;
}

int ibv_modify_qp(struct ibv_qp* qp, struct ibv_qp_attr* attributes, int mask) {
  int (*real)(struct ibv_qp*, struct ibv_qp_attr*, int) =
      (int (*)(struct ibv_qp*, struct ibv_qp_attr*, int))dlsym(RTLD_NEXT, "ibv_modify_qp");
  if ((mask & IBV_QP_AV) == 0) {
    return real(qp, attributes, mask);
  }
  struct ibv_qp_attr below = *attributes;
  const int index = gid_index(qp->context);
  const uint32_t address = htonl((10U << 24) | (9U << 16) | (10U << 8) | attributes->ah_attr.dlid);
  if (index < 0 || attributes->ah_attr.is_global || attributes->ah_attr.dlid == 0 || attributes->ah_attr.dlid > 254) {
    return EINVAL;
  }
  below.ah_attr.is_global = 1;
  below.ah_attr.dlid = 0;
  below.ah_attr.grh.sgid_index = (uint8_t)index;
  below.ah_attr.grh.hop_limit = 1;
  memset(&below.ah_attr.grh.dgid, 0, sizeof(below.ah_attr.grh.dgid));
  below.ah_attr.grh.dgid.raw[10] = below.ah_attr.grh.dgid.raw[11] = 0xff;
  memcpy(below.ah_attr.grh.dgid.raw + 12, &address, sizeof(address));
  return real(qp, &below, mask);
}
