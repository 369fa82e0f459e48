#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One guest with two networks: Soft-RoCE in one, the software RNIC in the other.

# Cases of the unit tests that need an RDMA device: that of this network, ADDRESS, and a software RNIC in another one.
rnics() {
  export TERMFS_TEST_DEVICE="rxe1,$1" TERMFS_TEST_OTHER="/run/netns/other,$2"
  driver_test --gtest_filter='*/QueuePairs.*verbs*:*/TermRegions.*/verbsTosoftnic' > /tmp/out 2>&1
  sed -n -e "s|^\[       OK \] Paths/\([^ ]*\) .*|ok \1$3|p" \
    -e "s|^\[  FAILED  \] Paths/\([^ ,]*\),.* ms)\$|FAIL \1$3: it failed|p" /tmp/out
  if grep -q '^\[  PASSED  \] [1-9]' /tmp/out && ! grep -q '^\[  FAILED  \]' /tmp/out; then
    echo "ok driver_test$3"
  else
    echo "FAIL driver_test$3: $(grep -c '^\[  FAILED  \]' /tmp/out) lines of failures"
    cat /tmp/out
  fi
}

two_networks() {
  load_driver
  ip netns add other
  ip link add v0 mtu 9000 type veth peer name v1 mtu 9000 netns other
  ip address add 10.9.8.1/24 dev v0
  ip address add fd00:98::1/64 dev v0 nodad
  ip -n other address add 10.9.8.2/24 dev v1
  ip -n other address add fd00:98::2/64 dev v1 nodad
  ip link set v0 up
  ip -n other link set v1 up
  ip -n other link set lo up
  rdma link add rxe1 type rxe netdev v0 || echo "FAIL add_device: rdma link add"
  sleep 1
}

run_rnics() {
  two_networks
  rnics 10.9.8.1 10.9.8.2 _over_IPv4
  rnics fd00:98::1 fd00:98::2 _over_IPv6
}

run_mount() {
  two_networks
  what mount_over_rdma mount_over_rdma
}

# A server with the software RNIC in the other network, and a mount here through the RDMA device.
mount_over_rdma() {
  termfs format /mnt/volume --capacity 64M --dram-ratio 0.1 || return 1
  ip netns exec other /programs/termfs serve /mnt/volume --listen 10.9.8.2 || return 1
  mkdir -p /root/mounted
  termfs mount 10.9.8.2:4794 /root/mounted --secret /mnt/volume/secret -o rdma=rxe1 || return 1
  dd if=/dev/urandom of=/mnt/original bs=1M count=16 2> /dev/null
  cp /mnt/original /root/mounted/copy && sync || return 1
  for _ in 1 2; do
    echo 3 > /proc/sys/vm/drop_caches
    cmp /mnt/original /root/mounted/copy || return 1
  done
  termfs stats --json --count 1 /root/mounted > /tmp/stats || return 1
  termfs status --json /root/mounted >> /tmp/stats || return 1
  grep -q 'verbs rxe1' /tmp/stats || { echo "the transport is not told: $(head -c 400 /tmp/stats)"; return 1; }
  umount /root/mounted && kill "$(pidof termfs)"
}
