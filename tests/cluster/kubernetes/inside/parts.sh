#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run inside the cluster by cluster.sh:
#   parts.sh STATE start NAME            NAME: etcd, kube-apiserver, kube-controller-manager,
#   parts.sh STATE stop NAME [SIGNAL]          kube-scheduler, node1, node2, ...
#   parts.sh STATE node NAME CMD...      run CMD inside a node
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$1 action=$2 name=$3
shift 3
# shellcheck source=/dev/null
. "$state/settings"
: "${bin:?}" "${node_memory:?}" # and labels_NODE
config=$state/config pid_file=/run/parts/$name.pid

# A part that is not running has no pid file, or one whose process is gone.
pid_of() { [ -e "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null && cat "$pid_file"; }

launch() {
    setsid "$@" >>"$state/log/$name.log" 2>&1 </dev/null &
    echo $! >"$pid_file"
}

start_node() {
    local number=${name#node} labels="labels_$name" total link
    total=$(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
    # 300 MiB of the node's cap are for its kubelet, containerd and kube-proxy.
    local reserved=$((total - node_memory + 300))
    # After a crash: the groups of the dead node's pods, empty by now.
    [ ! -e "$state/nodes/$name.cgroups" ] || while read -r link; do
        find "$link" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done <"$state/nodes/$name.cgroups"
    ip link add "$name" type veth peer name "$name-node"
    ip link set "$name" up
    ip route add "10.99.0.$((10 + number))" dev "$name" src 10.99.0.1
    ip route add "10.88.$number.0/24" via "10.99.0.$((10 + number))" dev "$name" src 10.99.0.1
    # Services are reached through a node's kube-proxy. When a node dies its link
    # goes, and with it this route: the next node's is used.
    ip route add 10.96.0.0/16 via "10.99.0.$((10 + number))" dev "$name" src 10.99.0.1 metric "$number"
    launch "$here/namespaces.sh" "$name" "${node_memory}M" "$state/nodes/$name.cgroups" \
        "$here/node-init.sh" "$state" "$name" "$number" "$bin" "${!labels:-}" "${reserved}Mi"
}

start() {
    ! pid_of >/dev/null || return 0
    case $name in
        etcd)
            launch "$bin/etcd" --data-dir "$state/etcd" --unsafe-no-fsync \
                --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
                --listen-peer-urls http://127.0.0.1:2380
            ;;
        kube-apiserver)
            # The two tolerations: how long pods stay on a dead node (300 s by default).
            launch "$bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --secure-port 6443 \
                --advertise-address 10.99.0.1 --tls-cert-file "$config/kube-apiserver.crt" \
                --tls-private-key-file "$config/kube-apiserver.key" --client-ca-file "$config/ca.crt" \
                --token-auth-file "$config/tokens" --authorization-mode Node,RBAC \
                --enable-admission-plugins NodeRestriction --allow-privileged=true \
                --kubelet-certificate-authority "$config/ca.crt" --kubelet-client-certificate "$config/admin.crt" \
                --kubelet-client-key "$config/admin.key" --kubelet-preferred-address-types InternalIP \
                --service-account-issuer https://kubernetes.default.svc.cluster.local \
                --service-account-key-file "$config/sa.pub" --service-account-signing-key-file "$config/sa.key" \
                --service-cluster-ip-range 10.96.0.0/16 \
                --audit-policy-file "$here/audit.yaml" --audit-log-path "$state/log/audit.log" --audit-log-mode blocking \
                --default-not-ready-toleration-seconds 5 --default-unreachable-toleration-seconds 5
            ;;
        kube-controller-manager)
            launch "$bin/kube-controller-manager" --kubeconfig "$config/kube-controller-manager.conf" \
                --root-ca-file "$config/ca.crt" --service-account-private-key-file "$config/sa.key" \
                --cluster-signing-cert-file "$config/ca.crt" --cluster-signing-key-file "$config/ca.key" \
                --use-service-account-credentials --leader-elect=false \
                --node-monitor-grace-period 10s --node-monitor-period 1s
            ;;
        kube-scheduler)
            launch "$bin/kube-scheduler" --kubeconfig "$config/kube-scheduler.conf" --leader-elect=false
            ;;
        node[1-9]) start_node ;;
        *) echo "no part $name" >&2; exit 2 ;;
    esac
}

stop() {
    local pid signal=${1:-TERM}
    case $name in node*) signal=KILL ;; esac
    pid=$(pid_of) || return 0
    kill -"$signal" "$pid"
    for tenth in $(seq 400); do
        pid_of >/dev/null || break
        [ "$tenth" != 300 ] || kill -KILL "$pid"
        sleep 0.1
    done
    rm -f "$pid_file"
    case $name in # its link goes with the last of its processes
        node*) for _ in $(seq 100); do
                [ -e "/sys/class/net/$name" ] || break
                sleep 0.1
            done ;;
    esac
}

case $action in
    start) start ;;
    stop) stop "$@" ;;
    running) pid_of >/dev/null ;;
    node)
        pid=$(pid_of) || { echo "$name is not running" >&2; exit 1; }
        exec nsenter --target "$(pgrep -P "$pid")" --mount --pid --net --uts --ipc --cgroup -- "$@"
        ;;
    *) exit 2 ;;
esac
