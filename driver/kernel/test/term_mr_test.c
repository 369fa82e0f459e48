/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver promises of TeRM MRs, over stock libibverbs, on one device whose queue pairs are connected to each
 * other.
 *
 *   term_mr_test DEVICE DIRECTORY         every case; DIRECTORY is on a disk, so that its files' pages can be evicted
 *   term_mr_test DEVICE DIRECTORY stock   the driver is not ours: what it must say
 *   term_mr_test DEVICE DIRECTORY version the driver is ours, of another version of the interface
 *   term_mr_test DEVICE DIRECTORY large MIB [PROCESSES]     an MR of so many MiB, more than there is memory; PROCESSES:
 *                                         a memory cgroup's cgroup.procs, which it enters once the file is written
 *   term_mr_test DEVICE DIRECTORY hold    registers, says "held" and waits to be killed
 *
 * Prints a line for each case, `ok NAME` or `FAIL NAME: why`. Exit code 1: something failed.
 */
#include "driver/kernel/test/known_region.h"

/* ---- Cases. */

static void is_described(struct region* region) {
  CHECK_EQ(region->info.abi_version, TERM_MR_ABI_VERSION);
  CHECK_EQ(region->info.page_size, PAGE);
  CHECK_EQ(region->info.start, (uintptr_t)region->memory);
  CHECK_EQ(region->info.pages, PAGES);
  CHECK_EQ(region->info.present, 0);
  CHECK(region->info.bitmap_bytes >= PAGES / 8);
}

static void absent_pages_read_as_the_pattern(struct region* region) {
  uint64_t present = 0;
  STEP(check_all(region, &present));
  CHECK_EQ(present, 0);
  CHECK_EQ(region->info.magic_reads, PAGES);
  CHECK_EQ(region->info.faulted, 0);
}

static void prefetched_pages_read_as_data(struct region* region) {
  uint64_t present = 0;
  CHECK_EQ(prefetch(region, 3, 10), 0);
  CHECK_EQ(prefetch(region, 63, 1), 0);
  STEP(check_all(region, &present));
  CHECK_EQ(present, 11);
  CHECK(bit(region, 3) && bit(region, 12) && bit(region, 63) && !bit(region, 2) && !bit(region, 13));
}

static void evicted_pages_read_as_the_pattern(struct region* region) {
  uint64_t present = 0;
  CHECK_EQ(prefetch(region, 0, PAGES), 0);
  STEP(check_all(region, &present));
  CHECK_EQ(present, PAGES);
  drop(region, 10, 20);
  STEP(check_all(region, &present));
  CHECK_EQ(present, PAGES - 20);
  CHECK_EQ(region->info.invalidated, 20);
  CHECK_EQ(prefetch(region, 10, 20), 0);
  STEP(check_all(region, &present));
  CHECK_EQ(present, PAGES);
}

static void reclaimed_pages_read_as_the_pattern(struct region* region) {
  uint64_t present = 0;
  CHECK_EQ(prefetch(region, 0, PAGES), 0);
  CHECK_EQ(madvise(region->memory, region->bytes, MADV_PAGEOUT), 0);
  STEP(check_all(region, &present)); /* some may stay */
  CHECK(present < PAGES);
}

static void finding_does_not_fault(struct region* region) {
  uint64_t present = 0;
  CHECK_EQ(find(region, 0, PAGES), 0);
  STEP(check_all(region, &present));
  CHECK_EQ(present, 0);
  for (size_t page = 20; page < 24; page++) {
    CHECK(is_page(region->memory + page * PAGE, page, 0, 16)); /* the processor's own fault */
  }
  STEP(check_all(region, &present));
  CHECK_EQ(present, 0); /* nobody has said so yet */
  CHECK_EQ(find(region, 0, PAGES), 0);
  STEP(check_all(region, &present));
  CHECK(bit(region, 20) && bit(region, 23));
  CHECK_EQ(region->info.faulted, 0);
}

static void written_back_pages_are_found_again(struct region* region) {
  uint64_t present = 0;
  for (size_t page = 0; page < PAGES; page++) {
    region->memory[page * PAGE] = byte_of(page, 0); /* dirty, the same as it was */
  }
  CHECK_EQ(prefetch(region, 0, PAGES), 0);
  CHECK_EQ(msync(region->memory, region->bytes, MS_SYNC), 0);
  STEP(check_all(region, &present)); /* whatever it is, bitmap and READs agree */
  CHECK_EQ(find(region, 0, PAGES), 0);
  STEP(check_all(region, &present));
  CHECK_EQ(present, PAGES);
}

static void a_write_faults_its_page_in(struct region* region) {
  memset(buffer, 0xab, 100);
  CHECK_EQ(transfer(IBV_WR_RDMA_WRITE, region->mr, region->memory + 5 * PAGE + 50, 100), IBV_WC_SUCCESS);
  CHECK(is_page(region->memory + 5 * PAGE, 5, 0, 50));
  CHECK(region->memory[5 * PAGE + 50] == 0xab && region->memory[5 * PAGE + 149] == 0xab);
  CHECK(is_page(region->memory + 5 * PAGE + 150, 5, 150, PAGE - 150));
  CHECK(bit(region, 5) && !bit(region, 4) && !bit(region, 6));
  CHECK_EQ(term_query_mr(region->mr, &region->info), 0);
  CHECK_EQ(region->info.faulted, 1);
  /* It reaches the file: the page was marked dirty. */
  uint8_t bytes[100];
  CHECK_EQ(fsync(region->file), 0);
  drop(region, 0, PAGES);
  CHECK_EQ(pread(region->file, bytes, sizeof(bytes), 5 * PAGE + 50), (ssize_t)sizeof(bytes));
  CHECK(bytes[0] == 0xab && bytes[99] == 0xab);
}

static void a_write_after_a_read_only_prefetch(struct region* region) {
  CHECK_EQ(prefetch(region, 7, 1), 0);
  memset(buffer, 0xcd, PAGE);
  CHECK_EQ(transfer(IBV_WR_RDMA_WRITE, region->mr, region->memory + 7 * PAGE, PAGE), IBV_WC_SUCCESS);
  CHECK(region->memory[7 * PAGE] == 0xcd && region->memory[8 * PAGE - 1] == 0xcd);
}

static void atomics_fault_their_page_in(struct region* region) {
  struct ibv_sge local = {.addr = (uintptr_t)buffer, .length = 8, .lkey = buffer_mr->lkey};
  struct ibv_send_wr request = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &local, .num_sge = 1};
  uint64_t before = 0, after = 0;
  for (size_t i = 0; i < 8; i++) {
    ((uint8_t*)&before)[i] = byte_of(9, 16 + i);
  }
  request.wr.atomic.remote_addr = (uintptr_t)region->memory + 9 * PAGE + 16;
  request.wr.atomic.rkey = region->mr->rkey;
  request.wr.atomic.compare_add = 3;
  CHECK_EQ(run(&request), IBV_WC_SUCCESS);
  CHECK(memcmp(buffer, &before, 8) == 0);
  memcpy(&after, region->memory + 9 * PAGE + 16, 8);
  CHECK(after == before + 3);
  CHECK(bit(region, 9));
}

static void unaligned_reads_may_cross_the_border(struct region* region) {
  CHECK_EQ(prefetch(region, 1, 1), 0);
  /* From 100 bytes before page 1, which is there, to 200 bytes into page 2, which is not. */
  CHECK_EQ(read_into_buffer(region->mr, region->memory + PAGE - 100, 100 + PAGE + 200), IBV_WC_SUCCESS);
  for (size_t i = 0; i < 100; i++) {
    CHECK(buffer[i] == region->info.pattern[(PAGE - 100 + i) % TERM_MR_PATTERN_BYTES]);
  }
  CHECK(is_page(buffer + 100, 1, 0, PAGE));
  CHECK(is_pattern(buffer + 100 + PAGE, &region->info, 200));
  CHECK_EQ(read_into_buffer(region->mr, region->memory + PAGE + 77, 64), IBV_WC_SUCCESS);
  CHECK(is_page(buffer, 1, 77, 64));
}

static void out_of_range_is_refused(struct region* region) {
  CHECK_EQ(read_into_buffer(region->mr, region->memory + region->bytes - 10, 20), IBV_WC_REM_ACCESS_ERR);
  disconnect();
  connect_both();
  CHECK_EQ(read_into_buffer(region->mr, region->memory - 1, 1), IBV_WC_REM_ACCESS_ERR);
  disconnect();
  connect_both();
  CHECK_EQ(term_advise_mr(region->mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, (uintptr_t)region->memory, 1U << 31),
           EINVAL);
  CHECK_EQ(read_into_buffer(region->mr, region->memory, PAGE), IBV_WC_SUCCESS);
  CHECK(is_pattern(buffer, &region->info, PAGE));
}

static void the_bitmap_outlives_its_region(struct region* region) {
  CHECK_EQ(prefetch(region, 0, 4), 0);
  CHECK(bit(region, 0));
  CHECK_EQ(ibv_dereg_mr(region->mr), 0);
  region->mr = NULL;
  (void)bit(region, 0);
  drop(region, 0, PAGES);
  (void)bit(region, 0);
}

static void the_bitmap_maps_more_than_once(struct region* region) {
  struct term_mr_info again;
  void* twice = NULL;
  CHECK_EQ(term_query_mr(region->mr, &again), 0);
  CHECK_EQ(again.bitmap_offset, region->info.bitmap_offset);
  twice = mmap(NULL, again.bitmap_bytes, PROT_READ, MAP_SHARED, context->cmd_fd, (off_t)again.bitmap_offset);
  CHECK(twice != MAP_FAILED);
  CHECK_EQ(prefetch(region, 0, 1), 0);
  CHECK_EQ(*(uint64_t*)twice & 1, 1);
  munmap(twice, again.bitmap_bytes);
}

static void plain_on_demand(struct region* region) {
  struct term_mr_info info;
  CHECK_EQ(term_query_mr(region->mr, &info), EOPNOTSUPP);
  for (uint64_t page = 0; page < PAGES; page++) { /* READs fault */
    CHECK_EQ(read_into_buffer(region->mr, region->memory + page * PAGE, PAGE), IBV_WC_SUCCESS);
    CHECK(is_page(buffer, page, 0, PAGE));
  }
  drop(region, 0, PAGES);
  CHECK_EQ(read_into_buffer(region->mr, region->memory + PAGE + 9, 5000), IBV_WC_SUCCESS);
  CHECK(is_page(buffer, 1, 9, PAGE - 9));
  CHECK(is_page(buffer + PAGE - 9, 2, 0, 5000 - (PAGE - 9)));
}

static void pinned_regions_are_none(struct region* region) {
  struct term_mr_info info;
  struct ibv_mr* mr = ibv_reg_mr(pd, buffer, PAGES * PAGE, ACCESS | TERM_MR_ACCESS);
  CHECK(mr != NULL);
  CHECK_EQ(term_query_mr(mr, &info), EOPNOTSUPP);
  buffer[PAGE] = 0x5c;
  CHECK_EQ(transfer(IBV_WR_RDMA_READ, mr, buffer + PAGE, 1), IBV_WC_SUCCESS);
  CHECK_EQ(buffer[0], 0x5c);
  CHECK_EQ(ibv_dereg_mr(mr), 0);
  (void)region;
}

static void an_iova_of_its_own(struct region* region) {
  struct ibv_mr* mr = ibv_reg_mr_iova(pd, region->memory + PAGE, 4 * PAGE, 0, TERM_ACCESS);
  struct term_mr_info info;
  CHECK(mr != NULL);
  CHECK_EQ(term_query_mr(mr, &info), 0);
  CHECK_EQ(info.start, (uintptr_t)region->memory + PAGE);
  CHECK_EQ(term_advise_mr(mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 2 * PAGE, PAGE), 0);
  CHECK_EQ(transfer(IBV_WR_RDMA_READ, mr, NULL, 4 * PAGE), IBV_WC_SUCCESS);
  for (uint64_t page = 0; page < 4; page++) {
    CHECK(page == 2 ? is_page(buffer + page * PAGE, page + 1, 0, PAGE) : is_pattern(buffer + page * PAGE, &info, PAGE));
  }
  buffer[0] = 0x5d;
  CHECK_EQ(transfer(IBV_WR_RDMA_WRITE, mr, (void*)PAGE, 1), IBV_WC_SUCCESS);
  CHECK_EQ(region->memory[2 * PAGE], 0x5d);
  CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void nonsense_is_refused(struct region* region) {
  CHECK(ibv_reg_mr_iova(pd, region->memory, region->bytes, -(uint64_t)PAGE, TERM_ACCESS) == NULL);
  CHECK(ibv_reg_mr(pd, NULL, SIZE_MAX, TERM_ACCESS) == NULL);
  CHECK(ibv_reg_mr(pd, region->memory, region->bytes, TERM_ACCESS | IBV_ACCESS_HUGETLB) == NULL);
  CHECK_EQ(term_advise_mr(region->mr, 17, (uintptr_t)region->memory, PAGE), EOPNOTSUPP);
}

/* Ten seconds of READs while pages come and go: each is all data or all pattern, and never another page's. */
static void reads_race_eviction(struct region* region) {
  struct race race;
  uint32_t state = 88172645U;
  uint64_t data = 0, pattern = 0;
  const time_t until = time(NULL) + 10;
  start_race(&race, region);
  while (time(NULL) < until && failure == NULL) {
    const size_t page = draw(&state) % PAGES;
    const size_t from = draw(&state) % 4 == 0 ? draw(&state) % 4000 : 0;
    if (read_into_buffer(region->mr, region->memory + page * PAGE + from, PAGE - from) != IBV_WC_SUCCESS) {
      failure = "a READ failed";
    } else if (is_page(buffer, page, from, PAGE - from)) {
      data++;
    } else {
      for (size_t i = 0; i < PAGE - from; i++) {
        if (buffer[i] != region->info.pattern[(from + i) % TERM_MR_PATTERN_BYTES]) {
          failure = "a page was neither data nor the pattern";
          break;
        }
      }
      pattern++;
    }
  }
  end_race(&race);
  printf("  %" PRIu64 " READs of data, %" PRIu64 " of the pattern, %" PRIu64 " moves\n", data, pattern, race.moved);
  if (failure == NULL) {
    CHECK(data > 100 && pattern > 100 && race.moved > 100);
    uint64_t present = 0;
    STEP(check_all(region, &present));
  }
}

/* More than there is memory: the kernel evicts, and says so. */
static void large(size_t pages, const char* cgroup) {
  struct region region;
  uint32_t state = 521288629U;
  uint64_t data = 0, pattern = 0;
  STEP(begin(&region, pages, TERM_ACCESS));
  CHECK_EQ(region.info.pages, pages);
  if (cgroup != NULL) {
    const int processes = open(cgroup, O_WRONLY);
    CHECK(processes >= 0 && write(processes, "0", 1) == 1);
    close(processes);
  }
  for (int round = 0; round < 2; round++) {
    for (size_t page = 0; page < pages; page += 512) {
      const size_t count = pages - page < 512 ? pages - page : 512;
      const int error = prefetch(&region, page, count);
      if (error != 0 && error != EBUSY && error != ENOMEM && error != EFAULT) {
        FAIL("prefetch of %zu pages at %zu: %s", count, page, strerror(error));
      }
    }
    for (int i = 0; i < 4000; i++) {
      const size_t page = draw(&state) % pages;
      CHECK_EQ(read_into_buffer(region.mr, region.memory + page * PAGE, PAGE), IBV_WC_SUCCESS);
      if (is_page(buffer, page, 0, PAGE)) {
        data++;
      } else {
        CHECK(is_pattern(buffer, &region.info, PAGE));
        pattern++;
      }
    }
  }
  CHECK_EQ(term_query_mr(region.mr, &region.info), 0);
  printf("  %zu pages, %" PRIu64 " present at last; READs: %" PRIu64 " data, %" PRIu64 " pattern\n", pages,
         (uint64_t)region.info.present, data, pattern);
  CHECK(region.info.present < pages && region.info.invalidated > 0 && data > 0 && pattern > 0);
  end(&region);
}

struct test {
  const char* name;
  void (*body)(struct region*);
  int access;
};

static const struct test tests[] = {
    {"is_described", is_described, TERM_ACCESS},
    {"absent_pages_read_as_the_pattern", absent_pages_read_as_the_pattern, TERM_ACCESS},
    {"prefetched_pages_read_as_data", prefetched_pages_read_as_data, TERM_ACCESS},
    {"evicted_pages_read_as_the_pattern", evicted_pages_read_as_the_pattern, TERM_ACCESS},
    {"reclaimed_pages_read_as_the_pattern", reclaimed_pages_read_as_the_pattern, TERM_ACCESS},
    {"finding_does_not_fault", finding_does_not_fault, TERM_ACCESS},
    {"written_back_pages_are_found_again", written_back_pages_are_found_again, TERM_ACCESS},
    {"a_write_faults_its_page_in", a_write_faults_its_page_in, TERM_ACCESS},
    {"a_write_after_a_read_only_prefetch", a_write_after_a_read_only_prefetch, TERM_ACCESS},
    {"atomics_fault_their_page_in", atomics_fault_their_page_in, TERM_ACCESS},
    {"unaligned_reads_may_cross_the_border", unaligned_reads_may_cross_the_border, TERM_ACCESS},
    {"out_of_range_is_refused", out_of_range_is_refused, TERM_ACCESS},
    {"the_bitmap_outlives_its_region", the_bitmap_outlives_its_region, TERM_ACCESS},
    {"the_bitmap_maps_more_than_once", the_bitmap_maps_more_than_once, TERM_ACCESS},
    {"plain_on_demand", plain_on_demand, ACCESS | IBV_ACCESS_ON_DEMAND},
    {"pinned_regions_are_none", pinned_regions_are_none, TERM_ACCESS},
    {"an_iova_of_its_own", an_iova_of_its_own, TERM_ACCESS},
    {"nonsense_is_refused", nonsense_is_refused, TERM_ACCESS},
    {"reads_race_eviction", reads_race_eviction, TERM_ACCESS},
};

static void stock(void) {
  struct term_mr_info info;
  struct ibv_mr* mr = ibv_reg_mr(pd, buffer, PAGE, ACCESS | TERM_MR_ACCESS);
  CHECK(mr != NULL); /* it ignores what it does not know */
  CHECK_EQ(term_query_mr(mr, &info), EPROTONOSUPPORT);
  ibv_dereg_mr(mr);
  CHECK(ibv_reg_mr(pd, buffer, PAGE, TERM_ACCESS) == NULL);
}

static void another_version(void) {
  struct term_mr_info info;
  char text[256], theirs[64];
  struct ibv_mr* mr = ibv_reg_mr(pd, buffer, PAGE, TERM_ACCESS);
  CHECK(mr != NULL);
  CHECK_EQ(term_query_mr(mr, &info), EPROTO);
  CHECK(info.abi_version != TERM_MR_ABI_VERSION && info.abi_version != 0);
  term_version_text(info.abi_version, text, sizeof(text));
  snprintf(theirs, sizeof(theirs), "regions are of version %u, this program's of version %u", info.abi_version,
           (unsigned)TERM_MR_ABI_VERSION);
  CHECK(strstr(text, theirs) != NULL);
  puts(text);
  ibv_dereg_mr(mr);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: term_mr_test DEVICE DIRECTORY [stock | version | large MIB [PROCESSES] | hold]\n");
    return 2;
  }
  directory = argv[2];
  open_device(argv[1]);
  connect_both();
  const char* what = argc > 3 ? argv[3] : "";
  if (strcmp(what, "stock") == 0) {
    stock();
    return report("a_stock_driver_is_recognised");
  }
  if (strcmp(what, "version") == 0) {
    another_version();
    return report("another_version_is_named");
  }
  if (strcmp(what, "large") == 0 && argc > 4) {
    large((size_t)atoll(argv[4]) << 20 >> 12, argc > 5 ? argv[5] : NULL);
    return report(argc > 5 ? "memory_pressure" : "larger_than_memory");
  }
  if (strcmp(what, "hold") == 0) {
    struct region region;
    begin(&region, PAGES, TERM_ACCESS);
    prefetch(&region, 0, PAGES);
    puts(failure == NULL ? "held" : failure);
    fflush(stdout);
    pause();
  }
  int failed = 0;
  for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
    struct region region;
    begin(&region, PAGES, tests[i].access);
    if (failure == NULL) {
      tests[i].body(&region);
    }
    end(&region);
    failed |= report(tests[i].name);
  }
  return failed;
}
