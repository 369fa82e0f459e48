#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two guests, each with Soft-RoCE on eth0.

# eth0 with the address of guest $1, with an MTU that lets a page fit into a packet.
join_network() {
  ip address add "10.9.10.$1/24" dev eth0
  ip link set eth0 mtu 9000 up
}

device_on_network() {
  load_driver
  rdma link add rxe0 type rxe netdev eth0 || echo "FAIL add_device: rdma link add"
}

# set_mtu BYTES [WORD]: for both ends at once; WORD: where the scenario does so more than once.
set_mtu() {
  ip link set eth0 mtu "$1"
  tell "mtu_$1${2:-}"
  await "mtu_$1${2:-}"
}

# The number of rxe0's GID that is an IPv4 address.
gid_index() { grep -l '0000:0000:0000:0000:0000:ffff:' /sys/class/infiniband/rxe0/ports/1/gids/* | head -n 1 | sed 's|.*/||'; }

packet_of_device() { ibv_devinfo -d rxe0 | sed -n 's/.*active_mtu:[[:space:]]*\([0-9]*\).*/\1/p'; }

# serve NAME COMMAND...: until the other guest's `visit NAME` has ended; its own result says whether it ended well by then.
serve() {
  served=$1
  shift
  "$@" > /tmp/served 2>&1 &
  server=$!
  tell "serving_$served"
  await "visited_$served" > /dev/null || return 1
  patiently gone $server || { kill $server; echo "the server goes on: $(tail -n 3 /tmp/served)"; return 1; }
  wait $server || { cat /tmp/served; return 1; }
}
gone() { ! kill -0 "$1" 2> /dev/null; }

visit() {
  visited=$1
  shift
  await "serving_$visited" > /dev/null || return 1
  patiently "$@"
  code=$?
  tell "visited_$visited"
  return $code
}

run_hosts_a() {
  join_network 1
  device_on_network
  for mtu in 9000 1500; do
    set_mtu $mtu
    what regions_with_mtu_$mtu serve regions-$mtu two_hosts_test rxe0 /mnt serve
    what rc_pingpong_with_mtu_$mtu serve pingpong-$mtu ibv_rc_pingpong -d rxe0 -g "$(gid_index)" -n 200
    what read_bw_with_mtu_$mtu serve read_bw-$mtu ib_read_bw -d rxe0 -x "$(gid_index)" -s 4096 -n 1000
  done
}

run_hosts_b() {
  join_network 2
  device_on_network
  for mtu in 9000 1500; do
    set_mtu $mtu
    case "$mtu $(packet_of_device)" in
      "9000 4096" | "1500 1024") echo "ok packets_with_mtu_$mtu" ;;
      *) echo "FAIL packets_with_mtu_$mtu: $(packet_of_device) bytes" ;;
    esac
    what regions_with_mtu_$mtu visit regions-$mtu two_hosts_test rxe0 /mnt 10.9.10.1
    what rc_pingpong_with_mtu_$mtu visit pingpong-$mtu ibv_rc_pingpong -d rxe0 -g "$(gid_index)" -n 200 10.9.10.1
    what read_bw_with_mtu_$mtu visit read_bw-$mtu ib_read_bw -d rxe0 -x "$(gid_index)" -s 4096 -n 1000 10.9.10.1
  done
}
