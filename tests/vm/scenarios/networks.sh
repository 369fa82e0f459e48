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
