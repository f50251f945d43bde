{{/* Begins every object's name. At most 40 characters, so that the longest name made of it still is a label (63). */}}
{{- define "shardtune.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-shardtune" .Release.Name) (contains "shardtune" .Release.Name) -}}
{{- end -}}
{{- /* The name of a Kubernetes Service begins with a letter and has no dots, a release's name may. */ -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $name = printf "shardtune-%s" (trimSuffix "-shardtune" $name) -}}
{{- end -}}
{{- /* A hash keeps two names apart that begin alike. */ -}}
{{- if or (gt (len $name) 40) (contains "." $name) -}}
{{- $name = printf "%s-%s" (replace "." "-" $name | trunc 31 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Labels that select all pods of this release, and no other release's in the same namespace. */}}
{{- define "shardtune.instance" -}}
app.kubernetes.io/name: shardtune
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "shardtune.labels" -}}
{{ include "shardtune.instance" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* Metadata of an object: a list of the context, the name's end, and the label `app` or "". */}}
{{- define "shardtune.metadata" -}}
{{- $context := index . 0 -}}
name: {{ include "shardtune.fullname" $context }}{{ index . 1 }}
namespace: {{ $context.Release.Namespace | quote }}
labels:
  {{- include "shardtune.labels" $context | nindent 2 }}
  {{- with index . 2 }}
  app: {{ . }}
  {{- end }}
{{- end -}}

{{/* Reference of an image: a list of the context and the image's values. */}}
{{- define "shardtune.image" -}}
{{- $context := index . 0 -}}
{{- with index . 1 -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest | quote -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $context.Chart.AppVersion .tag) | quote -}}
{{- end -}}
{{- if .pullPolicy }}
imagePullPolicy: {{ .pullPolicy }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardtune.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create (false) needs serviceAccount.name; name the account that pods run as" -}}
{{- end -}}
{{- default (include "shardtune.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Name of a Secret: a list of the context, the value `existingSecret`, and the end of the default name. */}}
{{- define "shardtune.secret" -}}
{{- index . 1 | default (printf "%s-%s" (include "shardtune.fullname" (index . 0)) (index . 2)) -}}
{{- end -}}

{{- define "shardtune.serviceUrl" -}}
http://{{ include "shardtune.fullname" . }}:8470
{{- end -}}

{{/* What every pod begins with: no root, no token of Kubernetes. */}}
{{- define "shardtune.pod" -}}
serviceAccountName: {{ include "shardtune.serviceAccount" . }}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "shardtune.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where pods may be placed: the values of a component. */}}
{{- define "shardtune.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}
