#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packages.sh GROUP...: installs the Debian packages of tools/packages.txt that are missing. Costs a fraction of a
# second when none is. Exit code 1 with a reason when it cannot.
set -euo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "$0")" && pwd)

wanted() {
  local group package why
  while read -r group package why; do
    [[ " $* " == *" $group "* && -n $why ]] && echo "$package"
  done < "$here/packages.txt"
  return 0
}

missing() {
  local installed
  # dpkg-query prints what it knows and fails for the rest; what it does not print as installed is missing.
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  installed=$(awk '$2 == "installed" {print $1}' <<< "$installed")
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<< "$installed")
}

fail() {
  echo "dev: $*" >&2
  exit 1
}

command -v dpkg-query > /dev/null || fail "this is no Debian system; install what tools/packages.txt lists by hand," \
  "then build with: cmake --preset default && cmake --build --preset default"
mapfile -t packages < <(wanted "$@")
mapfile -t absent < <(missing "${packages[@]}")
[[ ${#absent[@]} -gt 0 ]] || exit 0

command -v apt-get > /dev/null || fail "these packages are missing and there is no apt-get: ${absent[*]}"
[[ $EUID -eq 0 ]] || fail "these packages are missing and only root can install them: ${absent[*]}
     run once as root: apt-get update && apt-get install --no-install-recommends ${absent[*]}"

echo "dev: installing ${#absent[@]} packages: ${absent[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -y -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${absent[@]}"; } > "$log" 2>&1; then
  tail -n 30 "$log" >&2
  fail "apt-get failed, see above; it was to install: ${absent[*]}"
fi
mapfile -t absent < <(missing "${packages[@]}")
[[ ${#absent[@]} -eq 0 ]] || fail "apt-get reported success, but these are still missing: ${absent[*]}"
