#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration: a volume larger than its memory, mounted, loaded, verified, and where each read came from.
# Everything is in one new directory; every process is known by its id; every exit, Ctrl-C included, takes all away.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
termfs=$root/build/mount/termfs
patience=60 # seconds for the server, or the mount, to come or to go

usage() {
  cat << 'EOF'
usage: ./dev demo [--network] [--keep] [--seconds N] [--dir DIR]

Formats a volume of 2 GiB of which half fits its DRAM tier, serves it, mounts it, writes 1.5 GiB of known contents, runs
fio on it in three ways of N (15) seconds, verifies every file, and prints where the reads came from.

  --network    the server on one host, two mounts on two others: each a network namespace of its own, over RoCEv2
  --keep       leaves the volume mounted at the end, and says how to end it
  --seconds N  how long each fio run takes
  --dir DIR    an existing directory on a disk, for a new directory of 3 GiB (/var/tmp)
EOF
}

fail() {
  echo "demo: $*" >&2
  exit 1
}

say() { printf '\n== %s\n' "$*"; }

keep=
network=
seconds=15
parent=/var/tmp
only_options= # they are looked at, and that is all; ./dev asks for it before it builds
while [[ $# -gt 0 ]]; do
  case $1 in
    --only-options) only_options=yes; shift ;;
    --keep) keep=yes; shift ;;
    --network) network=yes; shift ;;
    --seconds) seconds=${2:-}; shift 2 || { usage >&2; exit 2; } ;;
    --dir) parent=${2:-}; shift 2 || { usage >&2; exit 2; } ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[[ $seconds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "demo: --seconds: '$seconds' is no number from 1 to 9999" >&2; exit 2; }
[[ -d $parent ]] || { echo "demo: --dir: there is no directory '$parent'" >&2; exit 2; }
free_mib=$(df -Pm "$parent" | awk 'NR == 2 {print $4}')
[[ $free_mib -ge 3072 ]] || fail "$parent has $free_mib MiB free, 3072 are needed; --dir names another directory"
[[ -z $only_options ]] || exit 0

work=$(mktemp -d "$(readlink -f "$parent")/termfs-demo.XXXXXX")
volume=$work/volume
mnt=$work/mnt
shots=$work/shots # counters before and after each phase
mkdir "$mnt" "$shots"
# Commands that run another one on the host of the server, of the first mount, of the second; of itself without --network.
at_server=()
at_first=()
at_second=()
hosts=() # processes that keep the namespaces
server_pid=
mount_pid=
second_pid=
load_pid=
view_pid=

# Whether process $1 has ended. Asks the kernel: bash, interrupted by a trap, can lose track of a child and then wait for
# it for ever.
has_ended() {
  local stat
  read -r stat 2> /dev/null < "/proc/$1/stat" || return 0
  [[ ${stat##*) } == [ZX]* ]]
}

# Ends process $1, named $2: SIGTERM, and SIGKILL when that did not help in time.
end_process() {
  local waited=0
  kill -TERM "$1" 2> /dev/null || return 0
  until has_ended "$1"; do
    if ((waited++ == patience * 10)); then
      echo "demo: the $2 (process $1) did not end within $patience s and is killed" >&2
      kill -KILL "$1" 2> /dev/null || true
    fi
    ((waited < patience * 11)) || { echo "demo: the $2 (process $1) cannot be killed" >&2; return 0; }
    sleep 0.1
  done
}

# A network namespace, as long as the process lasts.
new_host() {
  unshare --net sleep infinity &
  hosts+=($!)
}

make_hosts() {
  local client
  if ! command -v ip > /dev/null || ! unshare --net true 2> /dev/null; then
    fail "no network namespaces can be made here"
  fi
  new_host; new_host; new_host
  sleep 0.5 # until each is in its namespace
  at_server=(nsenter --target "${hosts[0]}" --net)
  at_first=(nsenter --target "${hosts[1]}" --net)
  at_second=(nsenter --target "${hosts[2]}" --net)
  for client in 1 2; do
    "${at_server[@]}" ip link add "veth$client" mtu 9000 type veth peer name veth0 mtu 9000 netns "${hosts[$client]}"
    "${at_server[@]}" ip address add "fd00:7e:$client::1/64" dev "veth$client" nodad
    "${at_server[@]}" ip link set "veth$client" up
    nsenter --target "${hosts[$client]}" --net ip address add "fd00:7e:$client::2/64" dev veth0 nodad
    nsenter --target "${hosts[$client]}" --net ip link set veth0 up
  done
}

unmount() {
  if mountpoint -q "$mnt" 2> /dev/null; then
    "$termfs" umount "$mnt" || umount -l "$mnt" || true
  fi
  [[ -z $mount_pid ]] || end_process "$mount_pid" mount
  mount_pid=
}

unmount_second() {
  [[ -z $second_pid ]] || "$termfs" umount "$work/second" || umount -l "$work/second" || true
  [[ -z $second_pid ]] || end_process "$second_pid" "second mount"
  second_pid=
}

clean_up() {
  local status=$?
  trap '' INT TERM
  trap - EXIT
  [[ -z $view_pid ]] || end_process "$view_pid" "live view"
  [[ -z $load_pid ]] || end_process "$load_pid" load
  unmount
  unmount_second
  [[ -z $server_pid ]] || end_process "$server_pid" server
  for host in "${hosts[@]}"; do end_process "$host" namespace; done
  if [[ $status -ne 0 && -s $work/log ]]; then
    echo "demo: the last lines of the log:" >&2
    tail -n 20 "$work/log" >&2
  fi
  if mountpoint -q "$mnt" 2> /dev/null || mountpoint -q "$work/second" 2> /dev/null; then
    echo "demo: something is still mounted, so $work stays" >&2
    exit 1
  fi
  rm -rf --one-file-system "$work"
  echo "demo: unmounted, server stopped, $work removed"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Waits until "$@" succeeds; process $1, named $2, must live meanwhile.
await() {
  local process=$1 name=$2 until=$((SECONDS + patience))
  shift 2
  until "$@" > /dev/null 2>&1; do
    ! has_ended "$process" || fail "the $name ended by itself"
    ((SECONDS < until)) || fail "the $name was not ready within $patience s"
    sleep 0.1
  done
}

# A session of its own keeps a Ctrl-C of the terminal from the servers: they end by clean_up, in order.
serve() {
  setsid "${at_server[@]}" "$termfs" serve "$volume" --foreground ${network:+--listen '[::]'} >> "$work/log" 2>&1 < /dev/null &
  server_pid=$!
  await "$server_pid" server "$termfs" status "$volume"
}

mount_with() {
  local address=("$volume")
  [[ -z $network ]] || address=('[fd00:7e:1::1]:4794' --secret "$volume/secret")
  setsid "${at_first[@]}" "$termfs" mount "${address[@]}" "$mnt" -o "$1" --foreground >> "$work/log" 2>&1 < /dev/null &
  mount_pid=$!
  await "$mount_pid" mount mountpoint -q "$mnt"
}

mount_second() {
  mkdir "$work/second"
  setsid "${at_second[@]}" "$termfs" mount '[fd00:7e:2::1]:4794' --secret "$volume/secret" "$work/second" --foreground \
    >> "$work/log" 2>&1 < /dev/null &
  second_pid=$!
  await "$second_pid" "second mount" mountpoint -q "$work/second"
}

# Counters of server and mount, and the server's processor time, to $shots/$1.json.
shoot() {
  local source=$volume
  mountpoint -q "$mnt" && source=$mnt
  "${at_first[@]}" "$termfs" stats "$source" --json --count 1 > "$shots/$1.json"
  awk '{sub(/.*\) /, ""); print $12 + $13}' "/proc/$server_pid/stat" > "$shots/$1.ticks"
}

# Waits for the load that was started in the background. (A wait is interrupted by a signal, a foreground process is not.)
await_load() {
  local status=0
  wait "$load_pid" || status=$?
  load_pid=
  return "$status"
}

# Runs "${@:2}" as phase $1: counters around it, the live view while it runs.
phase() {
  local name=$1 status=0
  shift
  shoot "$name.before"
  "$@" > "$shots/$name.out" 2> "$shots/$name.err" &
  load_pid=$!
  "${at_first[@]}" "$termfs" stats "$mnt" &
  view_pid=$!
  await_load || status=$?
  end_process "$view_pid" "live view"
  view_pid=
  shoot "$name.after"
  if [[ $status -ne 0 ]]; then
    tail -n 20 "$shots/$name.err" >&2
    fail "phase $name failed"
  fi
}

# Becomes fio: load_pid must be fio itself, not a shell around it.
fio_on_mount() {
  exec fio --output-format=json --directory="$mnt" --ioengine=psync --direct=1 --bs=4k --thread --numjobs=4 \
    --group_reporting "$@"
}

zipf() {
  local list
  list=$(cd "$mnt" && printf '%s:' data.*)
  fio_on_mount --name=zipf --filename="${list%:}" --rw=randread --random_distribution=zipf:0.99 --norandommap --readonly \
    --file_service_type=random --time_based --runtime="$seconds" --randseed="$1"
}

mixed() {
  fio_on_mount --name=mixed --size=32m --rw=randrw --verify=crc32c --verify_fatal=1 \
    --verify_state_save=0 --verify_backlog=1024 --loops=$(((seconds + 4) / 5))
}

# The server's host, and two others that mount its volume.
over_network() {
  mount_with bitmap=pulled
  "${at_first[@]}" "$termfs" status "$mnt"
  say "1.5 GiB of files are written to $mnt"
  /usr/bin/python3 "$root/tools/demo_files.py" write "$mnt" "$work/manifest" 24 64 &
  load_pid=$!
  await_load || fail "the files could not be written"
  say "fio: 4 KiB random reads by Zipf, direct; hits are RDMA READs over RoCEv2, which the server's RNIC thread answers"
  phase zipf zipf 1
  say "fio: 4 KiB random reads and writes, verified by CRC32C"
  phase mixed mixed
  say "the second mount, on the third host: the checksum of every file that the first one wrote"
  mount_second
  phase checksums sh -c "cd '$work/second' && exec sha256sum --check --strict --quiet '$work/manifest'"
  echo "24 files of 64 MiB: every byte as written"
  "$termfs" status "$volume"
  /usr/bin/python3 "$root/tools/demo_table.py" "$shots" zipf mixed
}

with_mount() {
  mount_with bitmap=live
  say "1.5 GiB of files are written to $mnt"
  /usr/bin/python3 "$root/tools/demo_files.py" write "$mnt" "$work/manifest" 24 64 &
  load_pid=$!
  await_load || fail "the files could not be written"
  say "fio: 4 KiB random reads by Zipf, direct; absent pages are known from the server's own bitmap"
  phase zipf-live zipf 1
  unmount
  mount_with bitmap=pulled
  say "the same with a bitmap that is pulled once a second, as over a wire, and another hot set"
  phase zipf-pulled zipf 2
  say "fio: 4 KiB random reads and writes, verified by CRC32C"
  phase mixed mixed
  say "the checksum of every file"
  phase checksums sh -c "cd '$mnt' && exec sha256sum --check --strict --quiet '$work/manifest'"
  echo "24 files of 64 MiB: every byte as written"
  /usr/bin/python3 "$root/tools/demo_table.py" "$shots" zipf-live zipf-pulled mixed checksums
}

without_mount() {
  local client=$root/build/benchmarks/demo_client bitmap options
  say "there is no /dev/fuse here: the same through the client library, without a mount"
  for bitmap in live pulled; do
    options=()
    [[ $bitmap == live ]] || options=(--skip-write)
    shoot "library-$bitmap.before"
    "$client" "$volume" --mib 1536 --seconds "$seconds" --bitmap "$bitmap" --json "${options[@]}" \
      > "$shots/library-$bitmap.client.json" &
    load_pid=$!
    await_load || fail "the client library failed"
    shoot "library-$bitmap.after"
  done
  /usr/bin/python3 "$root/tools/demo_table.py" "$shots" library-live library-pulled
}

say "a volume of 2 GiB, half of it in memory: $volume"
"$termfs" format "$volume" --capacity 2G --dram-ratio 0.5
if [[ -n $network ]]; then
  [[ -c /dev/fuse ]] || fail "--network needs /dev/fuse, to mount"
  make_hosts
fi
serve
if [[ -n $network ]]; then
  over_network
elif [[ -c /dev/fuse ]]; then
  with_mount
else
  without_mount
fi

if [[ -n $keep ]]; then
  trap - EXIT
  say "left as it is. To end it:"
  if [[ -n $mount_pid ]]; then echo "  $termfs umount $mnt"; fi
  if [[ -n $second_pid ]]; then echo "  $termfs umount $work/second"; fi
  echo "  kill $server_pid && tail --pid=$server_pid -f /dev/null"
  for host in "${hosts[@]}"; do echo "  kill $host"; done
  echo "  rm -rf --one-file-system $work"
fi
