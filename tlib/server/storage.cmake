# SPDX-License-Identifier: Apache-2.0
# termfs_tlib_storage: the SSD and the DRAM tier in front of it.
add_library(termfs_tlib_storage STATIC
  aio_block_device.cc aio_context.cc background_task.cc block_device.cc blocking_io.cc bounce_pool.cc chunk_retirer.cc
  cleaner.cc
  device_contents.cc device_file.cc frame_supply.cc frames.cc group_commit.cc heat_map.cc kernel_block_device.cc
  metered_block_device.cc page_states.cc pager.cc promoter.cc read_ahead.cc read_window.cc region.cc region_files.cc region_label.cc
  small_file.cc tier_owner.cc tier_place.cc tier_policy.cc tier_recovery.cc tier_store.cc tiering_io.cc written_log.cc
  reporting_block_device.cc tier_memory.cc)
target_link_libraries(termfs_tlib_storage
  PUBLIC termfs_base termfs_driver termfs_tlib_task ${AIO_LIBRARY} PRIVATE PkgConfig::ISAL PkgConfig::BLKID)
