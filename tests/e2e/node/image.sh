#!/usr/bin/env bash
# image.sh BINARIES TAG: builds TAG, a node image for kind like kindest/node, where no image can be pulled; BINARIES is the folder
# that binaries.sh fills. Also builds the KubeRay operator's image under the name that its manifest uses.
# Needs Docker, debootstrap and jq, and takes about 3 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries=$1 tag=$2
source "$here/versions.sh"
export DOCKER_BUILDKIT=1
mapfile -t folders < <("$here/binaries.sh" "$binaries" kubernetes coredns etcd kuberay)
kubernetes=${folders[0]} coredns=${folders[1]} etcd=${folders[2]} kuberay=${folders[3]}
work=$(mktemp -d)
container=node-image-$$
trap 'docker rm --force "$container" > /dev/null 2>&1 || true; rm -rf "$work"' EXIT

"$here/debian.sh"

single() { # image, program, its path in the image, another Dockerfile line
  rm -rf "$work/single"; mkdir "$work/single"; cp "$2" "$work/single/program"
  printf 'FROM scratch\nCOPY program %s\n%s\nENTRYPOINT ["%s"]\n' "$3" "${4:-}" "$3" > "$work/single/Dockerfile"
  docker build --quiet --tag "$1" "$work/single" > /dev/null
}
registry=registry.k8s.io
system=("$registry/kube-proxy:$KUBERNETES" "$registry/pause:$PAUSE_TAG" "$registry/coredns/coredns:$COREDNS_TAG" "$registry/etcd:$ETCD_TAG")
for name in kube-apiserver kube-controller-manager kube-scheduler; do
  single "$registry/$name:$KUBERNETES" "$kubernetes/$name" "/usr/local/bin/$name"
  system+=("$registry/$name:$KUBERNETES")
done
single "$registry/pause:$PAUSE_TAG" "$kubernetes/pause" /pause
single "$registry/coredns/coredns:$COREDNS_TAG" "$coredns/coredns" /coredns
single "$registry/etcd:$ETCD_TAG" "$(find "$etcd" -type f)" /usr/local/bin/etcd
single "quay.io/kuberay/operator:$KUBERAY" "$kuberay/ray-operator" /manager 'USER 65532:65532'

mkdir "$work/proxy"; cp "$kubernetes/kube-proxy" "$work/proxy/"
docker build --quiet --network host --tag "$registry/kube-proxy:$KUBERNETES" --file - "$work/proxy" > /dev/null <<'DOCKERFILE'
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends iptables conntrack nftables && rm -rf /var/lib/apt/lists/*
COPY kube-proxy /usr/local/bin/kube-proxy
DOCKERFILE

cp -r "$here/image" "$work/base"
sed -i "s/PAUSE_TAG/$PAUSE_TAG/g" "$work/base/adapt-node"
cp -r "$(cd "$here/modules/kind" && go list -m -f '{{.Dir}}' sigs.k8s.io/kind)/images/base/files" "$work/base/files"
chmod -R u+w "$work/base/files"
docker build --network host --tag "$tag-base" "$work/base" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

# The system images go into containerd's own store, which only a running containerd can write.
docker run --detach --privileged --name "$container" --entrypoint sleep "$tag-base" infinity > /dev/null
for program in kubelet kubeadm kubectl; do docker cp "$kubernetes/$program" "$container:/usr/bin/$program"; done
docker save "${system[@]}" | docker exec --interactive --privileged "$container" bash -euc '
  echo -n '"$KUBERNETES"' > /kind/version
  containerd > /tmp/containerd.log 2>&1 & pid=$!
  for _ in $(seq 60); do ctr version > /dev/null 2>&1 && break; sleep 0.5; done
  ctr --namespace k8s.io images import --all-platforms --no-unpack - > /dev/null
  kill $pid; wait $pid || true; rm /tmp/containerd.log'
docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' --change 'ENV container=docker' \
  "$container" "$tag" > /dev/null
