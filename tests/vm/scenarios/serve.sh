#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A server over an RDMA device, rxe1 of this network; a mount through that device, another with the software RNIC in the
# other network, and one through shared memory. What the mounts READ, a counter tells.

run_serve() {
  two_networks
  what serve_over_rdma serve_over_rdma ', TeRM memory region'
  what magic_reads_seen magic_reads_seen
  what reads_without_the_server reads_without_the_server
  what changes_under_load changes_under_load
  what killed_and_taken_over killed_and_taken_over
  what stopped_cleanly stop_serving
  what wrong_devices_are_refused wrong_devices_are_refused
}

run_serve_stock() {
  two_networks
  what serve_over_rdma serve_over_rdma ', validated READs: the driver of rxe1 has no TeRM memory regions'
  what clients_validate clients_validate
  what reads_without_the_server reads_without_the_server
  what changes_under_load changes_under_load
  what changes_were_found_by_validation changes_were_found_by_validation
  what grows_while_served grows_while_served
  what killed_and_taken_over killed_and_taken_over
  what stopped_cleanly stop_serving
}

SERVER=10.9.8.1
MOUNTS='/root/device /root/other /root/local'

here() { "$@"; }
there() { nsenter --net=/run/netns/other "$@"; }

start_server() { termfs serve /mnt/volume --listen $SERVER --rdma rxe1; }

# The process of the server: it has the volume's lock.
server_process() { sed 's/.* //' /mnt/volume/lock; }

# counted NAME [MOUNT]: a number that the server, or a mount, counts.
counted() {
  termfs stats --json --count 1 "${2:-/mnt/volume}" | tr ',' '\n' | sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | head -n 1
}

forget() { echo 3 > /proc/sys/vm/drop_caches; }

# same FILE: every mount reads FILE as it was written.
same() {
  for mount in $MOUNTS; do
    forget
    cmp "/mnt/$1" "$mount/$1" || { echo "$mount/$1 is not what was written"; return 1; }
  done
}

# serve_over_rdma WAY: a file larger than the DRAM tier, through all mounts.
serve_over_rdma() {
  termfs format /mnt/volume --capacity 32M --dram-ratio 0.08 || return 1
  start_server || return 1
  termfs status --json /mnt/volume > /tmp/status
  grep -q "verbs rxe1 (RoCEv2)$1 at $SERVER" /tmp/status || { echo "status says $(head -c 600 /tmp/status)"; return 1; }
  grep -q "verbs rxe1 (RoCEv2)$1" /mnt/volume/log || { echo "the log does not say how"; return 1; }
  mkdir -p $MOUNTS
  here termfs mount $SERVER:4794 /root/device --secret /mnt/volume/secret -o rdma=rxe1 || return 1
  there /programs/termfs mount $SERVER:4794 /root/other --secret /mnt/volume/secret || return 1
  here termfs mount /mnt/volume /root/local || return 1
  dd if=/dev/urandom of=/mnt/first bs=1M count=5 2> /dev/null
  cp /mnt/first /root/device/first && sync || return 1
  same first || return 1
  termfs status --json /mnt/volume > /tmp/status
  [ "$(grep -o "verbs rxe1 (RoCEv2)$1, sealed RPCs\"" /tmp/status | wc -l)" = 2 ] || { echo "sessions: $(cat /tmp/status)"; return 1; }
}

# The device has answered READs with the pattern.
magic_reads_seen() {
  magic=$(counted device_magic_reads_total)
  echo "  ${magic:-0} READs met the pattern"
  [ "${magic:-0}" -gt 0 ] || { echo "no READ met the pattern: $(termfs stats --json --count 1 /mnt/volume)"; return 1; }
}

clients_validate() {
  for reads in validated:2 translated:1; do
    [ "$(grep -o "\"reads\": *\"${reads%:*}\"" /tmp/status | wc -l)" = "${reads#*:}" ] ||
      { echo "sessions: $(cat /tmp/status)"; return 1; }
  done
}

# Both mounts over the network have READ frames, and some that had another page in them by then.
changes_were_found_by_validation() {
  for mount in /root/device /root/other; do
    hits=$(counted read_hit_pages_total $mount)
    misses=$(counted validation_misses_total $mount)
    echo "  $hits pages READ by $mount, $misses found to have changed"
    [ "${hits:-0}" -gt 100 ] || { echo "$mount: ${hits:-no} pages were READ"; return 1; }
    [ "${misses:-0}" -gt 0 ] || { echo "$mount: no page was found to have changed"; return 1; }
  done
}

# A table that is longer than what the mounts were told of is READ by another key.
grows_while_served() {
  termfs set /mnt/volume capacity=48M || return 1
  dd if=/dev/urandom of=/mnt/grown bs=1M count=22 2> /dev/null
  cp /mnt/grown /root/local/grown && sync || return 1
  same grown && rm /mnt/grown /root/local/grown
}

# What fits the tier comes there, and then is READ without the server.
reads_without_the_server() {
  termfs set /mnt/volume dram-ratio=0.4 || return 1
  dd if=/mnt/first of=/mnt/small bs=1M count=1 2> /dev/null
  cp /mnt/small /root/device/small && sync || return 1
  for _ in 1 2 3 4 5 6; do
    forget
    cmp /mnt/small /root/device/small || return 1
    sleep 1
  done
  before=$(counted rpc_read_pages_total)
  forget
  cmp /mnt/small /root/device/small || return 1
  after=$(counted rpc_read_pages_total)
  termfs set /mnt/volume dram-ratio=0.08 || return 1
  [ $((after - before)) -lt 128 ] || { echo "$((after - before)) of 256 pages were asked for by RPC"; return 1; }
}

# One writes what the others read, while the tier changes its size.
changes_under_load() {
  cp /mnt/first /mnt/changing && cp /mnt/first /root/local/changing || return 1
  (for _ in 1 2; do
    cat /root/device/first /root/device/changing > /dev/null
    cat /root/other/first > /dev/null
  done) &
  load=$!
  turn=0
  for ratio in 0.05 0.3 0.1; do
    termfs set /mnt/volume dram-ratio=$ratio || return 1
    turn=$((turn + 1))
    dd if=/dev/urandom of=/mnt/piece bs=64k count=24 2> /dev/null
    for to in /mnt /root/device /root/other; do
      dd if=/mnt/piece of="$to/changing" bs=64k seek=$((turn * 18)) conv=notrunc 2> /dev/null || return 1
    done
    for mount in $MOUNTS; do
      cmp /mnt/changing "$mount/changing" || return 1
    done
  done
  wait $load || { echo "a reader failed"; return 1; }
  same first && same changing
}

# The server dies; what was written and not synced is taken over from its memory, and the mounts find it again.
killed_and_taken_over() {
  dd if=/dev/urandom of=/mnt/late bs=64k count=20 2> /dev/null
  cp /mnt/late /root/device/late || return 1
  cat /root/other/late > /dev/null || return 1
  kill -9 "$(server_process)" || return 1
  sleep 1
  start_server || return 1
  grep -q 'its memory is taken over: [1-9]' /mnt/volume/log || { tail -n 3 /mnt/volume/log; return 1; }
  for mount in $MOUNTS; do
    patiently cmp /mnt/late "$mount/late" || return 1
  done
  same first && same changing
}

stop_serving() {
  umount $MOUNTS || return 1
  kill "$(server_process)" || return 1
  patiently grep -q 'ended, everything is on the SSD' /mnt/volume/log || return 1
  termfs fsck /mnt/volume
}

refused() {
  ! "$@" > /tmp/refusal 2>&1 || { echo "not refused: $*"; return 1; }
}

wrong_devices_are_refused() {
  refused termfs serve /mnt/volume --listen $SERVER --rdma rxe9 || return 1
  grep -q 'there is no RDMA device rxe9; there is rxe1' /tmp/refusal || { cat /tmp/refusal; return 1; }
  refused termfs serve /mnt/volume --rdma rxe1 || return 1
  ip link set v0 down
  refused termfs serve /mnt/volume --listen $SERVER --rdma rxe1 || return 1
  grep -q 'rxe1 is down\|no address for RoCE v2' /tmp/refusal || { cat /tmp/refusal; return 1; }
  ip link set v0 up
  termfs status /mnt/volume 2> /dev/null && { echo "it serves"; return 1; }
  return 0
}
