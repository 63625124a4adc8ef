#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the cluster's own parts into CACHE; does nothing when they are current.
#
# usage: build.sh [--with-helm | --only-helm] CACHE
#
# Leaves CACHE/bin (kubebox with its links, coredns; helm and KubeRay's operator where asked for), CACHE/images (tarballs) and
# CACHE/kuberay (that operator's manifests). Needs root and Go 1.26; compiles at low priority. From nothing, on 2 cores: about
# 15 minutes, 10 more with helm and KubeRay. With --only-helm nothing but CACHE/bin/helm, without root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

kubernetes=v1.36.3 # as in go/go.mod
helm=v4.3.1
kuberay=v1.5.0
packages=(containerd runc containernetworking-plugins iproute2 iptables nftables busybox-static procps openssl
    mmdebstrap buildah gcc libc6-dev libfaketime)

parts=cluster
case ${1:-} in
    --with-helm | --only-helm) parts=${1#--}; shift ;;
esac
[ $# = 1 ] || { sed -n '3,9p' "$0" >&2; exit 2; }
mkdir -p "$1"/{bin,images,stamps}
cache=$(cd "$1" && pwd)
exec 9>"$cache/.lock" # one build at a time; who waited finds all current
flock 9

say() { printf 'cluster: %4d s: %s\n' "$SECONDS" "$*" >&2; }

# current NAME KEY: was NAME last made with this KEY? If not, it counts as not made.
current() { [ "$(cat "$cache/stamps/$1" 2>/dev/null)" = "$2" ]; }
made() { echo "$2" >"$cache/stamps/$1"; say "$1 is built"; }
key_of() { cat "$@" | sha256sum | cut -c1-12; }

install_packages() {
    local package
    local -a missing=()
    for package in "${packages[@]}"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing with apt-get: ${missing[*]}"
    # apt waits for dpkg's lock but not for that of the lists.
    until apt-get -qq update >"$cache/apt.log" 2>&1; do
        if [ $SECONDS -gt 900 ] || ! grep -q 'Could not get lock' "$cache/apt.log"; then
            tail -20 "$cache/apt.log" >&2
            exit 1
        fi
        sleep 3
    done
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=900 install -y --no-install-recommends \
        "${missing[@]}" >"$cache/apt.log" 2>&1 || { tail -20 "$cache/apt.log" >&2; exit 1; }
}

image() { python3 "$here/image_tar.py" "$cache/images/$1.tar" "localhost/$1:1" "${@:2}"; }

build_kubebox() {
    local key version=k8s.io/component-base/version part
    key=$(key_of "$here"/go/go.mod "$here"/go/go.sum "$here"/go/*/main.go)
    current kubebox "$key" && return
    say "compiling Kubernetes $kubernetes and etcd (about 12 minutes where Go has nothing cached)"
    (cd "$here/go" && nice -n 10 go build -o "$cache/bin/kubebox" -ldflags \
        "-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${kubernetes:3:2}" ./kubebox)
    for part in etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet; do
        ln -sf kubebox "$cache/bin/$part"
    done
    (cd "$here/go" && nice -n 10 go build -o "$cache/bin/coredns" -ldflags "-s -w" ./coredns)
    image coredns --file "$cache/bin/coredns=coredns" --entrypoint '["/coredns"]'
    made kubebox "$key"
}

build_small_images() {
    local key applet
    local -a links=()
    key=$(key_of "$here/inside/pause.c" /usr/bin/busybox)
    current small-images "$key" && return
    gcc -Os -static -s -o "$cache/bin/pause" "$here/inside/pause.c"
    image pause --file "$cache/bin/pause=pause" --entrypoint '["/pause"]'
    for applet in $(/usr/bin/busybox --list); do
        [ "$applet" = busybox ] || links+=(--link "bin/$applet=busybox")
    done
    install -d -m 1777 "$cache/empty"
    image busybox --file /usr/bin/busybox=bin/busybox --dir "$cache/empty=tmp" "${links[@]}" --cmd '["sh"]'
    made small-images "$key"
}

build_helm() {
    current helm "$helm" && return
    command -v go >/dev/null || { echo 'cluster: compiling Helm needs Go 1.26; or install Helm 4' >&2; exit 1; }
    say "compiling Helm $helm (about 5 minutes)"
    GOBIN=$cache/bin nice -n 10 go install -ldflags "-s -w" "helm.sh/helm/v4/cmd/helm@$helm"
    made helm "$helm"
}

kuberay_package=github.com/ray-project/kuberay/ray-operator

fetch_kuberay() {
    local module
    current kuberay-manifests "$kuberay" && return
    module=$(GOFLAGS=-mod=mod go mod download -json "$kuberay_package@$kuberay" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    rm -rf "$cache/kuberay"
    cp -r "$module/config" "$cache/kuberay"
    chmod -R u+w "$cache/kuberay"
    mkdir "$cache/kuberay/cluster"
    printf '%s\n' 'resources: [../crd, ../rbac, ../manager]' 'namespace: default' \
        'images: [{name: kuberay/operator, newName: localhost/kuberay-operator, newTag: "1"}]' \
        >"$cache/kuberay/cluster/kustomization.yaml"
    made kuberay-manifests "$kuberay"
}

build_kuberay() {
    current kuberay "$kuberay" && return
    say "compiling KubeRay's operator $kuberay (about 4 minutes)"
    GOBIN=$cache/bin nice -n 10 go install -ldflags "-s -w" "$kuberay_package@$kuberay"
    image kuberay-operator --file "$cache/bin/ray-operator=manager" --entrypoint '["/manager"]' --user 65532
    made kuberay "$kuberay"
}

# Without cgo everywhere: the binaries run in any image, and all share one compiled copy of each package.
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
[ "$parts" = only-helm ] || { install_packages; build_kubebox; build_small_images; fetch_kuberay; }
[ "$parts" = cluster ] || build_helm
[ "$parts" != with-helm ] || build_kuberay
