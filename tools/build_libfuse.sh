#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds a static libfuse of 3.18 or newer from Debian's own source package into
# build/libfuse; cmake/libfuse.cmake finds it there. Debian 12 itself has 3.14. Where it cannot be built, a line says why
# and Debian's is used; the next attempt is made a day later or after ./dev clean. A second run costs nothing.
#
# The source comes from the mirror that this machine's apt uses for Debian 12, suite sid, and is verified by apt with
# Debian's archive key. The state of this machine's apt is not touched.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
prefix=$root/build/libfuse
suite=sid
oldest=3.18
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

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

fetch() {
  local mirror apt
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' \
    | awk '$2 == "bookworm" {print $1; exit}')
  [[ -n $mirror ]] || return 1
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  echo "deb-src [signed-by=$keyring] $mirror $suite main" > "$work/sources.list"
  apt=(timeout 120 apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=2
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
  "${apt[@]}" update && (cd "$work" && "${apt[@]}" source --only-source fuse3)
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

fetch > "$work/log" 2>&1 || give_up "the source package cannot be had"
source_directory=$(find "$work" -mindepth 1 -maxdepth 1 -type d -name 'fuse3-*')
version=${source_directory##*/fuse3-}
[[ $(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1) == "$oldest" ]] || give_up "$suite has $version only"
compile "$source_directory" > "$work/log" 2>&1 || { rm -rf "$prefix"; give_up "version $version does not build"; }
rm -f "$prefix.unavailable"
echo "dev: libfuse $version built from Debian's source package"
