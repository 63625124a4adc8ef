# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by process 1 of a set of namespaces: its own view of the machine.

# private_mounts: /run and /sys, with the cgroup hierarchies as seen from here.
private_mounts() {
    local controller
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/lock
    mount -t sysfs sysfs /sys
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    while IFS=: read -r _ controller _; do
        [ -n "$controller" ] || continue
        mkdir -p "/sys/fs/cgroup/${controller#name=}"
        case $controller in
            name=*) mount -t cgroup -o "none,$controller" cgroup "/sys/fs/cgroup/${controller#name=}" ;;
            *) mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ;;
        esac
    done </proc/self/cgroup
}

# masked_sysctls: files over the machine-wide settings that the kubelet writes,
# with the values it wants, so that it neither fails nor changes the machine.
masked_sysctls() {
    local setting file
    for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
        file=/run/sysctl/${setting%=*}
        mkdir -p "${file%/*}"
        echo "${setting#*=}" >"$file"
        mount --bind "$file" "/proc/sys/${setting%=*}"
    done
}
