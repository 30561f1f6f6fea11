#!/usr/bin/env bash
# binaries.sh FOLDER NAME...: builds programs from Go modules into FOLDER/NAME-HASH/, and prints that path for each.
# HASH covers the locked modules and this file, so a second call builds nothing. Kubernetes takes most of the time:
# about 15 minutes on two cores with an empty Go cache; all the others together about 6.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$1; shift
source "$here/versions.sh"
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"

kubernetes_flags() { # kubelet and kubeadm compare these with each other and with what the cluster asks for
  local minor=${KUBERNETES#v1.} package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s ' \
      "$package" "$KUBERNETES" "$package" "$package" "${minor%%.*}"
  done
}

for name in "$@"; do
  module=$here/modules/$name
  hash=$(cat "$module/go.mod" "$module/go.sum" "$module/tools.go" "$here/binaries.sh" | sha256sum | cut -c1-12)
  out=$cache/$name-$hash
  if [ ! -d "$out" ]; then
    echo "building $name from its Go module" >&2
    mkdir -p "$cache"
    partial=$(mktemp -d "$cache/.$name-XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    flags="-s -w"
    if [ "$name" = kubernetes ]; then flags="$flags $(kubernetes_flags)"; fi
    mapfile -t packages < <(sed -n 's/^\t_ "\(.*\)"$/\1/p' "$module/tools.go")
    ( cd "$module" && go build -ldflags "$flags" -o "$partial/" "${packages[@]}" )
    if [ "$name" = kubernetes ]; then
      source=$(cd "$module" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
      gcc -Os -static -DVERSION="v$PAUSE_TAG" -o "$partial/pause" "$source/build/pause/linux/pause.c"
    fi
    mv "$partial" "$out"
  fi
  echo "$out"
done
