#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two guests: a server in a, and its mounts in b through Soft-RoCE. The server has the software RNIC first and then
# Soft-RoCE as well: not both at once, as Soft-RoCE holds the port that the software RNIC needs.

run_hosts_mount_a() {
  begin_serving
  serve_for softnic
  visited_by softnic
  what stop_serving_softnic stop_server
  device_on_network
  serve_for device --rdma rxe0
  visited_by device
  await cut
  ip link set eth0 down
  sleep 8
  ip link set eth0 up
  tell mended
  await kill
  what way_of_device way_of_device 'TeRM memory region'
  what magic_reads_of_device magic_reads_seen
  kill -9 "$(server_process)"
  sleep 2
  serve_for device_again --rdma rxe0
  await finished_device
  what stop_serving_device stop_server
  serve_infiniband
}

run_hosts_mount_b() {
  begin_visiting
  visit_mounts softnic
  visit_mounts device
  mount_of_other_host
  compare_on_and_on &
  comparing=$!
  what goes_on_after_a_cut goes_on_after cut mended
  what goes_on_after_a_killed_server goes_on_after kill serving_device_again
  touch /run/enough
  wait $comparing
  what every_byte_throughout test ! -e /run/wrong
  what every_byte_at_last compare
  what unmount umount /root/mounted
  tell finished_device
  visit_infiniband
}

# A server and a mount with the driver as it is shipped.
run_hosts_stock_a() {
  begin_serving
  device_on_network
  serve_for device --rdma rxe0
  visited_by device
  what way_of_device way_of_device 'validated READs: the driver of rxe0 has no TeRM memory regions'
  what stop_serving_device stop_server
}

run_hosts_stock_b() {
  begin_visiting
  DEVICE=10.9.10.2  # an address of it is as good as its name
  visit_mounts device
}

# ---- Guest a.

begin_serving() {
  join_network 1
  termfs format /mnt/volume --capacity 64M --dram-ratio 0.03 > /dev/null || echo "FAIL format: exit code $?"
}

# serve_for KIND OPTION...
serve_for() {
  kind=$1
  shift
  what "serve_$kind" termfs serve /mnt/volume --listen 10.9.10.1 "$@"
  tell "serving_$kind $(base64 -w 0 < /mnt/volume/secret)"
}

visited_by() {
  for mtu in 9000 1500; do
    set_mtu $mtu "_$1"
    await "visited_${1}_$mtu"
  done
}

# Its log is put away, so that the next one's end is not taken for said.
stop_server() {
  kill "$(server_process)" || return 1
  patiently grep -q 'ended, everything is on the SSD' /mnt/volume/log && mv /mnt/volume/log /mnt/log
}

way_of_device() {
  termfs status --json /mnt/volume > /tmp/status || return 1
  grep -q "verbs rxe0 (RoCEv2), $1" /tmp/status || { head -c 600 /tmp/status; return 1; }
}

# ---- Guest b.

begin_visiting() {
  join_network 2
  device_on_network
  mkdir -p /root/mounted
  dd if=/dev/urandom of=/mnt/original bs=1M count=4 2> /dev/null
}

# With packets that hold a page, and with such that do not.
visit_mounts() {
  (umask 077 && await "serving_$1" | base64 -d > /root/secret)
  for mtu in 9000 1500; do
    set_mtu $mtu "_$1"
    what "mount_of_${1}_with_mtu_$mtu" mount_of_other_host
    what "every_byte_of_${1}_with_mtu_$mtu" write_and_compare
    what "reads_of_${1}_with_mtu_$mtu" pages_were_read
    what "transport_to_${1}_with_mtu_$mtu" transport_is_told 'verbs rxe0 (RoCEv2), sealed RPCs'
    what "unmount_of_${1}_with_mtu_$mtu" umount /root/mounted
    tell "visited_${1}_$mtu"
  done
}

mount_of_other_host() { termfs mount 10.9.10.1:4794 /root/mounted --secret /root/secret -o "rdma=${DEVICE:-rxe0}"; }

is_mounted() { grep -q ' /root/mounted fuse' /proc/mounts || { echo "nothing is mounted"; return 1; }; }

# What is in the mount, from the server and not from this kernel's cache.
compare() {
  is_mounted || return 1
  echo 3 > /proc/sys/vm/drop_caches
  cmp /mnt/original /root/mounted/copy
}

write_and_compare() {
  is_mounted && cp /mnt/original /root/mounted/copy && sync || return 1
  compare && compare
}

# By the client, without the server's workers: once it has learned which pages are present, which takes a slow guest
# longer than it takes to compare.
pages_were_read() {
  for attempt in 1 2 3 4 5 6; do
    hits=$(counted read_hit_pages_total /root/mounted)
    echo "  ${hits:-0} pages were READ"
    [ "${hits:-0}" -gt 100 ] && return
    [ "$attempt" = 6 ] || compare || return 1
  done
  return 1
}

transport_is_told() {
  termfs status --json /root/mounted > /tmp/stats || return 1
  grep -q "$1" /tmp/stats || { head -c 400 /tmp/stats; return 1; }
}

compare_on_and_on() {
  : > /run/compared
  until [ -e /run/enough ]; do
    compare > /run/comparison 2>&1 || { cat /run/comparison; cp /run/comparison /run/wrong; }
    echo . >> /run/compared
  done
}

# The comparisons go on after what the other guest does, having waited for it.
goes_on_after() {
  patiently test -s /run/compared || return 1
  tell "$1"
  await "$2" > /dev/null || return 1
  before=$(wc -l < /run/compared)
  patiently more_compared || { echo "no comparison has ended since"; return 1; }
  test ! -e /run/wrong || { cat /run/wrong; return 1; }
}
more_compared() { [ "$(wc -l < /run/compared)" -gt $((before + 1)) ]; }

# ---- InfiniBand's links, by the stand-in (tests/vm/infiniband_stand_in.c); the LID is the address's last byte.

on_infiniband() {
  lid=$1
  shift
  LD_PRELOAD=/programs/infiniband_stand_in.so STAND_IN_LID=$lid "$@"
}

serve_infiniband() {
  on_infiniband 1 serve_for infiniband --rdma rxe0
  await visited_infiniband
  what stop_serving_infiniband stop_server
}

visit_infiniband() {
  await serving_infiniband > /dev/null
  what ethernet_is_told_of_infiniband ethernet_is_told_of_infiniband
  what mount_on_infiniband on_infiniband 2 mount_of_other_host
  what every_byte_on_infiniband write_and_compare
  what reads_on_infiniband pages_were_read
  what transport_on_infiniband transport_is_told 'verbs rxe0 (InfiniBand), sealed RPCs'
  what unmount_on_infiniband umount /root/mounted
  tell visited_infiniband
}

ethernet_is_told_of_infiniband() {
  ! mount_of_other_host > /tmp/refusal 2>&1 || { echo "not refused"; return 1; }
  grep -q "on InfiniBand" /tmp/refusal || { cat /tmp/refusal; return 1; }
}
