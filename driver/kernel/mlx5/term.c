// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * TeRM MRs.
 *
 * Built against the kernel's sources, not run: there was no such card.
 *
 * A TeRM MR is an on-demand MR with one page of its own, the magic page, that
 * stands for every absent page in the device's table: readable, so that a READ
 * never faults, and not writable, so that a WRITE does. Who READs the pattern
 * that fills it knows that the page is absent.
 *
 * The device's entries follow the umem's dma_list. What an update writes is
 * wider than the range that it is for: entries share aligned blocks. So there
 * is no update that zeroes: one that takes pages away is an ordinary one, for
 * which the pages that leave are marked, and their neighbours stay as they are.
 *
 *	fault, advice	umem maps, update, sync
 *	MMU notifier	leave, update, umem unmaps, sync
 *
 * All of it happens under the umem mutex.
 */

#include <linux/bitmap.h>
#include <linux/random.h>
#include <linux/vmalloc.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/uverbs_std_types.h>

#include "mlx5_ib.h"
#include "term.h"
#include "umr.h"

#define UVERBS_MODULE_NAME mlx5_ib_term
#include <rdma/uverbs_named_ioctl.h>

/* A bit per page. Mappings hold its pages, which so outlive it. */
struct mlx5_ib_term_bitmap {
	struct mlx5_user_mmap_entry mentry;
	unsigned long		*bits;
	size_t			bytes;
};

static struct mlx5_ib_term_bitmap *
to_term_bitmap(struct mlx5_user_mmap_entry *mentry)
{
	return container_of(mentry, struct mlx5_ib_term_bitmap, mentry);
}

static int term_create_magic(struct mlx5_ib_term *term)
{
	struct ib_device *ibdev = &term->dev->ib_dev;
	void *to;
	size_t i;

	term->magic = alloc_page(GFP_KERNEL);
	if (!term->magic)
		return -ENOMEM;

	get_random_bytes(term->pattern, sizeof(term->pattern));
	to = page_address(term->magic);
	for (i = 0; i < PAGE_SIZE; i += sizeof(term->pattern))
		memcpy(to + i, term->pattern, sizeof(term->pattern));

	term->magic_dma = ib_dma_map_page(ibdev, term->magic, 0, PAGE_SIZE,
					  DMA_TO_DEVICE);
	if (ib_dma_mapping_error(ibdev, term->magic_dma)) {
		__free_page(term->magic);
		term->magic = NULL;
		return -EFAULT;
	}
	return 0;
}

static int term_create_bitmap(struct mlx5_ib_term *term,
			      struct ib_udata *udata)
{
	struct mlx5_ib_ucontext *context =
		rdma_udata_to_drv_context(udata, struct mlx5_ib_ucontext,
					  ibucontext);
	struct mlx5_ib_term_bitmap *bitmap;
	int err;

	if (!context)
		return -EINVAL;

	bitmap = kzalloc(sizeof(*bitmap), GFP_KERNEL);
	if (!bitmap)
		return -ENOMEM;

	bitmap->mentry.mmap_flag = MLX5_IB_MMAP_TYPE_TERM;
	bitmap->bytes = PAGE_ALIGN(BITS_TO_LONGS(term->pages) * sizeof(long));
	bitmap->bits = vmalloc_user(bitmap->bytes);
	if (!bitmap->bits) {
		kfree(bitmap);
		return -ENOMEM;
	}

	err = mlx5_rdma_user_mmap_entry_insert(context, &bitmap->mentry,
					       bitmap->bytes);
	if (err) {
		vfree(bitmap->bits);
		kfree(bitmap);
		return err;
	}
	term->bitmap = bitmap;
	return 0;
}

struct mlx5_ib_term *mlx5_ib_term_create(struct mlx5_ib_dev *dev, u64 start,
					 u64 length, u64 iova, int access,
					 struct ib_udata *udata)
{
	struct mlx5_ib_term *term;
	u64 end;
	int err;

	if (access & IB_ACCESS_HUGETLB)
		return ERR_PTR(-EOPNOTSUPP);
	/* Nor the whole address space, which has no umem of its own. */
	if (!length || check_add_overflow(start, length, &end) ||
	    end > TASK_SIZE_MAX || (start ^ iova) & ~PAGE_MASK)
		return ERR_PTR(-EINVAL);

	term = kzalloc(sizeof(*term), GFP_KERNEL);
	if (!term)
		return ERR_PTR(-ENOMEM);

	term->dev = dev;
	term->pages = (ALIGN(end, PAGE_SIZE) - ALIGN_DOWN(start, PAGE_SIZE)) >>
		      PAGE_SHIFT;
	/* Updates count in int. */
	err = term->pages > INT_MAX ? -EINVAL : term_create_magic(term);
	if (!err)
		err = term_create_bitmap(term, udata);
	if (err) {
		mlx5_ib_term_free(term);
		return ERR_PTR(err);
	}
	return term;
}

void mlx5_ib_term_free(struct mlx5_ib_term *term)
{
	if (!term)
		return;

	if (term->bitmap)
		rdma_user_mmap_entry_remove(&term->bitmap->mentry.rdma_entry);
	if (term->magic) {
		ib_dma_unmap_page(&term->dev->ib_dev, term->magic_dma,
				  PAGE_SIZE, DMA_TO_DEVICE);
		__free_page(term->magic);
	}
	kfree(term);
}

int mlx5_ib_term_enable(struct mlx5_ib_mr *mr)
{
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);
	int err;

	mutex_lock(&odp->umem_mutex);
	err = mlx5r_umr_update_xlt(mr, 0, mr->term->pages, odp->page_shift,
				   MLX5_IB_UPD_XLT_ENABLE |
				   MLX5_IB_UPD_XLT_ATOMIC);
	mutex_unlock(&odp->umem_mutex);

	return err;
}

void mlx5_ib_term_leave(struct mlx5_ib_mr *mr, u64 first, u64 end)
{
	lockdep_assert_held(&to_ib_umem_odp(mr->umem)->umem_mutex);

	mr->term->leaving = first;
	mr->term->leaving_end = end;
}

void mlx5_ib_term_sync(struct mlx5_ib_mr *mr, u64 first, u64 end)
{
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);
	struct mlx5_ib_term *term = mr->term;
	unsigned long *bits = term->bitmap->bits;
	u64 index;

	lockdep_assert_held(&odp->umem_mutex);

	term->leaving = 0;
	term->leaving_end = 0;
	for (index = first; index < end; index++) {
		if (odp->dma_list[index]) {
			if (test_and_set_bit(index, bits))
				continue;
			term->present++;
			term->mapped++;
		} else if (test_and_clear_bit(index, bits)) {
			term->present--;
			term->invalidated++;
		}
	}
}

int mlx5_ib_term_mmap(struct mlx5_user_mmap_entry *mentry,
		      struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_WRITE)
		return -EPERM;
	vm_flags_clear(vma, VM_MAYWRITE);

	return remap_vmalloc_range(vma, to_term_bitmap(mentry)->bits, 0);
}

void mlx5_ib_term_mmap_free(struct mlx5_user_mmap_entry *mentry)
{
	struct mlx5_ib_term_bitmap *bitmap = to_term_bitmap(mentry);

	vfree(bitmap->bits);
	kfree(bitmap);
}

static int UVERBS_HANDLER(TERM_MR_METHOD_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *ibmr = uverbs_attr_get_obj(attrs, TERM_MR_ATTR_MR);
	struct mlx5_ib_mr *mr = to_mmr(ibmr);
	struct mlx5_ib_term *term = mr->term;
	struct term_mr_info info = {};
	struct ib_umem_odp *odp;

	if (!term)
		return -EOPNOTSUPP;

	odp = to_ib_umem_odp(mr->umem);
	mutex_lock(&odp->umem_mutex);
	info.abi_version = TERM_MR_ABI_VERSION;
	info.page_size = PAGE_SIZE;
	info.start = ib_umem_start(odp);
	info.pages = term->pages;
	info.present = term->present;
	info.bitmap_offset = mlx5_entry_to_mmap_offset(&term->bitmap->mentry);
	info.bitmap_bytes = term->bitmap->bytes;
	info.mapped = term->mapped;
	info.invalidated = term->invalidated;
	info.faulted = atomic64_read(&mr->odp_stats.faults);
	memcpy(info.pattern, term->pattern, sizeof(info.pattern));
	mutex_unlock(&odp->umem_mutex);

	return uverbs_copy_to_struct_or_zero(attrs, TERM_MR_ATTR_INFO, &info,
					     sizeof(info));
}

DECLARE_UVERBS_NAMED_METHOD(TERM_MR_METHOD_QUERY,
			    UVERBS_ATTR_IDR(TERM_MR_ATTR_MR, UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ, UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(TERM_MR_ATTR_INFO,
						UVERBS_ATTR_STRUCT(struct term_mr_info,
								   pattern),
						UA_MANDATORY));

ADD_UVERBS_METHODS(mlx5_ib_term_mr, UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(TERM_MR_METHOD_QUERY));

const struct uapi_definition mlx5_ib_term_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &mlx5_ib_term_mr),
	{}
};
