/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * What user space and a driver agree about a TeRM memory region: Soft-RoCE's
 * and mlx5's alike, so that who meets either needs to know neither.
 *
 * A TeRM MR is registered by ibv_reg_mr() with IB_ACCESS_ON_DEMAND and
 * TERM_MR_ACCESS. Its iova need not be its virtual address, but lies at the
 * same place in its page. TERM_MR_ACCESS is one of the optional access flags,
 * which a driver that does not know it ignores: whether an MR is a TeRM MR is
 * asked by TERM_MR_METHOD_QUERY, a method of the MR object of the uverbs
 * ioctl. It fails with EPROTONOSUPPORT where the driver has no TeRM MRs, and
 * with EOPNOTSUPP for an MR that is none.
 */
#ifndef TERM_MR_ABI_H
#define TERM_MR_ABI_H

#include <linux/types.h>

/*
 * Counts up with every change that the other side has to know about. What is
 * appended to struct term_mr_info is none: the kernel fills in as much of it as
 * user space has room for, with zeros where the driver has less.
 */
#define TERM_MR_ABI_VERSION	2

#define TERM_MR_ACCESS		(1 << 28)

/* Absent pages read as this many bytes over and over. */
#define TERM_MR_PATTERN_BYTES	64

enum term_mr_methods {
	TERM_MR_METHOD_QUERY = 0x1000,
};

enum term_mr_query_attrs {
	TERM_MR_ATTR_MR = 0x1000,	/* in: the MR's handle */
	TERM_MR_ATTR_INFO,		/* out: struct term_mr_info */
};

struct term_mr_info {
	__u32 abi_version;
	__u32 page_size;	/* bytes */
	__u64 start;		/* virtual address of the first page */
	__u64 pages;
	__u64 present;		/* pages */
	/*
	 * The bitmap, a bit per page, 1: present, in 64-bit words: mmap() the
	 * device's command descriptor there. It stays mapped when the MR is
	 * gone.
	 */
	__u64 bitmap_offset;
	__u64 bitmap_bytes;
	/* Since the registration, in pages. */
	__u64 mapped;		/* entries that came to point at data */
	__u64 invalidated;	/* entries that came to point at the pattern */
	__u64 faulted;		/* by WRITEs and atomics */
	__u64 magic_reads;	/* answered with the pattern; 0: it is not counted */
	__u8 pattern[TERM_MR_PATTERN_BYTES];
};

#endif /* TERM_MR_ABI_H */
