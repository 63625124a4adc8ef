#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real Kubernetes cluster on this machine: control plane, nodes, CoreDNS, in namespaces of its own and under a memory cap.
#
# usage: cluster.sh COMMAND
#   up [--nodes N] [--memory MIB] [--node-memory MIB] [--label NODE=KEY=VALUE]... [--image TAR]...
#                         start; ends when DNS answers
#   down                  end all of it; STATE keeps logs and configuration
#   exec CMD...           run CMD in the cluster's network with KUBECONFIG set; it sees the machine's files
#   kubectl ARG...        helm ARG...
#   kuberay               install KubeRay's operator
#   load TAR...           import images into every node
#   stop PART [SIGNAL]    PART: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, node1, node2, ...;
#   start PART            a node always stops as in a power cut
#   node NODE CMD...      run CMD inside a node
#   status                memory of each process, in KiB
#
# What it runs lies in $SLACKTIER_CLUSTER_CACHE (build.sh makes it), what belongs to this cluster in $SLACKTIER_CLUSTER_STATE.
# Nothing outside its namespaces is touched, and its network has no way out. Needs root and cgroup v1 with a memory controller.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '5,17p' "$0" >&2; exit 2; }

state=${SLACKTIER_CLUSTER_STATE:-build/cluster}
cache=${SLACKTIER_CLUSTER_CACHE:-$HOME/.cache/slacktier/cluster}
[ $# -gt 0 ] || usage
command=$1
shift

say() { printf 'cluster: %4d s: %s\n' "$SECONDS" "$*" >&2; }
die() { echo "cluster.sh: $*" >&2; exit 1; }

# --- joining the running cluster ------------------------------------------------
init_pid() { pgrep -P "$(cat "$state/main.pid" 2>/dev/null || echo 0)" 2>/dev/null; }

# inside CMD...: replaces this shell by CMD in the cluster's namespaces and
# cgroups, in the same folder. It dies with the cluster, and with this process.
inside() {
    local pid dir
    pid=$(init_pid) || die "no cluster is up in $state"
    while read -r dir; do echo "$BASHPID" >"$dir/cgroup.procs"; done <"$state/cgroups"
    exec nsenter --target "$pid" --mount --net --uts --ipc --pid --cgroup --wdns="$PWD" -- \
        setpriv --pdeathsig TERM -- env PATH="$bin:$PATH" KUBECONFIG="$state/config/admin.conf" "$@"
}
in_cluster() { (inside "$@"); }
part() { in_cluster "$here/inside/parts.sh" "$state" "$@"; }
kubectl() { in_cluster kubectl "$@"; }

# until_true SECONDS WHAT CMD...
until_true() {
    local end=$(($(date +%s) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$end" ] || die "$what: not in time; see $state/log and $state/nodes/*/log"
        sleep 0.3
    done
}

# --- up and down ------------------------------------------------------------------
# Everything ever started is in the cluster's own cgroups, so that they tell what
# to end even when the main process has gone without its children.
down() {
    local dir pids
    [ -e "$state/cgroups" ] || return 0
    for _ in $(seq 50); do
        pids=$(while read -r dir; do find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null || true; done <"$state/cgroups" | sort -u)
        [ -n "$pids" ] || break
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
        sleep 0.2
    done
    for _ in $(seq 25); do
        pids=0
        while read -r dir; do
            find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ ! -d "$dir" ] || pids=1
        done <"$state/cgroups"
        [ $pids = 1 ] || break
        sleep 0.2
    done
    [ "$pids" = 0 ] || die "cgroups left: $(tr '\n' ' ' <"$state/cgroups")"
    rm -f "$state/cgroups" "$state/main.pid" "$state/initialised"
}

up() {
    local memory=12288 node name number
    local -a images=() labels=()
    nodes=2 node_memory=4096
    while [ $# -gt 0 ]; do
        case $1 in
            --nodes) nodes=$2 ;;
            --memory) memory=$2 ;;
            --node-memory) node_memory=$2 ;;
            --label) labels+=("$2") ;;
            --image) images+=("$(realpath "$2")") ;;
            *) usage ;;
        esac
        shift 2
    done
    [ -x "$cache/bin/kubebox" ] || die "nothing built in $cache: run \`make cluster-env\` first"
    [[ $nodes =~ ^[1-9]$ ]] || die "1 to 9 nodes"
    down
    rm -rf --one-file-system "${state:?}"/{config,etcd,log,nodes,settings}
    mkdir -p "$state"/{config,log,nodes}
    bin=$cache/bin
    {
        printf 'bin=%q\nnodes=%q\nnode_memory=%q\n' "$bin" "$nodes" "$node_memory"
        for number in $(seq "$nodes"); do
            name=node$number node=""
            for label in "${labels[@]}"; do [ "${label%%=*}" != "$name" ] || node+=,${label#*=}; done
            printf 'labels_%s=%q\n' "$name" "${node#,}"
        done
    } >"$state/settings"
    "$here/inside/credentials.sh" "$state/config" "$nodes"

    setsid "$here/inside/namespaces.sh" "slacktier-cluster-$$" "${memory}M" "$state/cgroups" \
        "$here/inside/cluster-init.sh" "$state" >"$state/log/main.log" 2>&1 </dev/null &
    echo $! >"$state/main.pid"
    trap 'down || true' EXIT # until all is up: leave nothing half started
    until_true 10 "namespaces" test -e "$state/initialised"

    part start etcd
    part start kube-apiserver
    for number in $(seq "$nodes"); do part start "node$number"; done
    until_true 60 "API server" kubectl get --raw /readyz
    say "API server ready"
    part start kube-controller-manager
    part start kube-scheduler
    kubectl apply --server-side -f "$here/manifests/" >/dev/null
    until_true 20 "containerd" containerd_answers
    load "$cache"/images/{pause,busybox,coredns}.tar "${images[@]}"
    say "images loaded"
    for number in $(seq "$nodes"); do
        until_true 60 "node$number" kubectl get node "node$number"
        kubectl wait --for=condition=Ready "node/node$number" --timeout=60s >/dev/null || die "node$number is not Ready"
    done
    say "$nodes nodes Ready"
    kubectl -n kube-system rollout status deployment/coredns --timeout=60s >/dev/null || die "CoreDNS does not run"
    until_true 30 "DNS" in_cluster busybox nslookup kubernetes.default.svc.cluster.local 10.96.0.10
    trap - EXIT
    say "up: DNS answers"
}

containerd_answers() {
    local number
    for number in $(seq "$nodes"); do part node "node$number" ctr version || return 1; done
}

load() { # into all nodes at once: most of the time is each one's own unpacking
    local number
    local -a jobs=()
    for number in $(seq "$nodes"); do
        load_node "node$number" "$@" &
        jobs+=($!)
    done
    for number in "${jobs[@]}"; do wait "$number" || die "an image was not loaded"; done
}
load_node() {
    local node=$1 tar
    shift
    for tar in "$@"; do
        part node "$node" ctr -n k8s.io images import --snapshotter overlayfs - <"$tar" >/dev/null
    done
}

# Server-side: the CRDs are too large for the annotation of a client-side apply.
kuberay() {
    load "$bin/../images/kuberay-operator.tar"
    kubectl apply --server-side -k "$bin/../kuberay/cluster" >/dev/null
    kubectl rollout status deployment/kuberay-operator --timeout=90s
}

mkdir -p "$state"
state=$(cd "$state" && pwd)
# shellcheck source=/dev/null
[ ! -e "$state/settings" ] || . "$state/settings" # bin, nodes
case $command in
    up) up "$@" ;;
    down) down ;;
    exec) inside "$@" ;;
    kuberay) kuberay ;;
    kubectl | helm) inside "$command" "$@" ;;
    load) load "$@" ;;
    start | stop | node) inside "$here/inside/parts.sh" "$state" "$command" "$@" ;;
    status) inside sh -c 'ps -eo rss:9,args --sort=-rss | cut -c1-100' ;;
    *) usage ;;
esac
