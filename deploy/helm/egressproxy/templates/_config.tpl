{{/* The Gateway that the chart makes, as an object. */}}
{{- define "egressproxy.gateway" -}}
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: {{ include "egressproxy.gatewayName" . }}
  namespace: {{ .Release.Namespace | quote }}
  {{- if eq .Values.gateway.kind "Object" }}
  labels:
    {{- include "egressproxy.labels" . | nindent 4 }}
  {{- end }}
  {{- with .Values.gateway.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  gatewayClassName: {{ .Values.gateway.className }}
  {{- if eq .Values.mode "sidecar" }}
  addresses:
  {{- range include "egressproxy.bind" . | fromJsonArray }}
  - type: IPAddress
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  listeners:
  {{- range .Values.listeners }}
  {{- $listener := omit . "servicePort" "nodePort" "appProtocol" "exposed" }}
  {{- /* Gateway API's CRD takes no hyphen there, and the gateway takes both. */}}
  {{- if and (eq $.Values.gateway.kind "Object") (eq .protocol "egressproxy.io/forward-proxy") }}
  {{- $listener = set $listener "protocol" "egressproxy.io/forwardproxy" }}
  {{- end }}
  - {{ toYaml $listener | nindent 4 | trim }}
  {{- end }}
{{- end -}}

{{/* The data of the ConfigMap: file name and text. */}}
{{- define "egressproxy.config" -}}
{{- if and .Values.gateway.create (eq .Values.gateway.kind "File") }}
gateway.yaml: |
  {{- include "egressproxy.gateway" . | nindent 2 }}
{{- end }}
{{- range $name, $manifests := .Values.config }}
{{- if and (eq $name "gateway.yaml") $.Values.gateway.create (eq $.Values.gateway.kind "File") }}
{{- fail "config: gateway.yaml is the file of the Gateway that the chart makes: take another name, or set gateway.create: false" }}
{{- end }}
{{ $name }}: |
  {{- if kindIs "string" $manifests }}
  {{- tpl $manifests $ | nindent 2 }}
  {{- else }}
  {{- range $manifests }}
  ---
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "egressproxy.hasConfig" -}}
{{- if or (include "egressproxy.config" . | trim) .Values.existingConfigMaps -}}
true
{{- end -}}
{{- end -}}
