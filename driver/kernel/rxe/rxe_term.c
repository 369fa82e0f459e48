// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand MRs and TeRM MRs.
 *
 * Such an MR has a page table of its own, an entry per page: the page's frame,
 * with a bit that says whether it may be written, or what stands for an absent
 * page. In an on-demand MR that is nothing, and access faults the page in. In a
 * TeRM MR it is the magic page, readable and never writable: a READ never
 * faults, and who reads the magic page's pattern knows that the page is absent;
 * a WRITE finds it read-only and faults.
 *
 * Entries change under the umem mutex only, and are used under it. They point at
 * absent pages from registration on; a fault or advice makes those of pages that
 * are mapped point at data; the MMU notifier turns them back before the frame
 * goes. That happens whenever the process's own mapping changes, when dirty
 * pages are written back as well; advice without faults finds the pages again
 * that are still there. The bitmap that user space may map follows the entries.
 *
 * The driver's own table is needed because the one in struct ib_umem_odp is
 * filled in before it is known whether that was in time.
 */

#include <linux/bitmap.h>
#include <linux/highmem.h>
#include <linux/mmu_notifier.h>
#include <linux/random.h>
#include <linux/vmalloc.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/uverbs_std_types.h>

#include "rxe.h"
#include "rxe_loc.h"
#include "rxe_term.h"
#include "term_mr_abi.h"

#define UVERBS_MODULE_NAME rxe_term
#include <rdma/uverbs_named_ioctl.h>

/* A range that does not fit in memory fails as a whole, after a second. */
#define RXE_TERM_ADVISE_PAGES	1024

#define RXE_TERM_WRITABLE	1UL

struct rxe_term {
	struct ib_umem_odp	*odp;
	/* A page's address and RXE_TERM_WRITABLE, or absent. */
	unsigned long		*entries;
	unsigned long		absent;
	u64			pages;

	/* of a TeRM MR; else NULL */
	struct page		*magic;
	unsigned long		*bitmap;
	struct rxe_mmap_info	*mmap;	/* owns the bitmap */

	/* for term_mr_info */
	u64			present;
	u64			mapped;
	u64			invalidated;
	u64			faulted;
	u64			magic_reads;
	u8			pattern[TERM_MR_PATTERN_BYTES];
};

static u64 rxe_term_index(struct rxe_term *term, u64 iova)
{
	return (iova - ib_umem_start(term->odp)) >> PAGE_SHIFT;
}

static struct page *rxe_term_page(unsigned long entry)
{
	return (struct page *)(entry & ~RXE_TERM_WRITABLE);
}

static void rxe_term_set(struct rxe_term *term, u64 index, unsigned long entry)
{
	bool was = term->entries[index] != term->absent;
	bool is = entry != term->absent;

	term->entries[index] = entry;
	if (was == is)
		return;

	if (is) {
		term->present++;
		term->mapped++;
		if (term->bitmap)
			set_bit(index, term->bitmap);
	} else {
		term->present--;
		term->invalidated++;
		if (term->bitmap)
			clear_bit(index, term->bitmap);
	}
}

/* What the umem has mapped, or has not. */
static void rxe_term_sync(struct rxe_term *term, u64 first, u64 end)
{
	u64 index;

	lockdep_assert_held(&term->odp->umem_mutex);

	for (index = first; index < end; index++) {
		dma_addr_t dma = term->odp->dma_list[index];
		unsigned long entry = term->absent;

		if (dma) {
			entry = (unsigned long)ib_virt_dma_to_page(dma &
							ODP_DMA_ADDR_MASK);
			if (dma & ODP_WRITE_ALLOWED_BIT)
				entry |= RXE_TERM_WRITABLE;
		}
		rxe_term_set(term, index, entry);
	}
}

static bool rxe_term_invalidate(struct mmu_interval_notifier *mni,
				const struct mmu_notifier_range *range,
				unsigned long cur_seq)
{
	struct ib_umem_odp *odp =
			container_of(mni, struct ib_umem_odp, notifier);
	struct rxe_term *term;
	u64 start, end;

	if (!mmu_notifier_range_blockable(range))
		return false;

	mutex_lock(&odp->umem_mutex);
	mmu_interval_set_seq(mni, cur_seq);

	start = max_t(u64, ib_umem_start(odp), range->start);
	end = min_t(u64, ib_umem_end(odp), range->end);
	ib_umem_odp_unmap_dma_pages(odp, start, end);

	/* NULL: the MR is just being registered, and has nothing mapped. */
	term = odp->private;
	if (term)
		rxe_term_sync(term, rxe_term_index(term, start),
			      rxe_term_index(term, end - 1) + 1);

	mutex_unlock(&odp->umem_mutex);

	return true;
}

static const struct mmu_interval_notifier_ops rxe_term_notifier_ops = {
	.invalidate = rxe_term_invalidate,
};

void rxe_term_init_device(struct rxe_dev *rxe)
{
	struct ib_odp_caps *caps = &rxe->attr.odp_caps;

	if (!IS_ENABLED(CONFIG_INFINIBAND_ON_DEMAND_PAGING))
		return;

	rxe->attr.kernel_cap_flags |= IBK_ON_DEMAND_PAGING;
	caps->general_caps |= IB_ODP_SUPPORT;
	caps->per_transport_caps.rc_odp_caps |=
			IB_ODP_SUPPORT_SEND | IB_ODP_SUPPORT_RECV |
			IB_ODP_SUPPORT_WRITE | IB_ODP_SUPPORT_READ |
			IB_ODP_SUPPORT_ATOMIC | IB_ODP_SUPPORT_SRQ_RECV;
	caps->per_transport_caps.ud_odp_caps |=
			IB_ODP_SUPPORT_SEND | IB_ODP_SUPPORT_RECV |
			IB_ODP_SUPPORT_SRQ_RECV;
}

static int rxe_term_init_magic(struct rxe_dev *rxe, struct rxe_term *term,
			       struct ib_udata *udata)
{
	size_t bytes = PAGE_ALIGN(BITS_TO_LONGS(term->pages) * sizeof(long));
	void *to;
	size_t i;

	term->magic = alloc_page(GFP_KERNEL);
	if (!term->magic)
		return -ENOMEM;

	get_random_bytes(term->pattern, sizeof(term->pattern));
	to = page_address(term->magic);
	for (i = 0; i < PAGE_SIZE; i += sizeof(term->pattern))
		memcpy(to + i, term->pattern, sizeof(term->pattern));
	term->absent = (unsigned long)term->magic;

	if (bytes > U32_MAX)
		return -EINVAL;
	term->bitmap = vmalloc_user(bytes);
	if (!term->bitmap)
		return -ENOMEM;

	term->mmap = rxe_create_mmap_info(rxe, bytes, udata, term->bitmap);
	if (IS_ERR(term->mmap)) {
		int err = PTR_ERR(term->mmap);

		term->mmap = NULL;
		vfree(term->bitmap);
		return err;
	}
	return 0;
}

static void rxe_term_free(struct rxe_term *term)
{
	if (term->mmap)
		kref_put(&term->mmap->ref, rxe_mmap_release);
	if (term->magic)
		__free_page(term->magic);
	kvfree(term->entries);
	kfree(term);
}

int rxe_term_init_user(struct rxe_dev *rxe, u64 start, u64 length, u64 iova,
		       int access, struct ib_udata *udata, struct rxe_mr *mr)
{
	struct ib_umem_odp *odp;
	struct rxe_term *term;
	u64 first, end, i;
	int err;

	rxe_mr_init(access, mr);

	if (!IS_ENABLED(CONFIG_INFINIBAND_ON_DEMAND_PAGING) ||
	    access & IB_ACCESS_HUGETLB)
		return -EOPNOTSUPP;
	/* Nor the whole address space, which has no umem of its own. */
	if (!length || check_add_overflow(start, length, &end) ||
	    end > TASK_SIZE_MAX || start != iova)
		return -EINVAL;

	term = kzalloc(sizeof(*term), GFP_KERNEL);
	if (!term)
		return -ENOMEM;

	first = ALIGN_DOWN(start, PAGE_SIZE);
	term->pages = (ALIGN(end, PAGE_SIZE) - first) >> PAGE_SHIFT;
	term->entries = kvcalloc(term->pages, sizeof(*term->entries),
				 GFP_KERNEL | __GFP_NOWARN);
	if (!term->entries) {
		err = -ENOMEM;
		goto err_free;
	}

	if (access & TERM_MR_ACCESS) {
		err = rxe_term_init_magic(rxe, term, udata);
		if (err)
			goto err_free;
		for (i = 0; i < term->pages; i++)
			term->entries[i] = term->absent;
	}

	odp = ib_umem_odp_get(&rxe->ib_dev, start, length, access,
			      &rxe_term_notifier_ops);
	if (IS_ERR(odp)) {
		err = PTR_ERR(odp);
		rxe_dbg_mr(mr, "Unable to create umem_odp err = %d\n", err);
		goto err_free;
	}
	term->odp = odp;

	mutex_lock(&odp->umem_mutex);
	odp->private = term;
	mutex_unlock(&odp->umem_mutex);

	mr->umem = &odp->umem;
	mr->term = term;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;

	return 0;

err_free:
	rxe_term_free(term);
	return err;
}

void rxe_term_cleanup(struct rxe_mr *mr)
{
	if (mr->term)
		rxe_term_free(mr->term);
	mr->term = NULL;
}

struct page *rxe_term_get_page(struct rxe_mr *mr, u64 iova, bool write)
{
	struct rxe_term *term = mr->term;
	u64 index = rxe_term_index(term, iova);
	u64 access = ODP_READ_ALLOWED_BIT;
	unsigned long entry;
	int ret;

	mutex_lock(&term->odp->umem_mutex);
	entry = term->entries[index];
	if (entry && (!write || entry & RXE_TERM_WRITABLE)) {
		if (entry == term->absent)
			term->magic_reads++;
		return rxe_term_page(entry);
	}
	mutex_unlock(&term->odp->umem_mutex);

	if (write)
		access |= ODP_WRITE_ALLOWED_BIT;
	ret = ib_umem_odp_map_dma_and_lock(term->odp,
					   ALIGN_DOWN(iova, PAGE_SIZE),
					   PAGE_SIZE, access, true);
	if (ret < 0)
		return ERR_PTR(ret);

	term->faulted++;
	rxe_term_sync(term, index, index + 1);
	return rxe_term_page(term->entries[index]);
}

void rxe_term_put_page(struct rxe_mr *mr)
{
	mutex_unlock(&mr->term->odp->umem_mutex);
}

int rxe_term_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length,
		  enum rxe_mr_copy_dir dir)
{
	while (length) {
		unsigned int offset = offset_in_page(iova);
		unsigned int bytes = min_t(unsigned int, length,
					   PAGE_SIZE - offset);
		struct page *page;
		u8 *va;

		page = rxe_term_get_page(mr, iova, dir == RXE_TO_MR_OBJ);
		if (IS_ERR(page))
			return PTR_ERR(page);

		va = kmap_local_page(page);
		if (dir == RXE_TO_MR_OBJ)
			memcpy(va + offset, addr, bytes);
		else
			memcpy(addr, va + offset, bytes);
		kunmap_local(va);
		rxe_term_put_page(mr);

		iova += bytes;
		addr += bytes;
		length -= bytes;
	}

	return 0;
}

/* At most RXE_TERM_ADVISE_PAGES. */
static int rxe_term_advise_range(struct rxe_mr *mr, u64 start, u64 end,
				 u64 access, bool fault)
{
	struct rxe_term *term = mr->term;
	u64 at = ALIGN_DOWN(start, PAGE_SIZE);
	u64 bytes = ALIGN(end, PAGE_SIZE) - at;
	u64 index;
	int ret;

	if (!term)
		return -EINVAL;

	ret = mr_check_range(mr, start, end - start);
	if (ret)
		return ret;

	ret = ib_umem_odp_map_dma_and_lock(term->odp, at, bytes, access, fault);
	if (ret < 0)
		return ret;

	index = rxe_term_index(term, at);
	rxe_term_sync(term, index, index + (bytes >> PAGE_SHIFT));
	mutex_unlock(&term->odp->umem_mutex);

	return 0;
}

/* Holds the MR for a part at a time: its deregistration waits a moment only. */
static int rxe_term_advise_sge(struct rxe_pd *pd, struct ib_sge *sge,
			       u64 access, bool fault)
{
	u64 at = sge->addr;
	u64 end;

	if (check_add_overflow(at, sge->length, &end))
		return -EINVAL;

	while (at < end) {
		u64 part_end = min_t(u64, end, ALIGN_DOWN(at, PAGE_SIZE) +
				     RXE_TERM_ADVISE_PAGES * PAGE_SIZE);
		struct rxe_mr *mr;
		int err;

		mr = lookup_mr(pd, IB_ACCESS_LOCAL_WRITE, sge->lkey,
			       RXE_LOOKUP_LOCAL);
		if (!mr)
			return -EINVAL;

		err = rxe_term_advise_range(mr, at, part_end, access, fault);
		rxe_put(mr);
		if (err)
			return err;

		at = part_end;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}

	return 0;
}

int rxe_term_advise(struct ib_pd *ibpd, enum ib_uverbs_advise_mr_advice advice,
		    u32 flags, struct ib_sge *sg_list, u32 num_sge,
		    struct uverbs_attr_bundle *attrs)
{
	bool fault = advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	u64 access = ODP_READ_ALLOWED_BIT;
	u32 i;

	switch (advice) {
	case IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE:
		access |= ODP_WRITE_ALLOWED_BIT;
		break;
	case IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH:
	case IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
		break;
	default:
		return -EOPNOTSUPP;
	}

	for (i = 0; i < num_sge; i++) {
		int err = rxe_term_advise_sge(to_rpd(ibpd), &sg_list[i], access,
					      fault);

		if (err)
			return err;
	}

	return 0;
}

/* The next mmap() at its offset finds it; each takes it off the list. */
static void rxe_term_offer_bitmap(struct rxe_dev *rxe, struct rxe_term *term)
{
	struct rxe_mmap_info *ip = term->mmap;

	spin_lock_bh(&rxe->pending_lock);
	if (list_empty(&ip->pending_mmaps))
		list_add(&ip->pending_mmaps, &rxe->pending_mmaps);
	spin_unlock_bh(&rxe->pending_lock);
}

static int UVERBS_HANDLER(TERM_MR_METHOD_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *ibmr = uverbs_attr_get_obj(attrs, TERM_MR_ATTR_MR);
	struct rxe_mr *mr = to_rmr(ibmr);
	struct rxe_term *term = mr->term;
	struct term_mr_info info = {};

	if (!term || !term->magic)
		return -EOPNOTSUPP;

	mutex_lock(&term->odp->umem_mutex);
	info.abi_version = TERM_MR_ABI_VERSION;
	info.page_size = PAGE_SIZE;
	info.start = ib_umem_start(term->odp);
	info.pages = term->pages;
	info.present = term->present;
	info.bitmap_offset = term->mmap->info.offset;
	info.bitmap_bytes = term->mmap->info.size;
	info.mapped = term->mapped;
	info.invalidated = term->invalidated;
	info.faulted = term->faulted;
	info.magic_reads = term->magic_reads;
	memcpy(info.pattern, term->pattern, sizeof(info.pattern));
	mutex_unlock(&term->odp->umem_mutex);

	rxe_term_offer_bitmap(to_rdev(ibmr->device), term);

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

ADD_UVERBS_METHODS(rxe_term_mr, UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(TERM_MR_METHOD_QUERY));

const struct uapi_definition rxe_term_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &rxe_term_mr),
	{}
};
