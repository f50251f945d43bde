#!/bin/bash
# A worker as a job of a Ray cluster: RAY_ADDRESS=http://head:8265 submit-worker.sh 4 http://service:8470
# RAY_AUTH_MODE and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as the cluster has them; the API key lies on the head's host.
set -euo pipefail
nodes=${1:?usage: submit-worker.sh NODES SERVICE}
service=${2:?usage: submit-worker.sh NODES SERVICE}
python=${SHARDTUNE_PYTHON:-python}

# The name is the job's, and the worker's: one job of a name at a time.
exec ray job submit --no-wait --submission-id="${SHARDTUNE_NAME:-shardtune}" -- \
    "$python" -m shardtune.workers --launcher ray --nodes "$nodes" --service "$service" \
    --work-dir "${SHARDTUNE_WORK_DIR:-/tmp/shardtune}" --name "${SHARDTUNE_NAME:-shardtune}"
