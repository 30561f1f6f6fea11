#!/usr/bin/env bash
# tests/e2e/node/modules/lock.sh: writes go.mod and go.sum of every program built here, after a change in versions.sh.
# They are tracked, so that a build resolves nothing and every module is checked against a hash that a person has seen.
set -euo pipefail
cd "$(dirname "$0")"
source ../versions.sh

lock() { # folder, Go version, module@version, packages to build...
  local folder=$1 go=$2 module=$3; shift 3
  mkdir -p "$folder"
  ( cd "$folder"
    rm -f go.sum
    printf 'module e2e/%s\n\ngo %s\n' "$folder" "$go" > go.mod
    case $folder in
      kubernetes) staging >> go.mod ;;
      skaffold) replacements "$module" >> go.mod ;;
    esac
    # A file that imports the programs makes them dependencies, though nothing is compiled from it.
    { printf '//go:build tools\n\npackage tools\n\nimport (\n'; printf '\t_ "%s"\n' "$@"; printf ')\n'; } > tools.go
    go mod edit -require="$module"
    go mod tidy -e )
}

staging() { # Kubernetes' own go.mod points at folders of its repository; as a dependency it needs the published modules instead
  go mod download "k8s.io/kubernetes@$KUBERNETES"
  echo 'replace ('
  grep -oE 'k8s\.io/[a-z-]+ v0\.0\.0$' "$(go env GOMODCACHE)/k8s.io/kubernetes@$KUBERNETES/go.mod" | sort -u |
    while read -r name _; do echo "	$name => $name $KUBERNETES_STAGING"; done
  echo ')'
}

replacements() { # a module's own replacements, which count only in the main module
  go mod edit -json "$(go mod download -json "$1" | jq -r .GoMod)" |
    jq -r '.Replace[]? | "replace \(.Old.Path) \(.Old.Version // "") => \(.New.Path) \(.New.Version)"'
}

programs=()
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl; do
  programs+=("k8s.io/kubernetes/cmd/$name"); done
for name in ${*:-kubernetes coredns etcd kuberay kind skaffold}; do
  case $name in
    kubernetes) lock kubernetes 1.24.0 "k8s.io/kubernetes@$KUBERNETES" "${programs[@]}" ;;
    coredns) lock coredns 1.24.0 "github.com/coredns/coredns@$COREDNS" github.com/coredns/coredns ;;
    etcd) lock etcd 1.24.0 "go.etcd.io/etcd/server/v3@$ETCD" go.etcd.io/etcd/server/v3 ;;
    kuberay) lock kuberay 1.25.0 "github.com/ray-project/kuberay/ray-operator@$KUBERAY" github.com/ray-project/kuberay/ray-operator ;;
    kind) lock kind 1.24.0 "sigs.k8s.io/kind@$KIND" sigs.k8s.io/kind ;;
    skaffold)
      lock skaffold 1.24.0 "github.com/GoogleContainerTools/skaffold/v2@$SKAFFOLD" \
        github.com/GoogleContainerTools/skaffold/v2/cmd/skaffold ;;
    *) echo "error: no program named $name" >&2; exit 2 ;;
  esac
done
