#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# namespaces.sh NAME MEMORY CGROUPS CMD...: become process 1's parent in new
# namespaces (mount, pid, network, uts, ipc, cgroup), all capped at MEMORY.
#
# Its cgroups are made below the caller's own, wherever that is, and listed in
# the file CGROUPS. When this process dies, even by SIGKILL, the kernel ends
# process 1, and with it everything inside: processes, mounts, network. Only
# the cgroups, then empty, stay.
set -euo pipefail
name=$1 memory=$2 list=$3
shift 3

: >"$list"
while IFS=: read -r _ controller path; do
    [ -n "$controller" ] || continue # the unified hierarchy, which nothing uses here
    parent=/sys/fs/cgroup/${controller#name=}${path%/}
    dir=$parent/$name
    mkdir -p "$dir"
    echo "$dir" >>"$list"
    if [ "$controller" = cpuset ]; then # a new cpuset is empty and takes no process
        for file in cpuset.cpus cpuset.mems; do cat "$parent/$file" >"$dir/$file"; done
    fi
    [ "$controller" != memory ] || echo "$memory" >"$dir/memory.limit_in_bytes"
done </proc/self/cgroup
[ -e "/sys/fs/cgroup/memory" ] || { echo "no memory controller (cgroup v1): nothing would be capped" >&2; exit 3; }

while read -r dir; do echo $$ >"$dir/cgroup.procs"; done <"$list"
# Descriptor 3 lets process 1 fetch its end of a link out of this network.
exec 3</proc/self/ns/net
exec unshare --mount --pid --net --uts --ipc --cgroup --fork --mount-proc --kill-child --propagation private "$@"
