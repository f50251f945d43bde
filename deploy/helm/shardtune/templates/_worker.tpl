{{/* Parts of workers' pods. */}}

{{- define "shardtune.workerResources" -}}
{{- $limits := deepCopy (default dict .Values.workers.resources.limits) -}}
{{- if .Values.workers.gpusPerHost -}}
{{- $_ := set $limits .Values.workers.gpuResource (printf "%d" (int .Values.workers.gpusPerHost)) -}}
{{- end -}}
{{- toJson (dict "requests" (default dict .Values.workers.resources.requests) "limits" $limits) -}}
{{- end -}}

{{- define "shardtune.workerEnv" -}}
{{- range $name, $value := .Values.workers.env }}
- {{ toJson (dict "name" $name "value" $value) }}
{{- end }}
{{- end -}}

{{- define "shardtune.workerVolumeMounts" -}}
- {name: work, mountPath: /work}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- range .Values.workers.volumeMounts }}
- {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "shardtune.workerVolumes" -}}
- name: work
  emptyDir: {sizeLimit: {{ .Values.workers.storage.work | quote }}}
- name: tmp
  emptyDir: {}
# Shared memory of NCCL, Ray and data loaders; Kubernetes gives 64 MiB.
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.workers.storage.sharedMemory | quote }}}
{{- range .Values.workers.volumes }}
- {{ toJson . }}
{{- end }}
{{- end -}}

{{/* Whole hosts, because co-tenants on a host would disturb the measurement: a list of the name and value of a label. */}}
{{- define "shardtune.wholeHosts" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{ toJson (dict (index . 0) (index . 1)) }}
{{- end -}}

{{- define "shardtune.workerAnnotations" -}}
{{- with .Values.workers.podAnnotations }}
annotations: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* A worker of one host: a list of the context and the arguments that its kind adds. */}}
{{- define "shardtune.oneHostPod" -}}
{{- $context := index . 0 -}}
{{- with $context -}}
{{ include "shardtune.pod" . }}
# The worker hands its run back on SIGTERM; a longer grace period would only hold the GPUs.
terminationGracePeriodSeconds: 30
{{- include "shardtune.placement" .Values.workers | nindent 0 }}
{{ include "shardtune.wholeHosts" (list "app" (printf "%s-worker" (include "shardtune.fullname" .))) }}
containers:
  - name: worker
    image: {{ include "shardtune.image" (list . .Values.images.worker) | nindent 4 | trim }}
    {{- $args := list "--service" (include "shardtune.serviceUrl" .) "--work-dir" "/work/worker" "--name" "$(POD_NAME)" }}
    args: {{ toJson (concat $args (index $ 1) .Values.workers.args) }}
    env:
      - name: POD_NAME
        valueFrom:
          fieldRef: {fieldPath: metadata.name}
      # The worker is process 1 and removes the key from its environment; ranks could read a file.
      - name: SHARDTUNE_API_KEY
        valueFrom:
          secretKeyRef: {name: {{ include "shardtune.secret" (list . .Values.workers.existingSecret "worker") }}, key: key}
      {{- include "shardtune.workerEnv" . | nindent 6 }}
    resources: {{ include "shardtune.workerResources" . }}
    {{- include "shardtune.containerSecurity" . | nindent 4 }}
    volumeMounts:
      {{- include "shardtune.workerVolumeMounts" . | nindent 6 }}
volumes:
  {{- include "shardtune.workerVolumes" . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Labels of a pod of a gang. */}}
{{- define "shardtune.gangLabels" -}}
{{ include "shardtune.instance" . }}
shardtune.io/gang: "true"
shardtune.io/asks-service: "true"
{{- end -}}

{{/* A host of a gang whose pods start Ray among themselves (JobSet, Kubeflow Trainer). */}}
{{- define "shardtune.gangPod" -}}
{{- $gang := printf "%s-gang" (include "shardtune.fullname" .) -}}
{{- $hosts := int .Values.workers.hosts -}}
{{ include "shardtune.pod" . }}
terminationGracePeriodSeconds: 30
restartPolicy: Never
{{- include "shardtune.placement" .Values.workers | nindent 0 }}
{{ include "shardtune.wholeHosts" (list "shardtune.io/gang" "true") }}
containers:
  - name: node
    image: {{ include "shardtune.image" (list . .Values.images.worker) | nindent 4 | trim }}
    # The worker reads the key from its standard input, once. Ranks have its user, and could read an environment or a file.
    # bash from 5.1 puts so short a text into a pipe; older ones write a file.
    command:
      - bash
      - -c
      - |
        trap 'exit 143' TERM
        [ "$JOB_COMPLETION_INDEX" = 0 ] || SHARDTUNE_API_KEY=
        exec <<<"$SHARDTUNE_API_KEY"
        unset SHARDTUNE_API_KEY
        # Ray's command ends at once where the first pod has no address yet: it may start later than this one.
        head=${1#--address=}
        until getent ahosts "${head%:*}" >/dev/null ||
            [ "$SECONDS" -ge "$RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT" ]; do sleep 1; done
        # A new process, whose environment has no key. It gets the SIGTERM of a pod that is deleted; Ray would kill the worker.
        exec bash -c '
            stop() {
                stopped=yes
                # The worker of the first pod ends its ranks and hands its run back; the other pods keep their hosts up meanwhile.
                [ "$JOB_COMPLETION_INDEX" = 0 ] || sleep 10
                kill -TERM $(cat "/proc/$ray/task/$ray/children") 2>/dev/null || kill -TERM "$ray" 2>/dev/null
            }
            trap stop TERM
            ray symmetric-run "$@" <&0 &
            ray=$!
            [ -z "$stopped" ] || stop
            # A signal ends `wait` while Ray is still running.
            while wait "$ray"; code=$?; kill -0 "$ray" 2>/dev/null; do :; done
            # 0 would complete the job of a pod that only moves to another node.
            [ -z "$stopped" ] || code=143
            exit "$code"
        ' bash "$@"
      - bash
    # The pod at this address is Ray's head and runs the command after `--`; the others contribute their GPUs.
    args:
      - --address={{ $gang }}-node-0-0.{{ $gang }}:6379
      - --min-nodes={{ $hosts }}
      - --num-gpus={{ int .Values.workers.gpusPerHost }}
      - --disable-usage-stats
      - --
      - env
      - SHARDTUNE_API_KEY_FD=0
      - python
      - -m
      - shardtune.workers
      - --launcher=ray
      - --nodes={{ $hosts }}
      - --service={{ include "shardtune.serviceUrl" . }}
      - --work-dir=/work/worker
      - --name={{ $gang }}
      {{- range .Values.workers.args }}
      - {{ . | quote }}
      {{- end }}
    env:
      # One token for Ray's daemons and the agent: Shardtune rejects Ray without a token.
      - {name: RAY_AUTH_MODE, value: token}
      - name: RAY_AUTH_TOKEN
        valueFrom:
          secretKeyRef: {name: {{ include "shardtune.secret" (list . .Values.workers.ray.existingSecret "ray") }}, key: auth_token}
      - name: SHARDTUNE_API_KEY
        valueFrom:
          secretKeyRef: {name: {{ include "shardtune.secret" (list . .Values.workers.existingSecret "worker") }}, key: key}
      - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
      # Seconds for all pods to pull their image and start; 30 by default.
      - {name: RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT, value: {{ int .Values.workers.ray.startTimeoutSeconds | quote }}}
      {{- include "shardtune.workerEnv" . | nindent 6 }}
    resources: {{ include "shardtune.workerResources" . }}
    {{- include "shardtune.containerSecurity" . | nindent 4 }}
    volumeMounts:
      {{- include "shardtune.workerVolumeMounts" . | nindent 6 }}
volumes:
  {{- include "shardtune.workerVolumes" . | nindent 2 }}
{{- end -}}
