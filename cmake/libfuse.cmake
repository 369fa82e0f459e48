# SPDX-License-Identifier: Apache-2.0
# termfs_libfuse: what mount/ links. The one that tools/build_libfuse.sh has built (static, with custom I/O), or else
# Debian's; sources tell them apart by FUSE_VERSION. One name, so that nobody needs to know which one it is.
# TERMFS_DEBIAN_LIBFUSE=ON takes Debian's in any case, for the tests of that one.
set(TERMFS_LIBFUSE_PREFIX ${CMAKE_SOURCE_DIR}/build/libfuse CACHE PATH "where a newer libfuse is installed, if it is")

option(TERMFS_DEBIAN_LIBFUSE "link Debian's libfuse even where a newer one was built" OFF)
pkg_check_modules(TERMFS_URING REQUIRED IMPORTED_TARGET liburing)

if(NOT TERMFS_DEBIAN_LIBFUSE AND EXISTS ${TERMFS_LIBFUSE_PREFIX}/lib/pkgconfig/fuse3.pc)
  set(saved_pkg_config_path "$ENV{PKG_CONFIG_PATH}")
  set(ENV{PKG_CONFIG_PATH} ${TERMFS_LIBFUSE_PREFIX}/lib/pkgconfig)
  pkg_check_modules(TERMFS_FUSE REQUIRED IMPORTED_TARGET fuse3)
  set(ENV{PKG_CONFIG_PATH} "${saved_pkg_config_path}")
else()
  pkg_check_modules(TERMFS_FUSE REQUIRED IMPORTED_TARGET fuse3)
endif()

add_library(termfs_libfuse INTERFACE)
target_link_libraries(termfs_libfuse INTERFACE PkgConfig::TERMFS_FUSE)
target_compile_definitions(termfs_libfuse INTERFACE FUSE_USE_VERSION=312)
