#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ring_switch.sh: switches the kernel's FUSE over io_uring on, for tests and benchmarks, as long as its standard input is
# open; so whoever started it may end in any way, and the switch is as it was before. Prints "on", or why it cannot be.
# Several may hold the switch at once: the last one puts it back.
set -u
switch=/sys/module/fuse/parameters/enable_uring
memory=/run/termfs-ring-switch # holds what it was, and the lock of those who hold it on

[[ -e $switch ]] || { echo "this kernel has no FUSE over io_uring"; exit 1; }
if [[ ! -w $switch ]]; then
  # In a container /sys is read-only: then it is as the host has it.
  [[ $(< "$switch") == Y ]] || { echo "$switch is N and cannot be written here"; exit 1; }
  echo on
  exec cat > /dev/null
fi
trap '' INT TERM HUP
exec 9<> "$memory" || { echo "no $memory"; exit 1; }
if flock -n -x 9; then
  cat "$switch" > "$memory"
fi
flock -w 60 -s 9 || { echo "$memory is locked"; exit 1; }
echo Y > "$switch"
echo on
cat > /dev/null
if flock -n -x 9 && [[ -s $memory ]]; then
  cat "$memory" > "$switch"
fi
