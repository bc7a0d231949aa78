{{- define "braid.name" -}}
{{ printf "%s-ps" (.Release.Name | trunc 50 | trimSuffix "-") }}
{{- end }}

{{/* Selectors and volumeClaimTemplates cannot change: nothing here may depend on a version. */}}
{{- define "braid.selector" -}}
app.kubernetes.io/name: braid
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: ps
{{- end }}

{{/* On the objects alone. */}}
{{- define "braid.labels" -}}
app.kubernetes.io/part-of: braid
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "braid.config" -}}
{{- $tls := .Values.tls.secretName }}
{{- range $key, $value := .Values.config }}
{{- if not (and $tls (eq $key "allow_insecure")) }}
BRAID_{{ upper $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- if $tls }}
BRAID_TLS_CA: /etc/braid/tls/ca.crt
BRAID_TLS_CERT: /etc/braid/tls/tls.crt
BRAID_TLS_KEY: /etc/braid/tls/tls.key
BRAID_TLS_CLIENT_AUTH: {{ .Values.tls.clientAuth }}
{{- end }}
{{- if .Values.tokensSecret }}
BRAID_TOKENS_FILE: /etc/braid/tokens/tokens
BRAID_TOKEN_FILE: /etc/braid/tokens/server.token
{{- end }}
{{- with .Values.etcd.store }}
BRAID_STORE: {{ . | quote }}
{{- end }}
{{- if .Values.etcd.secretName }}
BRAID_ETCD_CA: /etc/braid/etcd/ca.crt
{{- if .Values.etcd.user }}
BRAID_ETCD_USER: {{ .Values.etcd.user | quote }}
BRAID_ETCD_PASSWORD_FILE: /etc/braid/etcd/password
{{- else }}
BRAID_ETCD_CERT: /etc/braid/etcd/tls.crt
BRAID_ETCD_KEY: /etc/braid/etcd/tls.key
{{- end }}
{{- end }}
BRAID_SERVERS: {{ .Values.servers | quote }}
BRAID_LISTEN: "0.0.0.0:{{ .Values.ports.grpc }}"
BRAID_HEALTH_LISTEN: "0.0.0.0:{{ .Values.ports.health }}"
BRAID_METRICS_LISTEN: "0.0.0.0:{{ .Values.ports.metrics }}"
BRAID_DATA_DIR: /var/lib/braid/ps
{{- end }}
