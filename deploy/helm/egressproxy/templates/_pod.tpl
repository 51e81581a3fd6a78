{{/* The command line of `egressproxy run`, as a list. */}}
{{- define "egressproxy.args" -}}
- run
{{- if include "egressproxy.hasConfig" . }}
- --config=/etc/egressproxy
{{- end }}
{{- range include "egressproxy.bind" . | fromJsonArray }}
- "--bind={{ . }}"
{{- end }}
{{- if eq (include "egressproxy.source" .) "kubernetes" }}
- --source=kubernetes
{{- range include "egressproxy.watchNamespaces" . | fromJsonArray }}
- "--watch-namespace={{ . }}"
{{- end }}
{{- range .Values.gatewayNamespaces }}
- "--gateway-namespace={{ . }}"
{{- end }}
{{- if ne .Values.leaseNamespace "default" }}
- "--lease-namespace={{ .Values.leaseNamespace }}"
{{- end }}
{{- with .Values.secretSelector }}
- "--secret-selector={{ . }}"
{{- end }}
{{- if and .Values.service.enabled (ne .Values.mode "sidecar") }}
- "--publish-service=$(POD_NAMESPACE)/{{ include "egressproxy.fullname" . }}"
{{- end }}
{{- end }}
{{- if .Values.state.enabled }}
- --state-dir=/var/lib/egressproxy
{{- if include "egressproxy.hasStateKey" . }}
- --state-key=/var/run/secrets/egressproxy-state/key
{{- end }}
{{- end }}
{{- range .Values.secrets }}
- "--secret={{ .as | default (printf "%s/%s" $.Release.Namespace .secretName) }}=/var/run/secrets/egressproxy/{{ .secretName }}"
{{- end }}
- "--metrics={{ include "egressproxy.metricsAddress" . }}"
- "--workers={{ .Values.workers }}"
{{- if ne (include "egressproxy.drainDelay" .) "0" }}
- "--drain-delay={{ include "egressproxy.drainDelay" . }}"
{{- end }}
- "--drain-timeout={{ .Values.drainTimeout }}"
- "--log-level={{ .Values.log.level }}"
- "--log-format={{ .Values.log.format }}"
- "--access-log={{ .Values.log.access }}"
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "egressproxy.hasStateKey" -}}
{{- if and .Values.state.keySecret (eq (include "egressproxy.source" .) "kubernetes") -}}
true
{{- end -}}
{{- end -}}

{{- define "egressproxy.probe" -}}
{{- $chosen := index . 2 -}}
{{- $base := index . 1 -}}
{{- if or (hasKey $chosen "exec") (hasKey $chosen "tcpSocket") (hasKey $chosen "grpc") -}}
{{- $base = omit $base "httpGet" -}}
{{- end -}}
{{ index . 0 }}:
  {{- merge dict $chosen $base | toYaml | nindent 2 }}
{{- end -}}

{{- define "egressproxy.probes" -}}
{{- $ready := dict "path" "/readyz" "port" (int .Values.metrics.port) -}}
{{- $alive := dict "path" "/livez" "port" (int .Values.metrics.port) -}}
{{- /* The containers of a Pod begin when its sidecar is ready. A gateway of its own may wait for the API server. */}}
{{ include "egressproxy.probe" (list "startupProbe" (dict "httpGet" (ternary $ready $alive (eq .Values.mode "sidecar")) "periodSeconds" 1 "timeoutSeconds" 2 "failureThreshold" 60) .Values.startupProbe) }}
{{ include "egressproxy.probe" (list "livenessProbe" (dict "httpGet" $alive "periodSeconds" 10 "timeoutSeconds" 3 "failureThreshold" 3) .Values.livenessProbe) }}
{{ include "egressproxy.probe" (list "readinessProbe" (dict "httpGet" $ready "periodSeconds" 5 "timeoutSeconds" 2 "failureThreshold" 2) .Values.readinessProbe) }}
{{- end -}}

{{/* The container of the gateway, without the dash of a list. */}}
{{- define "egressproxy.container" -}}
name: egressproxy
image: {{ include "egressproxy.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
restartPolicy: Always
{{- end }}
args:
{{ include "egressproxy.args" . }}
env:
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: EGRESSPROXY_ZONE
  {{- if .Values.zone }}
  value: {{ .Values.zone | quote }}
  {{- else }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
  {{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
{{ toYaml . }}
{{- end }}
ports:
{{- range .Values.listeners }}
- containerPort: {{ .port }}
  protocol: TCP
{{- if eq .protocol "egressproxy.io/dns" }}
- containerPort: {{ .port }}
  protocol: UDP
{{- end }}
{{- end }}
- name: metrics
  containerPort: {{ .Values.metrics.port }}
  protocol: TCP
{{ include "egressproxy.probes" . | trim }}
{{- with .Values.lifecycle }}
lifecycle:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- include "egressproxy.resources" . | nindent 2 }}
securityContext:
  {{- if eq .Values.mode "sidecar" }}
  {{- merge dict .Values.securityContext (pick .Values.podSecurityContext "runAsNonRoot" "runAsUser" "runAsGroup" "seccompProfile" "seLinuxOptions" "appArmorProfile") | toYaml | nindent 2 }}
  {{- else }}
  {{- toYaml .Values.securityContext | nindent 2 }}
  {{- end }}
{{- $mounts := include "egressproxy.volumeMounts" . | trim }}
{{- if $mounts }}
volumeMounts:
{{ $mounts }}
{{- end }}
{{- end -}}

{{- define "egressproxy.volumeMounts" -}}
{{- if include "egressproxy.hasConfig" . }}
- name: egressproxy-config
  mountPath: /etc/egressproxy
  readOnly: true
{{- end }}
{{- if .Values.state.enabled }}
- name: egressproxy-state
  mountPath: /var/lib/egressproxy
{{- if include "egressproxy.hasStateKey" . }}
- name: egressproxy-state-key
  mountPath: /var/run/secrets/egressproxy-state
  readOnly: true
{{- end }}
{{- end }}
{{- range .Values.secrets }}
- name: egressproxy-secret-{{ .secretName | replace "." "-" | trunc 43 | trimSuffix "-" }}
  mountPath: /var/run/secrets/egressproxy/{{ .secretName }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "egressproxy.volumes" -}}
{{- if include "egressproxy.hasConfig" . }}
- name: egressproxy-config
  projected:
    sources:
    {{- if include "egressproxy.config" . | trim }}
    - configMap:
        name: {{ include "egressproxy.fullname" . }}
    {{- end }}
    {{- range .Values.existingConfigMaps }}
    - configMap:
        {{- toYaml . | nindent 8 }}
    {{- end }}
{{- end }}
{{- if .Values.state.enabled }}
- name: egressproxy-state
  {{- if .Values.state.volume }}
  {{- toYaml .Values.state.volume | nindent 2 }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.state.sizeLimit }}
  {{- end }}
{{- if include "egressproxy.hasStateKey" . }}
- name: egressproxy-state-key
  secret:
    secretName: {{ .Values.state.keySecret }}
    defaultMode: 0440
    items:
    - key: key
      path: key
{{- end }}
{{- end }}
{{- range .Values.secrets }}
- name: egressproxy-secret-{{ .secretName | replace "." "-" | trunc 43 | trimSuffix "-" }}
  secret:
    secretName: {{ .secretName }}
    {{- if ne $.Values.mode "sidecar" }}
    defaultMode: 0440
    {{- end }}
    {{- if .optional }}
    optional: true
    {{- end }}
    {{- with .items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Pod template of Deployment and DaemonSet. */}}
{{- define "egressproxy.podTemplate" -}}
metadata:
  labels:
    {{- include "egressproxy.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
    {{- with merge dict .Values.podLabels .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: egressproxy
    {{- range $name, $value := .Values.podAnnotations }}
    {{ $name }}: {{ tpl (toString $value) $ | quote }}
    {{- end }}
spec:
  serviceAccountName: {{ include "egressproxy.serviceAccountName" . }}
  automountServiceAccountToken: {{ include "egressproxy.automount" . }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "egressproxy.gracePeriod" . }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- if .Values.hostNetwork }}
  hostNetwork: true
  {{- end }}
  {{- with .Values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" .Values.hostNetwork) }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- with .Values.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
  {{- if eq .Values.mode "deployment" }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- tpl (toYaml .Values.topologySpreadConstraints) . | nindent 2 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "egressproxy.selectorLabels" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
    {{- end }}
    {{- end }}
  {{- end }}
  {{- with .Values.initContainers }}
  initContainers:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
  containers:
  - {{ include "egressproxy.container" . | nindent 4 | trim }}
  {{- with .Values.extraContainers }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  {{- with include "egressproxy.volumes" . | trim }}
  volumes:
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "egressproxy.automount" -}}
{{- if kindIs "bool" .Values.serviceAccount.automount -}}
{{- .Values.serviceAccount.automount -}}
{{- else -}}
{{- eq (include "egressproxy.source" .) "kubernetes" -}}
{{- end -}}
{{- end -}}
