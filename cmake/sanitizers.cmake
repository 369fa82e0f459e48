# SPDX-License-Identifier: Apache-2.0
# TERMFS_SANITIZE: sanitizers to build with, "address,undefined" or "thread"; clang only, because libFuzzer and the
# fiber annotations that coroutines need are only dependable there.
# TERMFS_FUZZ: build the fuzzers too. They share the objects of the address sanitizer's build.
set(TERMFS_SANITIZE "" CACHE STRING "address,undefined or thread: build with these sanitizers (clang)")
option(TERMFS_FUZZ "build the libFuzzer programs (with address,undefined)" OFF)

if(TERMFS_SANITIZE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TERMFS_SANITIZE needs clang: cmake --preset asan, or --preset tsan")
  endif()
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_compile_options(-fsanitize=${TERMFS_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TERMFS_SANITIZE})
endif()
if(TERMFS_FUZZ)
  if(NOT TERMFS_SANITIZE MATCHES "address")
    message(FATAL_ERROR "TERMFS_FUZZ needs the address sanitizer: cmake --preset asan")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
