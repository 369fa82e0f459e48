#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The drivers by themselves, on one guest.

# A device on a dummy interface, rxe0.
dummy_device() {
  load_driver
  ip link add d0 type dummy
  ip addr add 10.9.9.1/24 dev d0
  ip link set d0 mtu 9000 up
  rdma link add rxe0 type rxe netdev d0 || echo "FAIL add_device: rdma link add"
}

# A memory cgroup of that many MiB.
confine() {
  echo +memory > /sys/fs/cgroup/cgroup.subtree_control
  mkdir -p /sys/fs/cgroup/confined
  echo "$(($1 << 20))" > /sys/fs/cgroup/confined/memory.max
}

killed_and_unloaded() {
  term_mr_test rxe0 /mnt hold > /tmp/hold &
  holder=$!
  patiently grep -q held /tmp/hold
  grep -q held /tmp/hold || return 1
  kill -9 $holder
  wait $holder 2> /dev/null
  rdma link delete rxe0 && rmmod rdma_rxe
}

# A program of two ends: without an address it is the server, which takes a while to start.
both_ends() {
  "$@" > /tmp/other_end 2>&1 &
  other=$!
  patiently "$@" 10.9.9.1 || { kill $other; return 1; }
  wait $other
}

run_driver() {
  dummy_device
  what term_mr_test term_mr_test rxe0 /mnt
  confine 64
  what memory_pressure term_mr_test rxe0 /mnt large 192 /sys/fs/cgroup/confined/cgroup.procs
  what larger_than_memory term_mr_test rxe0 /mnt large 480
  what ibv_rc_pingpong both_ends ibv_rc_pingpong -d rxe0 -g 1 -n 200
  what ib_read_bw both_ends ib_read_bw -d rxe0 -x 1 -s 4096 -n 1000
  what killed_with_a_region_then_unloaded killed_and_unloaded
}

run_stock() {
  dummy_device
  what stock term_mr_test rxe0 /mnt stock
  what ibv_rc_pingpong both_ends ibv_rc_pingpong -d rxe0 -g 1 -n 200
}

run_version() {
  dummy_device
  what version term_mr_test rxe0 /mnt version
  what server_names_both_versions server_names_both_versions
}

server_names_both_versions() {
  termfs format /mnt/volume --capacity 64M || return 1
  refused termfs serve /mnt/volume --listen 10.9.9.1 --rdma rxe0 || return 1
  grep -q 'version 99, this program.s of version [0-9]' /tmp/refusal || { cat /tmp/refusal; return 1; }
}

# There is no such card here: that it loads is all.
run_mlx5() {
  load_driver
  what mlx5_driver_loads test -d /sys/module/mlx5_ib
  what mlx5_driver_unloads rmmod mlx5_ib
}
