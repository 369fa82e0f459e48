/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * On-demand MRs, and TeRM MRs, which are on-demand MRs whose READs never fault.
 */
#ifndef RXE_TERM_H
#define RXE_TERM_H

#include <rdma/uverbs_ioctl.h>

#include "rxe.h"

struct rxe_term;

extern const struct uapi_definition rxe_term_defs[];

/* Says in the device's attributes what on-demand MRs can do. */
void rxe_term_init_device(struct rxe_dev *rxe);

/* Makes mr an on-demand MR, a TeRM MR where access says so. */
int rxe_term_init_user(struct rxe_dev *rxe, u64 start, u64 length, u64 iova,
		       int access, struct ib_udata *udata, struct rxe_mr *mr);
/* After the release of mr->umem. */
void rxe_term_cleanup(struct rxe_mr *mr);

int rxe_term_advise(struct ib_pd *ibpd, enum ib_uverbs_advise_mr_advice advice,
		    u32 flags, struct ib_sge *sg_list, u32 num_sge,
		    struct uverbs_attr_bundle *attrs);

/*
 * The page at iova, which must be in the MR, until rxe_term_put_page(): no
 * entry of the MR changes meanwhile. May sleep.
 */
struct page *rxe_term_get_page(struct rxe_mr *mr, u64 iova, bool write);
void rxe_term_put_page(struct rxe_mr *mr);

/* Within the MR. */
int rxe_term_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length,
		  enum rxe_mr_copy_dir dir);

#endif /* RXE_TERM_H */
