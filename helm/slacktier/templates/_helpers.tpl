{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "slacktier.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters: the longest name that is built from it must still fit 63. */}}
{{- define "slacktier.fullname" -}}
{{- $name := include "slacktier.name" . -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Takes (list ROOT COMPONENT). */}}
{{- define "slacktier.selectorLabels" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "slacktier.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "slacktier.labels" -}}
{{- $root := first . -}}
{{ include "slacktier.selectorLabels" . }}
app.kubernetes.io/part-of: slacktier
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes (list ROOT IMAGE). */}}
{{- define "slacktier.image" -}}
{{- $image := last . -}}
image: {{ printf "%s:%s" $image.repository (default (first .).Chart.AppVersion $image.tag) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- define "slacktier.operatorAccount" -}}
{{ default (printf "%s-operator" (include "slacktier.fullname" .)) .Values.operator.serviceAccount.name }}
{{- end }}

{{- define "slacktier.tierdUrl" -}}
{{ ternary "https" "http" (ne .Values.tierd.tls.secretName "") }}://{{ include "slacktier.fullname" . }}-head.{{ .Release.Namespace }}.svc:{{ .Values.tierd.service.port }}
{{- end }}

{{- define "slacktier.isKuberay" -}}
{{- if or (eq .Values.ray.mode "kuberay") (and (eq .Values.ray.mode "auto") (.Capabilities.APIVersions.Has "ray.io/v1/RayCluster")) }}true{{ end }}
{{- end }}

{{/* A pod's security context. Takes (list ROOT SECCOMP GROUPS): SECCOMP as in a securityContext. */}}
{{- define "slacktier.podSecurity" -}}
{{- $root := first . -}}
runAsNonRoot: true
runAsUser: {{ $root.Values.security.runAsUser }}
runAsGroup: {{ $root.Values.security.runAsUser }}
fsGroup: {{ $root.Values.security.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
{{- with last . }}
supplementalGroups: {{ toJson . }}
{{- end }}
seccompProfile: {{ toJson (index . 1) }}
{{- end }}

{{- define "slacktier.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A bearer token for tierd, renewed by the kubelet. */}}
{{- define "slacktier.tokenVolume" -}}
- name: slacktier-token
  projected:
    sources:
    - serviceAccountToken: {audience: slacktier, expirationSeconds: 3600, path: token}
{{- end }}

{{/* Where a pod runs. Takes a part's values; affinity is apart, since workers add to it. */}}
{{- define "slacktier.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 0 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "slacktier.podMetadata" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
labels:
  {{- /* Not the chart's version: an upgrade that changes nothing of a pod lets it live on, with the tables in its memory. */}}
  {{- include "slacktier.selectorLabels" (list $root (index . 1)) | nindent 2 }}
  app.kubernetes.io/part-of: slacktier
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
