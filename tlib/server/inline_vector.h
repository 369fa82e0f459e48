// SPDX-License-Identifier: Apache-2.0
//
// InlineVector<T, N>: up to N items inside the object. Unlike std::array it constructs only what is pushed, which
// counts where windows of 128 items serve requests of one page.
//
// Thread-safety: none. Ownership: of its items. Addresses stay valid until Clear.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"

namespace termfs::tlib::server {

template <typename T, size_t N>
class InlineVector {
 public:
  InlineVector() = default;
  ~InlineVector() { Clear(); }
  InlineVector(const InlineVector&) = delete;
  InlineVector& operator=(const InlineVector&) = delete;

  // REQUIRES: size() < N.
  T& Push(T item) {
    TERMFS_CHECK(size_ < N);
    return *new (storage_ + sizeof(T) * size_++) T(std::move(item));
  }
  void Clear() {
    std::destroy_n(data(), size_);
    size_ = 0;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == N; }
  T* data() { return std::launder(reinterpret_cast<T*>(storage_)); }
  const T* data() const { return std::launder(reinterpret_cast<const T*>(storage_)); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  operator std::span<T>() { return {data(), size_}; }              // NOLINT(google-explicit-constructor)
  operator std::span<const T>() const { return {data(), size_}; }  // NOLINT(google-explicit-constructor)

 private:
  size_t size_ = 0;
  alignas(T) std::byte storage_[sizeof(T) * N];  // uninitialised on purpose
};

}  // namespace termfs::tlib::server
