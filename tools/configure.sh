#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# configure.sh PRESET: makes or renews the build folder of a preset of CMakePresets.json. Prints nothing when it is
# there and nothing that only cmake --preset sees has changed (ninja itself sees a changed CMakeLists.txt).
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
cd "$root"
preset=$1
case $preset in
  default) folder=build ;;
  # Beside it: as far below the sources as the default, so that the compiler cache has all that does not see libfuse.
  debian-libfuse) folder=build-debian-libfuse ;;
  *) folder=build/$preset ;;
esac

tools/build_libfuse.sh
tools/build_fio_headers.sh
made=$folder/build.ninja
for input in CMakePresets.json build/libfuse/lib/pkgconfig/fuse3.pc; do
  if [[ ! -f $made || $input -nt $made ]]; then
    exec cmake --preset "$preset"
  fi
done
