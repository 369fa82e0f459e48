#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds a static libfuse of 3.18 or newer from Debian's own source package into
# build/libfuse; cmake/libfuse.cmake finds it there. Debian 12 itself has 3.14. Where it cannot be built, a line says why
# and Debian's is used; the next attempt is made a day later or after ./dev clean. A second run costs nothing.
#
# The source is that of suite sid; debian_source.sh says where it comes from.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
source "$root/tools/debian_source.sh"
prefix=$root/build/libfuse
suite=sid
oldest=3.18

# What it is built with; another list builds it anew. Custom I/O lets mount/ receive and answer by itself, which is how
# each thread gets a ring, or a device, of its own.
features="-Denable-io-uring=true -Denable-custom-io=true"
passthrough=passthrough_ll # its example, which the benchmarks compare with
[[ ! -f $prefix/lib/pkgconfig/fuse3.pc || $(cat "$prefix/features" 2> /dev/null) != "$features $passthrough" ]] || exit 0
[[ -z $(find "$prefix.unavailable" -mtime -1 2> /dev/null) ]] || exit 0

mkdir -p "$root/build"
rm -rf "$prefix"
work=$(mktemp -d "$root/build/libfuse-source.XXXXXX")
trap 'rm -rf "$work"' EXIT

give_up() {
  echo "dev: libfuse: $1; Debian's own is used, without io_uring" >&2
  tail -n 5 "$work/log" >&2 2> /dev/null || true
  echo "$1" > "$prefix.unavailable"
  exit 0
}

compile() {
  # bindir is where fusermount3 is looked for; nothing is installed there.
  # shellcheck disable=SC2046,SC2086  # the features and flags are words
  meson setup "$work/build" "$1" --prefix="$prefix" --libdir=lib --bindir=/usr/bin --buildtype=release \
    -Ddefault_library=static -Dexamples=false -Dtests=false -Dutils=false -Duseroot=false -Dudevrulesdir="$work" \
    -Dinitscriptdir= $features \
    && grep -q '^#define HAVE_URING' "$work/build/fuse_config.h" \
    && grep -q '^#define HAVE_CUSTOM_IO' "$work/build/fuse_config.h" && ninja -C "$work/build" install && mkdir -p "$prefix/bin" \
    && cc -O2 -I "$1/example" "$1/example/$passthrough.c" -o "$prefix/bin/$passthrough" \
      $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs --static fuse3) \
    && echo "$features $passthrough" > "$prefix/features"
}

debian_source "$suite" fuse3 "$work" > "$work/log" 2>&1 || give_up "the source package cannot be had"
source_directory=$(find "$work" -mindepth 1 -maxdepth 1 -type d -name 'fuse3-*')
version=${source_directory##*/fuse3-}
[[ $(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1) == "$oldest" ]] || give_up "$suite has $version only"
compile "$source_directory" > "$work/log" 2>&1 || { rm -rf "$prefix"; give_up "version $version does not build"; }
rm -f "$prefix.unavailable"
echo "dev: libfuse $version built from Debian's source package"
