/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * TeRM MRs: on-demand MRs whose absent pages read as a pattern.
 *
 * Built against the kernel's sources, not run: there was no such card.
 */
#ifndef MLX5_IB_TERM_H
#define MLX5_IB_TERM_H

#include <rdma/uverbs_ioctl.h>

#include "mlx5_ib.h"
#include "term_mr_abi.h"

/* A range that does not fit in memory fails as a whole, after a second. */
#define MLX5_IB_TERM_FAULT_BYTES	(1024 * PAGE_SIZE)

struct mlx5_ib_term_bitmap;

/* Changed under the umem mutex of the MR's on-demand umem. */
struct mlx5_ib_term {
	struct mlx5_ib_dev	*dev;
	struct page		*magic;
	dma_addr_t		magic_dma;
	/* Pages of this range are absent whatever the umem says. */
	u64			leaving;
	u64			leaving_end;
	u64			pages;

	/* the bits and counters that user space sees; nothing relies on them */
	struct mlx5_ib_term_bitmap *bitmap;
	u64			present;
	u64			mapped;
	u64			invalidated;
	u8			pattern[TERM_MR_PATTERN_BYTES];
};

#ifdef CONFIG_INFINIBAND_ON_DEMAND_PAGING
extern const struct uapi_definition mlx5_ib_term_defs[];

/* Of an MR that is to be registered with TERM_MR_ACCESS. */
struct mlx5_ib_term *mlx5_ib_term_create(struct mlx5_ib_dev *dev, u64 start,
					 u64 length, u64 iova, int access,
					 struct ib_udata *udata);
/* After the umem's release. term may be NULL. */
void mlx5_ib_term_free(struct mlx5_ib_term *term);

/* Enables the MR's mkey, with every page absent. */
int mlx5_ib_term_enable(struct mlx5_ib_mr *mr);

/*
 * Of pages first to end - 1, with the umem mutex held: the next update of the
 * device's entries has them absent; what the umem has mapped by now.
 */
void mlx5_ib_term_leave(struct mlx5_ib_mr *mr, u64 first, u64 end);
void mlx5_ib_term_sync(struct mlx5_ib_mr *mr, u64 first, u64 end);

int mlx5_ib_term_mmap(struct mlx5_user_mmap_entry *mentry,
		      struct vm_area_struct *vma);
void mlx5_ib_term_mmap_free(struct mlx5_user_mmap_entry *mentry);

/* The device's entry of a page that the umem has at dma. */
static inline u64 mlx5_ib_term_mtt(struct mlx5_ib_term *term, u64 index,
				   dma_addr_t dma, u64 mtt)
{
	if (!dma || (index >= term->leaving && index < term->leaving_end))
		return term->magic_dma | MLX5_IB_MTT_READ;
	return mtt;
}
#else
static inline struct mlx5_ib_term *
mlx5_ib_term_create(struct mlx5_ib_dev *dev, u64 start, u64 length, u64 iova,
		    int access, struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static inline void mlx5_ib_term_free(struct mlx5_ib_term *term) {}

static inline int mlx5_ib_term_enable(struct mlx5_ib_mr *mr)
{
	return -EOPNOTSUPP;
}

static inline int mlx5_ib_term_mmap(struct mlx5_user_mmap_entry *mentry,
				    struct vm_area_struct *vma)
{
	return -EOPNOTSUPP;
}

static inline void mlx5_ib_term_mmap_free(struct mlx5_user_mmap_entry *mentry)
{
}
#endif

#endif /* MLX5_IB_TERM_H */
