/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver promises of TeRM MRs, between two hosts: one has the region, the other READs and WRITEs it.
 *
 *   two_hosts_test DEVICE DIRECTORY serve     has the region, over a file in DIRECTORY, for one client
 *   two_hosts_test DEVICE DIRECTORY ADDRESS   runs every case against the server on the host of that IPv4 address
 *
 * The client prints a line for each case, `ok NAME` or `FAIL NAME: why`. Exit code 1: something failed. Both ends are
 * built from this file, and for one architecture: what they say over TCP are structs as they are.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "driver/kernel/test/known_region.h"

#define PORT 7471
#define DEADLINE 60 /* seconds that either end waits for the other */

/* What the server says at the beginning, beside its end point. */
struct greeting {
  struct end_point end;
  uint32_t rkey;
  uint64_t address;
  struct term_mr_info info;
};

enum order { ORDER_RESET, ORDER_PREFETCH, ORDER_FIND, ORDER_DROP, ORDER_BYTE, ORDER_QUERY, ORDER_RACE, ORDER_END_RACE };

struct request {
  uint32_t order; /* enum order */
  uint64_t page;
  uint64_t count; /* of ORDER_BYTE the byte in the page */
};

struct reply {
  int64_t result; /* an errno; of ORDER_BYTE the byte, of ORDER_END_RACE how often pages were moved */
  struct term_mr_info info;
  uint64_t bitmap[PAGES / 64];
};

static int peer; /* socket */

static bool say(const void* bytes, size_t length) { return send(peer, bytes, length, MSG_NOSIGNAL) == (ssize_t)length; }
static bool hear(void* bytes, size_t length) { return recv(peer, bytes, length, MSG_WAITALL) == (ssize_t)length; }

static struct sockaddr_in at_port(const char* address) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
    fprintf(stderr, "%s is no IPv4 address\n", address);
    exit(2);
  }
  return at;
}

static void wait_no_longer(int descriptor) {
  const struct timeval deadline = {.tv_sec = DEADLINE};
  if (setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline)) != 0) {
    give_up("SO_RCVTIMEO");
  }
}

/* ---- The host with the region. */

static void await_client(void) {
  const struct sockaddr_in at = at_port("0.0.0.0");
  const int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(listener, (const struct sockaddr*)&at, sizeof(at)) != 0 || listen(listener, 1) != 0) {
    give_up("listen");
  }
  wait_no_longer(listener);
  peer = accept(listener, NULL, NULL);
  if (peer < 0) {
    give_up("accept");
  }
  wait_no_longer(peer);
  close(listener);
}

static int64_t obey(struct region* region, const struct request* request) {
  static struct race race;
  if (request->page >= PAGES || request->count > (request->order == ORDER_BYTE ? PAGE - 1 : PAGES - request->page)) {
    return EINVAL;
  }
  switch (request->order) {
    case ORDER_RESET:
      drop(region, 0, PAGES);
      return 0;
    case ORDER_PREFETCH:
      return prefetch(region, request->page, request->count);
    case ORDER_FIND:
      return find(region, request->page, request->count);
    case ORDER_DROP:
      drop(region, request->page, request->count);
      return 0;
    case ORDER_BYTE:
      return region->memory[request->page * PAGE + request->count];
    case ORDER_QUERY:
      return 0;
    case ORDER_RACE:
      start_race(&race, region);
      return 0;
    case ORDER_END_RACE:
      end_race(&race);
      return (int64_t)race.moved;
    default:
      return EINVAL;
  }
}

static void serve(void) {
  struct region region;
  struct request request;
  STEP(begin(&region, PAGES, TERM_ACCESS));
  await_client();
  near = make_pair();
  const struct greeting ours = {
      .end = end_point_of(near), .rkey = region.mr->rkey, .address = (uintptr_t)region.memory, .info = region.info};
  struct end_point theirs;
  CHECK(say(&ours, sizeof(ours)) && hear(&theirs, sizeof(theirs)));
  connect_pair(near, &theirs);
  CHECK(say("", 1)); /* connected */
  while (hear(&request, sizeof(request))) {
    struct reply reply = {.result = obey(&region, &request)};
    CHECK_EQ(term_query_mr(region.mr, &reply.info), 0);
    for (size_t word = 0; word < PAGES / 64; word++) {
      reply.bitmap[word] = atomic_load(&region.bitmap[word]);
    }
    CHECK(say(&reply, sizeof(reply)));
  }
  end(&region);
}

/* ---- The host that READs. */

static struct greeting server;
static struct reply last; /* what the server said last */

static int64_t order(enum order what, uint64_t page, uint64_t count) {
  const struct request request = {.order = what, .page = page, .count = count};
  if (!say(&request, sizeof(request)) || !hear(&last, sizeof(last))) {
    give_up("the server is gone");
  }
  return last.result;
}

static enum ibv_wc_status move(enum ibv_wr_opcode opcode, uint64_t page, size_t at, size_t length) {
  return transfer_at(opcode, server.rkey, server.address + page * PAGE + at, length);
}

static enum ibv_wc_status read_page(uint64_t page, size_t at, size_t length) {
  memset(buffer, 0xee, length);
  return move(IBV_WR_RDMA_READ, page, at, length);
}

static bool present(uint64_t page) { return (last.bitmap[page / 64] >> (page % 64) & 1) != 0; }

/* Every page: what a READ says here is what the bitmap says there. */
static void check_every_page(uint64_t expected) {
  uint64_t found = 0;
  order(ORDER_QUERY, 0, 0);
  for (uint64_t page = 0; page < PAGES; page++) {
    CHECK_EQ(read_page(page, 0, PAGE), IBV_WC_SUCCESS);
    if (present(page)) {
      CHECK(is_page(buffer, page, 0, PAGE));
      found++;
    } else {
      CHECK(is_pattern(buffer, &server.info, PAGE));
    }
  }
  CHECK_EQ(found, expected);
  CHECK_EQ(last.info.present, expected);
}

static void absent_pages_read_as_the_pattern(void) {
  const uint64_t before = last.info.magic_reads;
  STEP(check_every_page(0));
  order(ORDER_QUERY, 0, 0);
  CHECK(last.info.magic_reads >= before + PAGES);
  CHECK_EQ(last.info.faulted, 0);
}

static void prefetched_pages_read_as_data(void) {
  CHECK_EQ(order(ORDER_PREFETCH, 3, 10), 0);
  CHECK_EQ(order(ORDER_PREFETCH, 63, 1), 0);
  STEP(check_every_page(11));
  CHECK(present(3) && present(12) && present(63) && !present(2) && !present(13));
}

static void evicted_pages_read_as_the_pattern(void) {
  CHECK_EQ(order(ORDER_PREFETCH, 0, PAGES), 0);
  STEP(check_every_page(PAGES));
  CHECK_EQ(order(ORDER_DROP, 10, 20), 0);
  STEP(check_every_page(PAGES - 20));
  CHECK(!present(10) && !present(29) && present(9) && present(30));
  CHECK_EQ(order(ORDER_PREFETCH, 10, 20), 0);
  STEP(check_every_page(PAGES));
}

static void reads_of_many_pages_cross_the_border(void) {
  CHECK_EQ(order(ORDER_PREFETCH, 1, 2), 0);
  /* From 100 bytes before page 1 to 200 bytes into page 3: pages 1 and 2 are there, 0 and 3 are not. */
  CHECK_EQ(read_page(0, PAGE - 100, 100 + 2 * PAGE + 200), IBV_WC_SUCCESS);
  for (size_t i = 0; i < 100; i++) {
    CHECK(buffer[i] == server.info.pattern[(PAGE - 100 + i) % TERM_MR_PATTERN_BYTES]);
  }
  CHECK(is_page(buffer + 100, 1, 0, PAGE) && is_page(buffer + 100 + PAGE, 2, 0, PAGE));
  CHECK(is_pattern(buffer + 100 + 2 * PAGE, &server.info, 200));
}

static void a_write_faults_its_page_in(void) {
  const uint64_t faulted = last.info.faulted;
  memset(buffer, 0xab, 100);
  CHECK_EQ(move(IBV_WR_RDMA_WRITE, 5, 50, 100), IBV_WC_SUCCESS);
  CHECK_EQ(order(ORDER_BYTE, 5, 50), 0xab);
  CHECK_EQ(order(ORDER_BYTE, 5, 149), 0xab);
  CHECK_EQ(order(ORDER_BYTE, 5, 150), byte_of(5, 150));
  CHECK(present(5) && !present(4) && !present(6));
  CHECK_EQ(last.info.faulted, faulted + 1);
  for (size_t i = 0; i < 100; i++) { /* as it was, for the cases that follow */
    buffer[i] = byte_of(5, 50 + i);
  }
  CHECK_EQ(move(IBV_WR_RDMA_WRITE, 5, 50, 100), IBV_WC_SUCCESS);
  CHECK_EQ(read_page(5, 0, PAGE), IBV_WC_SUCCESS);
  CHECK(is_page(buffer, 5, 0, PAGE));
}

/* What arrived for bytes `at` and on of a page: each packet is all data or all pattern. */
static void check_packets(uint64_t page, size_t at, size_t mtu, uint64_t* data, uint64_t* pattern, uint64_t* mixed) {
  const uint64_t had_data = *data, had_pattern = *pattern;
  for (size_t from = 0; from < PAGE - at; from += mtu) {
    const size_t length = PAGE - at - from < mtu ? PAGE - at - from : mtu;
    if (is_page(buffer + from, page, at + from, length)) {
      ++*data;
      continue;
    }
    for (size_t i = 0; i < length; i++) {
      CHECK(buffer[from + i] == server.info.pattern[(at + from + i) % TERM_MR_PATTERN_BYTES]);
    }
    ++*pattern;
  }
  *mixed += *data > had_data && *pattern > had_pattern;
}

/* Ten seconds of READs while the other host's pages come and go; more where the hosts are slow. */
static void reads_race_eviction(void) {
  const size_t mtu = (size_t)128 << server.end.mtu;
  uint32_t state = 88172645U;
  uint64_t reads = 0, data = 0, pattern = 0, mixed = 0;
  const time_t begin_of_race = time(NULL);
  CHECK_EQ(order(ORDER_RACE, 0, 0), 0);
  while (failure == NULL && time(NULL) < begin_of_race + (data > 100 && pattern > 100 ? 10 : DEADLINE)) {
    const uint64_t page = draw(&state) % PAGES;
    const size_t at = draw(&state) % 4 == 0 ? draw(&state) % 4000 : 0;
    if (read_page(page, at, PAGE - at) != IBV_WC_SUCCESS) {
      failure = "a READ failed";
      break;
    }
    check_packets(page, at, mtu, &data, &pattern, &mixed);
    reads++;
  }
  const int64_t moved = order(ORDER_END_RACE, 0, 0);
  printf("  %" PRIu64 " READs at an MTU of %zu: %" PRIu64 " packets of data, %" PRIu64 " of the pattern, %" PRIu64
         " pages with both; %" PRId64 " moves\n",
         reads, mtu, data, pattern, mixed, moved);
  if (failure != NULL) {
    return;
  }
  CHECK(data > 100 && pattern > 100 && moved > 100);
  CHECK(mtu < PAGE || mixed == 0);
  STEP(check_every_page(last.info.present));
}

static void another_key_reads_nothing(void) {
  memset(buffer, 0xee, PAGE);
  CHECK_EQ(transfer_at(IBV_WR_RDMA_READ, server.rkey ^ 1, server.address, PAGE), IBV_WC_REM_ACCESS_ERR);
  CHECK(buffer[0] == 0xee && buffer[PAGE - 1] == 0xee);
}

static const struct {
  const char* name;
  void (*body)(void);
} cases[] = {
    {"absent_pages_read_as_the_pattern", absent_pages_read_as_the_pattern},
    {"prefetched_pages_read_as_data", prefetched_pages_read_as_data},
    {"evicted_pages_read_as_the_pattern", evicted_pages_read_as_the_pattern},
    {"reads_of_many_pages_cross_the_border", reads_of_many_pages_cross_the_border},
    {"a_write_faults_its_page_in", a_write_faults_its_page_in},
    {"reads_race_eviction", reads_race_eviction},
    {"another_key_reads_nothing", another_key_reads_nothing}, /* the last: it ends the connection */
};

static void meet_server(const char* address) {
  const struct sockaddr_in at = at_port(address);
  char connected = 0;
  peer = socket(AF_INET, SOCK_STREAM, 0);
  if (peer < 0 || connect(peer, (const struct sockaddr*)&at, sizeof(at)) != 0) {
    give_up("connect");
  }
  wait_no_longer(peer);
  near = make_pair();
  const struct end_point ours = end_point_of(near);
  if (!hear(&server, sizeof(server)) || !say(&ours, sizeof(ours)) || !hear(&connected, 1)) {
    give_up("meet the server");
  }
  connect_pair(near, &server.end);
}

int main(int argc, char** argv) {
  int failed = 0;
  if (argc != 4) {
    fprintf(stderr, "usage: two_hosts_test DEVICE DIRECTORY serve|ADDRESS\n");
    return 2;
  }
  directory = argv[2];
  open_device(argv[1]);
  if (strcmp(argv[3], "serve") == 0) {
    serve();
    if (failure != NULL) {
      printf("the server: %s\n", failure);
    }
    return failure != NULL;
  }
  meet_server(argv[3]);
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    order(ORDER_RESET, 0, 0);
    cases[i].body();
    failed |= report(cases[i].name);
  }
  return failed;
}
