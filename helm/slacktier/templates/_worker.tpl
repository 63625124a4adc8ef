{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* A Ray node that stages to disks (nvme) or keeps tables in memory (memory). Takes (list ROOT GROUP). */}}
{{- define "slacktier.workerTemplate" -}}
{{- $root := first . }}{{ $group := last . }}{{ $values := index $root.Values.workers $group -}}
{{- $isNvme := eq $group "nvme" }}{{ $blocks := ternary ($values.blockVolumes | default list) list $isNvme -}}
{{- $rdma := and (not $isNvme) $values.rdma.enabled }}{{ $huge := ternary "" (dig "hugepages" "size2Mi" "" $values) $isNvme -}}
{{- $more := dict }}{{ if and $rdma $values.rdma.networks }}{{ $more = dict "k8s.v1.cni.cncf.io/networks" $values.rdma.networks }}{{ end -}}
metadata:
  {{- include "slacktier.podMetadata" (list $root $group $values) | nindent 2 }}
    slacktier.dev/ray-worker: "true"
  {{- include "slacktier.rayAnnotations" (list $root $values $more) | nindent 2 }}
spec:
  serviceAccountName: {{ include "slacktier.fullname" $root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- $seccomp := dict "type" $root.Values.security.seccompType }}
  {{- if eq $root.Values.security.seccompType "Localhost" }}{{ $seccomp = set $seccomp "localhostProfile" $root.Values.security.seccompLocalhostProfile }}{{ end }}
  securityContext:
    {{- include "slacktier.podSecurity" (list $root $seccomp (ternary (list $values.blockDeviceGroup) list (gt (len $blocks) 0))) | nindent 4 }}
  {{- include "slacktier.scheduling" $values | nindent 2 }}
  affinity: {{ include "slacktier.workerAffinity" . | nindent 4 }}
  containers:
  - name: ray-worker
    {{- include "slacktier.image" (list $root $root.Values.tierd.image) | nindent 4 }}
    {{- include "slacktier.rayCommand" $root | nindent 4 }}
    args:
    - start
    - --address={{ include "slacktier.fullname" $root }}-head.{{ $root.Release.Namespace }}.svc:6379
    # A TierPool's members are on Kubernetes' nodes, so Ray's bear their names.
    - --node-name=$(NODE_NAME)
    - --num-cpus=1
    - --resources={{ toJson (merge (ternary (dict "nvme" 8) dict $isNvme) (dict "memory_node" 64) (ternary (dict "rdma" 1) dict $rdma)) }}
    {{- include "slacktier.rayPorts" $root | nindent 4 }}
    env: {{ include "slacktier.rayEnv" $root | nindent 4 }}
    {{- include "slacktier.rayProbes" $root | nindent 4 }}
    securityContext: {{ include "slacktier.containerSecurity" $root | nindent 6 }}
    {{- $extra := dict }}
    {{- if $rdma }}{{ $extra = set $extra $values.rdma.resourceName 1 }}{{ end }}
    {{- if $huge }}{{ $extra = set $extra "hugepages-2Mi" $huge }}{{ end }}
    resources: {{ toYaml (merge (dict "limits" $extra "requests" (deepCopy $extra)) (deepCopy $values.resources)) | nindent 6 }}
    volumeMounts:
    {{- include "slacktier.rayMounts" $root | nindent 4 }}
    {{- if and $isNvme $values.hostPath }}
    - {name: disk, mountPath: {{ $values.mountPath }}}
    {{- end }}
    {{- if $huge }}
    - {name: hugepages, mountPath: /dev/hugepages}
    {{- end }}
    {{- range $root.Values.workers.sources }}
    - {name: source-{{ .claimName }}, mountPath: /sources/{{ .claimName }}, readOnly: true}
    {{- end }}
    {{- with $blocks }}
    volumeDevices:
    {{- range $index, $volume := . }}
    - {name: block{{ $index }}, devicePath: {{ $volume.devicePath }}}
    {{- end }}
    {{- end }}
  volumes:
  {{- include "slacktier.rayVolumes" $root | nindent 2 }}
  {{- if and $isNvme $values.hostPath }}
  - name: disk
    hostPath: {path: {{ $values.hostPath }}, type: Directory}
  {{- end }}
  {{- if $huge }}
  - {name: hugepages, emptyDir: {medium: HugePages-2Mi}}
  {{- end }}
  {{- range $root.Values.workers.sources }}
  - name: source-{{ .claimName }}
    persistentVolumeClaim: {claimName: {{ .claimName }}, readOnly: true}
  {{- end }}
{{- end }}

{{/* One Ray node per Kubernetes node: both bear the same name. Where both groups could run, the disks need theirs. */}}
{{- define "slacktier.workerAffinity" -}}
{{- $root := first . }}{{ $values := index $root.Values.workers (last .) -}}
{{- $nvme := $root.Values.workers.nvme -}}
{{- $own := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "slacktier.dev/ray-worker" "true" "app.kubernetes.io/instance" $root.Release.Name)) -}}
{{- $affinity := deepCopy $values.affinity -}}
{{- $anti := $affinity.podAntiAffinity | default dict -}}
{{- $anti = set $anti "requiredDuringSchedulingIgnoredDuringExecution" (append ($anti.requiredDuringSchedulingIgnoredDuringExecution | default list) $own) -}}
{{- if and (eq (last .) "memory") $nvme.enabled $nvme.nodeSelector (not $affinity.nodeAffinity) -}}
{{- $terms := list -}}
{{- range $key, $value := $nvme.nodeSelector -}}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" $key "operator" "NotIn" "values" (list $value)))) -}}
{{- end -}}
{{- $affinity = set $affinity "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- end -}}
{{ toYaml (set $affinity "podAntiAffinity" $anti) }}
{{- end }}
