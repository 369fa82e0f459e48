#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two guests: a server with the software RNIC in a, and its mount through Soft-RoCE in b. Not both in one guest: Soft-RoCE
# holds the port that the software RNIC needs.

run_hosts_mount_a() {
  join_network 1
  termfs format /mnt/volume --capacity 64M --dram-ratio 0.05 > /dev/null || echo "FAIL format: exit code $?"
  what serve_hosts termfs serve /mnt/volume --listen 10.9.10.1
  tell "secret $(base64 -w 0 < /mnt/volume/secret)"
  for mtu in 9000 1500; do
    set_mtu $mtu
    await visited_$mtu
  done
  await cut
  ip link set eth0 down
  sleep 8
  ip link set eth0 up
  tell mended
  await kill
  kill -9 "$(pidof termfs)"
  sleep 2
  what serve_again termfs serve /mnt/volume --listen 10.9.10.1
  tell served_again
  await finished
  what stop_serving kill "$(pidof termfs)"
}

run_hosts_mount_b() {
  join_network 2
  device_on_network
  mkdir -p /root/mounted
  (umask 077 && await secret | base64 -d > /root/secret)
  dd if=/dev/urandom of=/mnt/original bs=1M count=8 2> /dev/null
  for mtu in 9000 1500; do
    set_mtu $mtu
    what mount_with_mtu_$mtu mount_of_other_host
    what every_byte_with_mtu_$mtu write_and_compare $mtu
    what transport_with_mtu_$mtu transport_is_told
    [ $mtu = 1500 ] || what unmount_with_mtu_$mtu umount /root/mounted
    tell visited_$mtu
  done
  compare_on_and_on &
  comparing=$!
  what goes_on_after_a_cut goes_on_after cut mended
  what goes_on_after_a_killed_server goes_on_after kill served_again
  touch /run/enough
  wait $comparing
  what every_byte_throughout test ! -e /run/wrong
  what every_byte_at_last compare
  what unmount umount /root/mounted
  tell finished
}

mount_of_other_host() { termfs mount 10.9.10.1:4794 /root/mounted --secret /root/secret -o rdma=rxe0; }

# What is in the mount, from the server and not from this kernel's cache.
compare() {
  echo 3 > /proc/sys/vm/drop_caches
  cmp /mnt/original /root/mounted/copy
}

write_and_compare() {
  cp /mnt/original /root/mounted/copy && sync || return 1
  compare && compare
}

transport_is_told() {
  termfs status --json /root/mounted > /tmp/stats || return 1
  grep -q 'verbs rxe0' /tmp/stats || { head -c 400 /tmp/stats; return 1; }
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
