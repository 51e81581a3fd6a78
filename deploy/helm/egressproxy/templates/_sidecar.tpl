{{/*
For Pods of other charts. A chart that has this one as a dependency, with `mode: sidecar`, writes

  initContainers:
    {{- include "egressproxy.sidecar.initContainer" .Subcharts.egressproxy | nindent 4 }}

and in the same way egressproxy.sidecar.volumes, and egressproxy.sidecar.env in each container that is a client.
*/}}

{{/* An entry of initContainers: it starts before the other containers, and ends after them. */}}
{{- define "egressproxy.sidecar.initContainer" -}}
- {{ include "egressproxy.container" . | nindent 2 | trim }}
{{- end -}}

{{- define "egressproxy.sidecar.volumes" -}}
{{- include "egressproxy.volumes" . | trim -}}
{{- end -}}

{{/* Labels of the Pod: what a PodMonitor of mode sidecar looks for. */}}
{{- define "egressproxy.sidecar.labels" -}}
egressproxy.io/sidecar: "true"
{{- end -}}

{{/* The variables of clients, by name. curl and wget read http_proxy in lower case alone. */}}
{{- define "egressproxy.clientEnv" -}}
{{- $listener := "" -}}
{{- range .Values.listeners -}}
{{- if and (not $listener) (ternary (eq .name $.Values.sidecar.listener) (eq .protocol "egressproxy.io/forward-proxy") (ne $.Values.sidecar.listener "")) -}}
{{- $listener = . -}}
{{- end -}}
{{- end -}}
{{- if and .Values.sidecar.listener (not $listener) -}}
{{- fail (printf "sidecar.listener: no listener is called %s: name one of listeners" .Values.sidecar.listener) -}}
{{- end -}}
{{- if $listener -}}
{{- $host := include "egressproxy.bind" . | fromJsonArray | first -}}
{{- if eq $host "0.0.0.0" -}}{{- $host = "127.0.0.1" -}}{{- else if eq $host "::" -}}{{- $host = "::1" -}}{{- end -}}
{{- if contains ":" $host -}}{{- $host = printf "[%s]" $host -}}{{- end -}}
{{- $proxy := printf "%s://%s:%d" (ternary "https" "http" (hasKey $listener "tls")) $host (int $listener.port) -}}
{{- $direct := concat (list "localhost" "127.0.0.1" "::1") .Values.sidecar.noProxy | join "," -}}
{{- range tuple "HTTP_PROXY" "HTTPS_PROXY" "http_proxy" "https_proxy" }}
{{ . }}: {{ $proxy | quote }}
{{- end }}
{{- range tuple "NO_PROXY" "no_proxy" }}
{{ . }}: {{ $direct | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.sidecar.clientEnv }}
{{ $name }}: {{ tpl $value $ | quote }}
{{- end }}
{{- end -}}

{{/* The same as entries of `env`. */}}
{{- define "egressproxy.sidecar.env" -}}
{{- range $name, $value := include "egressproxy.clientEnv" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}
