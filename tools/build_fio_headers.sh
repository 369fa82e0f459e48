#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts the headers of the installed fio into build/fio/include, for the engine in benchmarks/fio; its CMakeLists.txt
# finds them there. An engine reads fio's own structures, so they must be of that very version: they come from Debian's
# source package of it, after its configure. Where that cannot be had, a line says why and the engine is not built; the
# next attempt is made a day later or after ./dev clean. A second run costs nothing, nor does one without fio.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
source "$root/tools/debian_source.sh"
prefix=$root/build/fio

command -v fio > /dev/null || exit 0
version=$(dpkg-query -W -f '${Version}' fio 2> /dev/null) || version=unknown
[[ $(cat "$prefix/version" 2> /dev/null) != "$version" ]] || exit 0
[[ -z $(find "$prefix.unavailable" -mtime -1 2> /dev/null) ]] || exit 0

mkdir -p "$root/build"
rm -rf "$prefix"
work=$(mktemp -d "$root/build/fio-source.XXXXXX")
trap 'rm -rf "$work"' EXIT

give_up() {
  echo "dev: fio's headers: $1; the engine of benchmarks/fio is not built" >&2
  tail -n 5 "$work/log" >&2 2> /dev/null || true
  echo "$1" > "$prefix.unavailable"
  exit 0
}

# Debian configures it with more, none of which changes a structure of these headers. (The engine looks, too.)
configure() {
  (cd "$1" && ./configure --disable-native)
}

# The headers with their folders, and what configure has written.
keep_headers() {
  mkdir -p "$prefix/include"
  (cd "$1" && find . -name '*.h' -print0 | tar --null -T - -cf -) | tar -xf - -C "$prefix/include"
}

[[ $version != unknown ]] || give_up "the installed fio is not Debian's"
debian_source bookworm "fio=$version" "$work" > "$work/log" 2>&1 || give_up "the source of $version cannot be had"
source_directory=$(find "$work" -mindepth 1 -maxdepth 1 -type d -name 'fio-*')
configure "$source_directory" > "$work/log" 2>&1 || give_up "$version cannot be configured"
keep_headers "$source_directory"
echo "$version" > "$prefix/version"
rm -f "$prefix.unavailable"
echo "dev: headers of fio $version taken from Debian's source package"
