#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One guest with two networks: the kernel's siw in one, our iWARP in the other.

# meet SIW_ADDRESS OUR_ADDRESS NAME: every case, with NAME behind its own, up to one that fails.
meet() {
  TERMFS_TEST_SIW=$1 TERMFS_TEST_OTHER="/run/netns/other,$2" timeout 100 siw_test --gtest_fail_fast > /tmp/out 2>&1
  code=$?
  sed -n -e "s|^\[       OK \] Ends/\([^ ]*\) .*|ok \1$3|p" \
    -e "s|^\[  FAILED  \] Ends/\([^ ,]*\),.* ms)\$|FAIL \1$3: it failed|p" /tmp/out
  # The count of those that passed, and not only that none has failed: skipped cases are none.
  if [ $code = 0 ] && grep -q '^\[  PASSED  \] [1-9]' /tmp/out && ! grep -q '^\[  SKIPPED \]' /tmp/out; then
    echo "ok siw_test$3"
  else
    echo "FAIL siw_test$3: exit code $code"
    cat /tmp/out
  fi
}

# A connection whose first unit siw refuses ends in a BUG of the kernel's (iw_cm, cm_close_handler); the guest would
# hang. So it ends with that.
run_iwarp() {
  echo 1 > /proc/sys/kernel/panic_on_oops
  load_driver
  ip netns add other
  ip link add v0 mtu 1500 type veth peer name v1 mtu 1500 netns other
  ip address add 10.9.8.1/24 dev v0
  ip address add fd00:98::1/64 dev v0 nodad
  ip -n other address add 10.9.8.2/24 dev v1
  ip -n other address add fd00:98::2/64 dev v1 nodad
  ip link set v0 up
  ip -n other link set v1 up
  ip -n other link set lo up
  rdma link add siw0 type siw netdev v0 || echo "FAIL add_device: rdma link add"
  sleep 1
  meet 10.9.8.1 10.9.8.2 _over_IPv4
  ip link set v0 mtu 9000
  ip -n other link set v1 mtu 9000
  meet fd00:98::1 fd00:98::2 _over_IPv6_with_large_frames
}
