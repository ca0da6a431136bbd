{{/* Labels of every object, beside app.kubernetes.io/name. Not of pods: there a new chart alone would restart everything. */}}
{{- define "portal.labels" -}}
app.kubernetes.io/part-of: gpu-cloud
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Those of an object of one program: (list $ "web"). */}}
{{- define "portal.roleLabels" -}}
app.kubernetes.io/name: {{ index . 1 }}
{{ include "portal.labels" (index . 0) }}
{{- end }}

{{- define "portal.host" -}}
{{ (urlParse .Values.origin).hostname }}
{{- end }}

{{- define "portal.appsOrigin" -}}
{{- with urlParse .Values.origin }}{{ $.Values.appsOrigin | default (printf "%s://apps.%s" .scheme .host) }}{{ end }}
{{- end }}

{{- define "portal.serveOrigin" -}}
{{- with urlParse .Values.origin }}{{ $.Values.serveOrigin | default (printf "%s://serve.%s" .scheme .host) }}{{ end }}
{{- end }}

{{/* The data of the ConfigMap and of the Secret. */}}
{{- define "portal.settings" -}}
PORTAL_ORIGIN: {{ .Values.origin | quote }}
PORTAL_APPS_ORIGIN: {{ include "portal.appsOrigin" . | quote }}
PORTAL_SERVE_ORIGIN: {{ include "portal.serveOrigin" . | quote }}
PORTAL_INGRESS_NAMESPACE: {{ .Values.ingress.controllerNamespace | quote }}
{{- range $name, $value := .Values.settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "portal.secrets" -}}
{{- range $name, $value := .Values.secret.values }}
{{ $name }}: {{ $value | b64enc | quote }}
{{- end }}
{{- end }}

{{- define "portal.secretName" -}}
{{ .Values.secret.existing | default "portal" }}
{{- end }}

{{/* Changes with what the chart knows of the settings. */}}
{{- define "portal.checksum" -}}
{{ list (include "portal.settings" .) (include "portal.secrets" .) (include "portal.secretName" .) | join "\n" | sha256sum }}
{{- end }}

{{/* Where DATABASE_URL is. */}}
{{- define "portal.database" -}}
{{- with .Values.secretRefs.DATABASE_URL -}}
{name: {{ .name }}, key: {{ .key }}}
{{- else -}}
{name: {{ include "portal.secretName" . }}, key: DATABASE_URL}
{{- end -}}
{{- end }}

{{/* metadata of pods: (list $ "web"). Changed settings restart pods. */}}
{{- define "portal.podMetadata" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}
labels:
  app.kubernetes.io/name: {{ $role }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ include "portal.checksum" $root }}
  {{- with merge (dict) (index $root.Values $role).podAnnotations $root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The part of a pod's spec that all programs share: (list $ "web"). */}}
{{- define "portal.podSpec" -}}
{{- $values := (index . 0).Values }}{{ $own := index $values (index . 1) -}}
enableServiceLinks: false
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with coalesce $own.nodeSelector $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with coalesce $own.tolerations $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with coalesce $own.affinity $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "portal.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Settings and secrets of a program that has them all. */}}
{{- define "portal.envFrom" -}}
envFrom:
  - configMapRef: {name: portal}
  {{- if or .Values.secret.existing .Values.secret.values }}
  - secretRef: {name: {{ include "portal.secretName" . }}}
  {{- end }}
{{- end }}

{{- define "portal.secretRefs" -}}
{{- range $name, $ref := .Values.secretRefs }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $ref.name }}, key: {{ $ref.key }}}}
{{- end }}
{{- end }}

{{/* Variables that the values add: (list $ "web"). */}}
{{- define "portal.extraEnv" -}}
{{- $values := (index . 0).Values -}}
{{- with concat $values.extraEnv (index $values (index . 1)).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Resources, confinement and mounts of a container: (list $ "web"). */}}
{{- define "portal.container" -}}
{{- $values := (index . 0).Values -}}
resources:
  {{- toYaml (index $values (index . 1)).resources | nindent 2 }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "portal.volumes" -}}
{{- $values := (index . 0).Values -}}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: {{ (index $values (index . 1)).tmpSize }}}}
  {{- with $values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* One replica a node where there are enough: (list $ "web"). */}}
{{- define "portal.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/name: {{ index . 1 }}}
{{- end }}

{{/* Probes of programs that touch a file whenever they have done something. */}}
{{- define "portal.alive" -}}
startupProbe:
  exec: {command: [test, -e, /tmp/alive]}
  periodSeconds: 5
  failureThreshold: 120
livenessProbe:
  exec: {command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -10)"']}
  periodSeconds: 60
  timeoutSeconds: 10
{{- end }}

{{/* metadata of an Ingress without its name: (list $ annotations). */}}
{{- define "portal.ingressMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "portal.labels" $root | nindent 2 }}
{{- with merge (dict) (index . 1) $root.Values.ingress.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Class and TLS of an Ingress: (list $ host secret). */}}
{{- define "portal.ingressSpec" -}}
{{- with (index . 0).Values.ingress.className }}
ingressClassName: {{ . }}
{{- end }}
{{- if index . 2 }}
tls:
  - hosts: [{{ index . 1 | quote }}]
    secretName: {{ index . 2 }}
{{- end }}
{{- end }}
