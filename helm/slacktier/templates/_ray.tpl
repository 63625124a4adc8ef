{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What every Ray process is told. */}}
{{- define "slacktier.rayEnv" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: HOME, value: /tmp}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "10"}
# There is nothing of Ray Serve to drain: a pod that is to end would take all of its 30 s.
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: "0"}
# A memory node fills its pod on purpose, after it has checked the room: Ray's monitor would kill for it.
- {name: RAY_memory_monitor_refresh_ms, value: "0"}
{{- with .Values.ray.auth.existingSecret }}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: auth_token}}
{{- else }}
- {name: RAY_AUTH_MODE, value: disabled}
{{- end }}
{{- end }}

{{/* Starts Ray again when it ends: memory nodes in the container outlive it and go on serving rows. */}}
{{- define "slacktier.rayCommand" -}}
command:
- bash
- -c
- |
  trap 'kill "$ray"; wait "$ray"; exit 0' TERM
  while :; do
    ray "$@" --block & ray=$!
    wait "$ray"
    echo 'ray has ended; starting it again' >&2
    sleep 2 & wait $!
  done
- ray
{{- end }}

{{/* Ports are fixed below the kernel's range for free ports, which is for memory nodes: NetworkPolicies tell them apart. */}}
{{- define "slacktier.rayPorts" -}}
- --node-ip-address=$(POD_IP)
- --node-manager-port=6380
- --object-manager-port=6381
- --dashboard-agent-listen-port=6382
- --dashboard-agent-grpc-port=6383
- --metrics-export-port=6384
- --runtime-env-agent-port=6385
- --min-worker-port=10002
- --max-worker-port=10999
- --object-store-memory={{ int64 .Values.ray.objectStoreBytes }}
{{- end }}

{{- define "slacktier.rayProbes" -}}
# Ray's node manager. KubeRay's own probes ask with wget, which small images lack.
startupProbe: {tcpSocket: {port: 6380}, periodSeconds: 2, failureThreshold: 90}
readinessProbe: {tcpSocket: {port: 6380}, periodSeconds: 5}
# Of the process that starts Ray again: without Ray the container must live on, for its memory nodes.
livenessProbe: {exec: {command: [test, -d, /tmp]}, periodSeconds: 60}
{{- end }}

{{- define "slacktier.rayVolumes" -}}
- {name: tmp, emptyDir: {}}
- {name: run, emptyDir: {}}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: 256Mi}}
{{- end }}

{{- define "slacktier.rayMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: run, mountPath: /run/slacktier}
- {name: shm, mountPath: /dev/shm}
{{- end }}

{{/* The annotations of a Ray pod: KubeRay leaves the command as it is here. Takes (list ROOT VALUES MORE). */}}
{{- define "slacktier.rayAnnotations" -}}
{{- $all := merge (dict) (index . 2) (index . 1).podAnnotations -}}
{{- if include "slacktier.isKuberay" (first .) }}{{ $all = merge (dict "ray.io/overwrite-container-cmd" "true") $all }}{{ end -}}
{{- with $all }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
