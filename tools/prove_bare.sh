#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proves that ./dev needs nothing but a bare Debian 12: makes one (debootstrap, minbase), puts a clone of HEAD into it,
# and runs a command there as root, in mount and process namespaces of its own, so that nothing it mounts or starts
# outlives it. A process that the command itself leaves behind is a failure.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
suite=bookworm
checkout=/root/termfs

usage() {
  cat << 'EOF'
usage: tools/prove_bare.sh [--dir DIR] [--keep] [COMMAND...]

Runs COMMAND (./dev test) in the root of a clone of HEAD, in a fresh Debian 12 below DIR (a new directory in /var/tmp).
--keep leaves the system in DIR; a DIR that holds one is used again, with a new clone.
Mirror and proxy are those of this machine's apt. Needs root and debootstrap.
EOF
}

fail() {
  echo "prove_bare: $*" >&2
  exit 1
}

# "URI SUITE COMPONENT" of each source of Debian 12 that this machine's apt knows.
sources() {
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' \
    | awk -v suite="$suite" '$2 ~ "^"suite"(-updates|-security)?$" && $3 == "main"' | sort -u
}

bootstrap() {
  local mirror
  mirror=$(sources | awk -v suite="$suite" '$2 == suite {print $1; exit}')
  http_proxy=${http_proxy:-$(apt-config dump --format '%v' Acquire::http::Proxy)}
  [[ -z $http_proxy || $http_proxy == DIRECT ]] || export http_proxy
  debootstrap --variant=minbase "$suite" "$dir" ${mirror:+"$mirror"} > "$dir.log" 2>&1 \
    || { tail -n 20 "$dir.log" >&2; fail "debootstrap failed"; }
  rm -f "$dir.log"
  [[ -z $mirror ]] || sources | sed 's/^/deb /' > "$dir/etc/apt/sources.list"
  apt-config dump --format '%F "%v";%n' Acquire::http::Proxy Acquire::https::Proxy Acquire::Check-Valid-Until \
    Acquire::Check-Date > "$dir/etc/apt/apt.conf.d/99host"
}

# Runs in the namespaces, as process 1 of them.
inside() {
  local status=0 left='' process words
  mount --rbind /dev "$dir/dev"
  mount -t proc proc "$dir/proc"
  mount -t sysfs -o ro sysfs "$dir/sys"
  mount -t tmpfs -o nosuid,nodev tmpfs "$dir/run"
  chroot "$dir" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" \
    /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$checkout" "$@" || status=$?
  for process in "$dir"/proc/[0-9]*; do
    [[ ${process##*/} != 1 ]] || continue
    mapfile -d '' -t words < "$process/cmdline" 2> /dev/null || continue
    [[ ${#words[@]} -eq 0 ]] || left+=" ${process##*/} (${words[*]})"
  done
  if [[ -n $left ]]; then
    echo "prove_bare: still running after the command:$left" >&2
    status=1
  fi
  return "$status"
}

if [[ ${1:-} == --inside ]]; then
  dir=$2
  shift 2
  inside "$@"
  exit
fi

dir=
keep=
while [[ $# -gt 0 ]]; do
  case $1 in
    --dir) dir=${2:?"--dir needs a directory"}; shift 2 ;;
    --keep) keep=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
done
[[ $# -gt 0 ]] || set -- ./dev test

[[ $EUID -eq 0 ]] || fail "only root can make a system"
command -v debootstrap > /dev/null || fail "debootstrap is missing: apt-get install debootstrap"
[[ -n $dir ]] || dir=$(mktemp -d /var/tmp/termfs-bare.XXXXXX)
mkdir -p "$dir"
chmod 755 "$dir"
# Nothing is mounted below it in this namespace, ever; --one-file-system is for the day when that is not true.
[[ -n $keep ]] || trap 'rm -rf --one-file-system "$dir"' EXIT
trap 'exit 130' INT TERM

SECONDS=0
if [[ -d $dir/etc/apt ]]; then
  echo "prove_bare: the system in $dir is used again"
else
  echo "prove_bare: making a Debian 12 in $dir"
  bootstrap
  echo "prove_bare: made in $SECONDS s"
fi
cp -L /etc/resolv.conf "$dir/etc/resolv.conf"
cp -L /etc/hosts "$dir/etc/hosts"
rm -rf --one-file-system "${dir:?}$checkout"
git -c safe.directory='*' clone --quiet --no-hardlinks "$root" "$dir$checkout"

echo "prove_bare: $(git -C "$dir$checkout" log -1 --format='%h %s'): $*"
SECONDS=0
status=0
unshare --mount --pid --fork --kill-child "$0" --inside "$dir" "$@" || status=$?
echo "prove_bare: ended with exit code $status after $SECONDS s"
exit "$status"
