#!/usr/bin/env bash
# update.sh: copies the operator's manifests, unchanged, from its Go module (Apache-2.0, see LICENSE beside them). The version is
# the one in kustomization.yaml; to upgrade, change it there, run this, and run the end-to-end tests.
set -euo pipefail
cd "$(dirname "$0")"
version=$(awk '/newTag:/ {print $2}' kustomization.yaml)
module=$(go mod download -json "github.com/ray-project/kuberay/ray-operator@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
rm -rf upstream
mkdir upstream
cp -r "$module"/config/crd "$module"/config/rbac "$module"/config/manager "$module"/LICENSE upstream/
chmod -R u+w upstream
