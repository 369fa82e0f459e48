// SPDX-License-Identifier: Apache-2.0
//
// SparseArray: items that begin as zeros, in address space that gets memory where it is touched. For arrays that have
// an item per page a region may grow to.
//
// Thread-safety: as the items'.
// Errors:        std::bad_alloc where there is no address space, as from new.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>

#include "base/check.h"

namespace termfs::tlib::server {

template <typename T>
class SparseArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit SparseArray(size_t size) : size_(size) {
    if (size == 0) {
      return;
    }
    void* const mapped =
        mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      throw std::bad_alloc();
    }
    items_ = static_cast<T*>(mapped);
  }
  ~SparseArray() {
    if (items_ != nullptr) {
      munmap(items_, size_ * sizeof(T));
    }
  }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;

  size_t size() const { return size_; }
  T& operator[](size_t index) const {
    TERMFS_CHECK(index < size_);
    return items_[index];
  }

 private:
  const size_t size_;
  T* items_ = nullptr;
};

}  // namespace termfs::tlib::server
