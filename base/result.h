// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every fallible function of termfs reports failure.
//
// A Status is either ok or an errno with a short text that says what was attempted. The domain is errno because
// errors end in FUSE replies or in exit codes; mount/errno.cc is the only place that turns one into a reply.
//
// Thread-safety: values; distinct objects may be used concurrently.
// Ownership:     a Status owns its text. An ok Status allocates nothing and is one pointer wide.
#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace termfs {

// Where an error arose. (std::source_location, which clang 14 cannot fill in.)
struct SourceLocation {
  const char* file = "";
  int line = 0;
  static constexpr SourceLocation Current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(const Status& other) : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}
  Status& operator=(const Status& other) {
    rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
    return *this;
  }
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  static Status Ok() { return {}; }

  // `code` is a positive errno, for programs. `why` is all that people are told: what is wrong and, where it helps,
  // what to do.
  static Status Error(int code, std::string why, SourceLocation where = SourceLocation::Current());
  // `what` was attempted, and failed with `code`, whose text says why.
  static Status Errno(int code, std::string what, SourceLocation where = SourceLocation::Current());

  bool ok() const { return rep_ == nullptr; }
  // 0 when ok, else a positive errno.
  int code() const { return rep_ ? rep_->code : 0; }
  // Without what the errno says; for the whole ToString().
  std::string_view message() const { return rep_ ? std::string_view(rep_->what) : std::string_view(); }
  // For people: why, or "what: strerror", but what alone where it ends so, or does before a ")", or in advice behind a
  // semicolon; "ok" when ok.
  std::string ToString() const;
  // ToString() and file:line of the origin, for logs.
  std::string ToDebugString() const;

  // The same error with `context + ": "` in front of its text. No-op when ok.
  Status WithContext(std::string_view context) &&;

 private:
  struct Rep {
    int code;
    std::string what;
    SourceLocation where;
    bool says_why = true;
  };
  std::unique_ptr<Rep> rep_;
};

// Status::Errno of the current errno.
Status ErrnoStatus(std::string what, SourceLocation where = SourceLocation::Current());

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : rep_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Status error) : rep_(std::in_place_index<1>, std::move(error)) {  // NOLINT(google-explicit-constructor)
    TERMFS_CHECK(!std::get<1>(rep_).ok());
  }

  bool ok() const { return rep_.index() == 0; }
  // REQUIRES: ok().
  T& value() & {
    TERMFS_CHECK(ok());
    return std::get<0>(rep_);
  }
  const T& value() const& {
    TERMFS_CHECK(ok());
    return std::get<0>(rep_);
  }
  T&& value() && {
    TERMFS_CHECK(ok());
    return std::move(std::get<0>(rep_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Ok when ok(), else the error.
  Status status() const& { return ok() ? Status() : std::get<1>(rep_); }
  Status status() && { return ok() ? Status() : std::move(std::get<1>(rep_)); }

 private:
  std::variant<T, Status> rep_;
};

}  // namespace termfs

#define TERMFS_CONCAT_INNER(a, b) a##b
#define TERMFS_CONCAT(a, b) TERMFS_CONCAT_INNER(a, b)

// Returns from the enclosing function with the error if `expr` (a Status) is one.
#define RETURN_IF_ERROR(expr)                               \
  do {                                                      \
    if (::termfs::Status status_ = (expr); !status_.ok()) { \
      return status_;                                       \
    }                                                       \
  } while (false)

// ASSIGN_OR_RETURN(auto x, F()): x from the Result that F() returns, or returns its error.
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_INNER(TERMFS_CONCAT(result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration
#define ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) {                             \
    return std::move(tmp).status();            \
  }                                            \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
