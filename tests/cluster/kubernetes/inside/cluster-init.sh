#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Process 1 of the cluster: a network of its own with no way out of it, in which
# `cluster.sh` starts the control plane, the nodes, and commands.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$1
exec 3<&-
# shellcheck source=/dev/null
. "$here/common-init.sh"
hostname control-plane
private_mounts
masked_sysctls
mkdir -p /run/parts
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
echo 1 >/proc/sys/net/ipv4/ip_forward # the nodes' router

# Commands run here find services by name, as pods do.
printf 'nameserver 10.96.0.10\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n' >/run/resolv.conf
target=$(readlink -m /etc/resolv.conf) # may be a link into /run, which is empty here
mkdir -p "${target%/*}"
[ -e "$target" ] || touch "$target"
mount --bind /run/resolv.conf "$target"
touch "$state/initialised"

# bash reaps what is left to process 1; the wait keeps it here until it is killed.
while :; do
    sleep 3600 &
    wait $!
done
