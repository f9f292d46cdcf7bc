#!/bin/bash
# Puts Nix into a directory, without touching the machine's own packages.
#
# usage: get-nix.sh DEST [SUITE]
#
# Debian's nix-bin and everything it links against are downloaded from the mirror that this machine's apt is already
# configured with, then unpacked (never installed) into DEST: about 210 MB. The binary is pointed at its own loader
# and libraries, because Nix re-executes itself and a wrapper around ld.so would be lost on the way.
# SUITE defaults to trixie (Nix 2.26). bookworm's 2.8 is too old for `nix flake check` on this flake.
set -euo pipefail

dest=${1:?usage: get-nix.sh DEST [SUITE]}
suite=${2:-trixie}

fail() { echo "get-nix: $*" >&2; exit 69; }

[ ! -e "$dest" ] || fail "$dest exists already. Remove it first."
for tool in apt-get dpkg-deb dpkg; do
    command -v "$tool" >/dev/null || fail "$tool is missing: this needs Debian or a derivative. Install Nix yourself and put it on PATH."
done

# The configured mirror: deb822 (.sources) first, then one-line (.list).
mirror=$(sed -n 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1)
[ -n "$mirror" ] || mirror=$(sed -n 's/^deb[[:space:]]\+\(\[[^]]*\][[:space:]]\+\)\?\([^[:space:]]\+\).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1)
[ -n "$mirror" ] || fail "no mirror in /etc/apt/sources.list*. Install Nix yourself and put it on PATH."
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || fail "$keyring is missing. Install debian-archive-keyring, or Nix itself."

# Unpacked beside DEST and moved there at the end: a half-made directory never looks like a finished one.
work=$dest.making.$$
trap 'rm -rf "$work"' EXIT
apt=$work/.apt
mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" "$keyring" >"$apt/parts/nix.sources"
options=(
    -qq
    -o Dir::Etc::sourcelist=/dev/null
    -o Dir::Etc::sourceparts="$apt/parts"
    -o Dir::Etc::preferencesparts=/dev/null
    -o Dir::State::lists="$apt/lists"
    -o Dir::State::status="$apt/status"    # empty: the closure is complete, whatever the machine has
    -o Dir::Cache="$apt/cache"
    -o APT::Install-Recommends=false
    -o APT::Sandbox::User=root
    -o APT::Keep-Downloaded-Packages=true
    -o Binary::apt::APT::Keep-Downloaded-Packages=true
    -o APT::Update::Post-Invoke::=
    -o DPkg::Post-Invoke::=
    -o Acquire::Languages=none
    -o Debug::NoLocking=true    # nothing of the machine's is changed, so nothing needs its lock, nor root
    -o Acquire::Retries=2
)
apt-get "${options[@]}" update >&2 || fail "the mirror $mirror has no readable suite $suite."
apt-get "${options[@]}" -y --download-only install nix-bin patchelf >&2 || fail "nix-bin could not be downloaded from $mirror."

for deb in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$work"
done
rm -rf "$apt"

case $(dpkg --print-architecture) in
    amd64) triplet=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
    arm64) triplet=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
    *) fail "no rule for the architecture $(dpkg --print-architecture)." ;;
esac
lib=usr/lib/$triplet
# patchelf of that suite runs through that suite's loader; it does not re-execute itself.
"$work/$lib/$loader" --library-path "$work/$lib" "$work/usr/bin/patchelf" \
    --set-interpreter "$dest/$lib/$loader" --force-rpath --set-rpath "$dest/$lib" "$work/usr/bin/nix"

mv "$work" "$dest"
trap - EXIT
"$dest/usr/bin/nix" --version
