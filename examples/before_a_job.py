"""Step of a training platform before each job: take the best known configuration, or have one searched for the next
time.

SHARDTUNE_SERVICE_URL is the service's URL, SHARDTUNE_API_KEY a key with the scope studies:write.
"""

import json
import os
import sys
from pathlib import Path

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.client import ServiceClient, ServiceRejected

spec = StudyRequest.model_validate(json.loads(Path(sys.argv[1]).read_text()))
try:
    with ServiceClient(os.environ["SHARDTUNE_SERVICE_URL"]) as shardtune:
        answer = shardtune.resolve(spec, accept_nearest=True)
except ServiceRejected as rejected:
    # No worker has the cluster, or the answer waits for approval.
    sys.exit(f"train with your defaults: {rejected}")
if answer.best is not None:
    print(f"train with {answer.best.description} ({answer.best.confidence.level} confidence)")
elif answer.study is not None:
    print(f"train with your defaults; study {answer.study.study_id} will know better")
