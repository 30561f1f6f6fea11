#!/usr/bin/env bash
# debian.sh: gives Docker a debian:trixie-slim, the base of every image here: the published one, else one made by debootstrap
# from the package mirror that this machine uses.
set -euo pipefail
image=debian:trixie-slim
docker image inspect "$image" > /dev/null 2>&1 && exit 0
timeout 60 docker pull --quiet "$image" > /dev/null 2>&1 && exit 0
echo "no $image can be pulled: making it with debootstrap" >&2
mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/*.sources 2> /dev/null || true)
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.log"' EXIT
debootstrap --variant=minbase --include=ca-certificates trixie "$root" ${mirror:+"$mirror"} > "$root.log" 2>&1 ||
  { tail -20 "$root.log" >&2; exit 1; }
rm -rf "$root.log" "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import - "$image" > /dev/null
