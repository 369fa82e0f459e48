# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For scripts to source: Debian's source packages, from the mirror that this machine's apt uses for Debian 12, verified
# by apt with Debian's archive key. The state of this machine's apt is not touched.

# debian_source SUITE PACKAGE[=VERSION] WORK: unpacks it into a directory below WORK, an existing one.
debian_source() {
  local suite=$1 package=$2 work=$3 keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror apt
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' \
    | awk '$2 == "bookworm" {print $1; exit}')
  [[ -n $mirror ]] || return 1
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  echo "deb-src [signed-by=$keyring] $mirror $suite main" > "$work/sources.list"
  apt=(timeout 120 apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=2
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
  "${apt[@]}" update && (cd "$work" && "${apt[@]}" source --only-source "$package")
}
