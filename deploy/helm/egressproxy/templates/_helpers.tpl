{{- define "egressproxy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "egressproxy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "egressproxy.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "egressproxy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "egressproxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "egressproxy.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "egressproxy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels and annotations of an object: (list context SUFFIX NAMESPACE ANNOTATIONS LABELS).
SUFFIX is of the name. NAMESPACE "" is the release's, and - is none. The last two are maps, and may be left out. */}}
{{- define "egressproxy.metadata" -}}
{{- $ := index . 0 -}}
{{- $more := concat . (list dict dict) -}}
{{- $annotations := merge dict (index $more 3 | default dict) $.Values.commonAnnotations -}}
name: {{ include "egressproxy.fullname" $ }}{{ index . 1 }}
{{- if ne (index . 2) "-" }}
namespace: {{ index . 2 | default $.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "egressproxy.labels" $ | nindent 2 }}
  {{- with index $more 4 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "egressproxy.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .tag }}:{{ .tag }}{{ else if not .digest }}:{{ $.Chart.AppVersion }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "egressproxy.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "egressproxy.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "egressproxy.source" -}}
{{- .Values.source | default (ternary "files" "kubernetes" (eq .Values.mode "sidecar")) -}}
{{- end -}}

{{- define "egressproxy.gatewayName" -}}
{{- .Values.gateway.name | default (include "egressproxy.fullname" .) -}}
{{- end -}}

{{/* A list of addresses. */}}
{{- define "egressproxy.bind" -}}
{{- .Values.bind | default (list (ternary "127.0.0.1" "0.0.0.0" (eq .Values.mode "sidecar"))) | toJson -}}
{{- end -}}

{{/* Where metrics and probes are: the kubelet and scrapers come to the Pod's address. */}}
{{- define "egressproxy.metricsAddress" -}}
{{- $first := first .Values.bind | default "0.0.0.0" -}}
{{- if contains ":" $first -}}
[::]:{{ .Values.metrics.port }}
{{- else -}}
0.0.0.0:{{ .Values.metrics.port }}
{{- end -}}
{{- end -}}

{{- define "egressproxy.drainDelay" -}}
{{- ternary 0 .Values.drainDelay (eq .Values.mode "sidecar") -}}
{{- end -}}

{{- define "egressproxy.gracePeriod" -}}
{{- .Values.terminationGracePeriodSeconds | default (add (include "egressproxy.drainDelay" .) .Values.drainTimeout 5) -}}
{{- end -}}

{{/* The namespaces that are watched, as a list; empty: all. */}}
{{- define "egressproxy.watchNamespaces" -}}
{{- if .Values.watchNamespaces -}}
{{- append .Values.watchNamespaces .Release.Namespace | uniq | sortAlpha | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/* Requests and limits. A process that serves takes some 50 MB when idle, each further worker 30 MB. */}}
{{- define "egressproxy.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else -}}
{{- $workers := int .Values.workers -}}
{{- $core := dict "deployment" 500 "daemonset" 100 "sidecar" 50 -}}
requests:
  cpu: {{ mul $workers (get $core .Values.mode) }}m
  memory: {{ add 64 (mul 32 $workers) (ternary 32 0 (gt $workers 1)) }}Mi
limits:
  memory: {{ add 128 (mul (ternary 128 384 (eq .Values.mode "sidecar")) $workers) }}Mi
{{- end -}}
{{- end -}}

{{/* What does not fit together, told before anything is installed. */}}
{{- define "egressproxy.validate" -}}
{{- $several := or (eq .Values.mode "daemonset") (gt (int .Values.replicas) 1) .Values.autoscaling.enabled -}}
{{- if and (ne .Values.mode "sidecar") $several (hasKey .Values.state.volume "persistentVolumeClaim") -}}
{{- fail "state.volume: a claim is for one Pod, since only one process can use --state-dir: set mode: deployment, replicas: 1, autoscaling.enabled: false and updateStrategy: {type: Recreate}, or leave the volume out" -}}
{{- end -}}
{{- if and (eq .Values.gateway.kind "Object") .Values.gateway.create (eq (include "egressproxy.source" .) "files") -}}
{{- fail "gateway.kind: Object is for a gateway that watches the API server: set source: kubernetes, or gateway.kind: File" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") (eq .Values.source "kubernetes") -}}
{{- fail "mode: sidecar reads files, because the service account of its Pod is the workload's: leave source out, and name ConfigMaps in existingConfigMaps" -}}
{{- end -}}
{{- if and .Values.hostNetwork (ne .Values.mode "daemonset") -}}
{{- fail (printf "hostNetwork is for mode: daemonset, and the mode is %s: set mode: daemonset, or hostNetwork: false" .Values.mode) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (ne .Values.mode "deployment") -}}
{{- fail (printf "autoscaling is for mode: deployment, and the mode is %s: set autoscaling.enabled: false" .Values.mode) -}}
{{- end -}}
{{- if and (eq (include "egressproxy.source" .) "files") (not .Values.gateway.create) (not .Values.config) (not .Values.existingConfigMaps) -}}
{{- fail "there is no configuration: set config or existingConfigMaps, or gateway.create: true" -}}
{{- end -}}
{{- if not (or .Values.listeners (eq .Values.mode "sidecar")) -}}
{{- fail "listeners is empty: name the ports that the gateway serves, also where gateway.create is false" -}}
{{- end -}}
{{- if and .Values.networkPolicy.clients.enabled (eq .Values.networkPolicy.clients.kind "NetworkPolicy") (not .Values.networkPolicy.clients.namespaces) -}}
{{- fail "networkPolicy.clients.namespaces is empty: a NetworkPolicy holds in one namespace, so name those of the clients, or set networkPolicy.clients.kind to AdminNetworkPolicy or CiliumClusterwideNetworkPolicy, which go by namespaceLabels" -}}
{{- end -}}
{{- if and .Values.networkPolicy.ingress.enabled (ne .Values.mode "sidecar") (or .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled) (not .Values.networkPolicy.ingress.metricsFrom) -}}
{{- fail "networkPolicy.ingress.metricsFrom is empty, so that nobody may scrape: name the peers of your Prometheus, as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled (ne (toString .Values.podDisruptionBudget.minAvailable) "") (ne (toString .Values.podDisruptionBudget.maxUnavailable) "") -}}
{{- fail "podDisruptionBudget has minAvailable and maxUnavailable: set one of them to \"\"" -}}
{{- end -}}
{{- end -}}
