# The versions that the end-to-end cluster is made of. Kubernetes 1.34 is the newest that still starts on cgroup v1 hosts;
# CoreDNS, etcd and pause are the ones that its kubeadm asks for by name (`kubeadm config images list`).
KIND=v0.33.0
KINDEST=kindest/node:v1.34.0
KUBERNETES=v1.34.4
KUBERNETES_STAGING=v0.34.4
COREDNS=v1.12.4 COREDNS_TAG=v1.12.1
ETCD=v3.6.5 ETCD_TAG=3.6.5-0
PAUSE_TAG=3.10.1
KUBERAY=v1.6.0
SKAFFOLD=v2.16.1
