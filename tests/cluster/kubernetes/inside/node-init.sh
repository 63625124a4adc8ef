#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Process 1 of a node: node-init.sh STATE NAME NUMBER BIN LABELS RESERVED
#
# What a machine would have of its own is in STATE/nodes/NAME: disks, logs, the
# kubelet's and containerd's folders. It outlives a crash, as a disk does.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$1 name=$2 number=$3 bin=$4 labels=$5 reserved=$6
own=$state/nodes/$name address=10.99.0.$((10 + number)) pods=10.88.$number.0/24
# shellcheck source=/dev/null
. "$here/common-init.sh"
hostname "$name"

# --- network: one link to the router, fetched from the network that made it ---
nsenter --net=/proc/self/fd/3 ip link set "$name-node" netns 1
exec 3<&-
ip link set lo up
ip link set "$name-node" name eth0 up
ip addr add "$address/32" dev eth0
ip route add 10.99.0.1 dev eth0
ip route add default via 10.99.0.1

# --- file system ---------------------------------------------------------------
private_mounts
masked_sysctls
mkdir -p "$own"/{kubelet,containerd,log,disks} /run/netns /run/cni.d
mount -t tmpfs -o mode=755 tmpfs /var/lib # hides the machine's own /var/lib/kubelet and containerd
mkdir /var/lib/{kubelet,containerd,cni}
mount --bind "$own/kubelet" /var/lib/kubelet
mount --bind "$own/containerd" /var/lib/containerd
mount --bind "$own/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/disks
mount --bind "$own/disks" /mnt/disks # for local PersistentVolumes
mkdir -p /var/log/pods /var/log/containers
mount --make-rshared / # for mountPropagation: Bidirectional; shared among this node's own only
: >/run/resolv.conf # pods with dnsPolicy Default get no server from the machine

# Containers inherit these; more than the hard limit needs a capability that root
# may lack here. (Ray asks for 65536, says that it may not, and starts.)
ulimit -n "$(ulimit -Hn)"

# --- containerd, kube-proxy, kubelet --------------------------------------------
sed "s|@PODS@|$pods|" "$here/cni.conflist" >/run/cni.d/10-pods.conflist
sed -e "s|@STATE@|$state|" -e "s|@RESERVED@|$reserved|" -e "s|@NAME@|$name|" "$here/kubelet.yaml" >/run/kubelet.yaml
sed "s|@KUBECONFIG@|$state/config/kube-proxy.conf|" "$here/kube-proxy.yaml" >/run/kube-proxy.yaml
containerd --config "$here/containerd.toml" >>"$own/log/containerd.log" 2>&1 &
"$bin/kube-proxy" --config /run/kube-proxy.yaml --hostname-override "$name" >>"$own/log/kube-proxy.log" 2>&1 &
for _ in $(seq 100); do
    ctr version >/dev/null 2>&1 && break
    sleep 0.1
done
"$bin/kubelet" --config /run/kubelet.yaml --kubeconfig "$state/config/$name.conf" --node-ip "$address" \
    --hostname-override "$name" --node-labels "$labels" >>"$own/log/kubelet.log" 2>&1 &

# A node without its kubelet is a case worth testing: stay when a part ends.
while :; do
    sleep 3600 &
    wait $!
done
