{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* tierd's head beside Ray's: a driver must be on one of Ray's nodes. The same pod under a StatefulSet and under KubeRay. */}}
{{- define "slacktier.headTemplate" -}}
{{- $values := .Values.tierd -}}
metadata:
  {{- include "slacktier.podMetadata" (list . "head" $values) | nindent 2 }}
  {{- include "slacktier.rayAnnotations" (list . $values dict) | nindent 2 }}
spec:
  serviceAccountName: {{ include "slacktier.fullname" . }}-head
  # Only tierd asks the API server whose a token is, and that is all that its token is good for.
  automountServiceAccountToken: false
  # A driver finds its Ray node among the processes that it sees.
  shareProcessNamespace: true
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "slacktier.podSecurity" (list . (dict "type" "RuntimeDefault") list) | nindent 4 }}
  {{- include "slacktier.scheduling" $values | nindent 2 }}
  {{- with $values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
  - name: ray-head
    {{- include "slacktier.image" (list . $values.image) | nindent 4 }}
    {{- include "slacktier.rayCommand" . | nindent 4 }}
    args:
    - start
    - --head
    - --port=6379
    - --include-dashboard=false
    - --node-name=$(NODE_NAME)-head
    - --num-cpus=0
    {{- include "slacktier.rayPorts" . | nindent 4 }}
    env: {{ include "slacktier.rayEnv" . | nindent 4 }}
    ports:
    - {name: gcs-server, containerPort: 6379}
    {{- include "slacktier.rayProbes" . | nindent 4 }}
    securityContext: {{ include "slacktier.containerSecurity" . | nindent 6 }}
    resources: {{ toYaml .Values.ray.headResources | nindent 6 }}
    volumeMounts: {{ include "slacktier.rayMounts" . | nindent 4 }}
  - name: tierd
    {{- include "slacktier.image" (list . $values.image) | nindent 4 }}
    command: [slacktier, tierd]
    args:
    - --state=/var/lib/slacktier/tierd.sqlite
    - --token-review
    - --admin-account={{ .Release.Namespace }}:{{ include "slacktier.operatorAccount" . }}
    {{- $own := printf "%s:%s" .Release.Namespace (include "slacktier.fullname" .) }}
    {{- range concat (list (print $own "-test") (print $own "-uninstall")) $values.readerAccounts }}
    - --reader-account={{ . }}
    {{- end }}
    - --decide=operator
    - --host=0.0.0.0
    - --port={{ $values.service.port }}
    - --ray-address=$(POD_IP):6379
    - --run-dir=/run/slacktier
    - --advertise=$(POD_IP)
    - --lease-s={{ $values.leaseS }}
    - --requests-per-s={{ $values.requestsPerS }}
    {{- if $values.tls.secretName }}
    - --tls-cert=/etc/slacktier/tls/tls.crt
    - --tls-key=/etc/slacktier/tls/tls.key
    {{- end }}
    env: {{ include "slacktier.rayEnv" . | nindent 4 }}
    ports:
    - {name: http, containerPort: {{ $values.service.port }}}
    {{- $probe := dict "path" "/healthz" "port" "http" "scheme" (ternary "HTTPS" "HTTP" (ne $values.tls.secretName "")) }}
    startupProbe: {httpGet: {{ toJson $probe }}, periodSeconds: 2, failureThreshold: 90}
    livenessProbe: {httpGet: {{ toJson $probe }}, periodSeconds: 10, timeoutSeconds: 5}
    # Not /readyz: a head that waits for Ray still tells serving pods where their rows are.
    readinessProbe: {httpGet: {{ toJson $probe }}, periodSeconds: 5, timeoutSeconds: 5}
    securityContext: {{ include "slacktier.containerSecurity" . | nindent 6 }}
    resources: {{ toYaml $values.resources | nindent 6 }}
    volumeMounts:
    {{- include "slacktier.rayMounts" . | nindent 4 }}
    - {name: state, mountPath: /var/lib/slacktier}
    - {name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- if $values.tls.secretName }}
    - {name: tls, mountPath: /etc/slacktier/tls, readOnly: true}
    {{- end }}
  volumes:
  {{- include "slacktier.rayVolumes" . | nindent 2 }}
  - name: state
    {{- if $values.persistence.enabled }}
    persistentVolumeClaim: {claimName: {{ default (printf "%s-head" (include "slacktier.fullname" .)) $values.persistence.existingClaim }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: api-access
    projected:
      sources:
      - serviceAccountToken: {expirationSeconds: 3600, path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
  {{- with $values.tls.secretName }}
  - name: tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
{{- end }}
