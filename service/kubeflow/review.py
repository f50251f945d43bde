"""Admission reviews of Kubernetes (`admission.k8s.io/v1`): the request for a TrainJob, and the answer to it.

Every TrainJob is admitted: a recommendation is help, and no reason to reject anything.
"""

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from shardtune.service.kubeflow import patch
from shardtune.service.kubeflow.recommendation import Recommender
from shardtune.service.kubeflow.wish import NotRecommendable, is_asked, read_wish

log = logging.getLogger(__name__)

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_JOB_KIND = "TrainJob"
_LONGEST_WARNING = 250
"""Maximum number of characters of an admission warning; Kubernetes cuts longer ones, and drops some if there are many
long ones.
"""


class NoReview(Exception):
    """Error: a request body is no admission review."""


def answer(body: bytes, offered: Sequence[str], recommender: Recommender) -> dict[str, Any]:
    """Answer an admission review of Kubernetes. The TrainJob is always admitted: with a patch if it asks for a
    recommendation and there is one, with a warning if there is none.

    Raises:
        NoReview: the body is no admission review.
    """
    request = _request(body)
    uid, job = _warning(request["uid"]), request.get("object")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if _is_new_job(request) and isinstance(job, dict) and is_asked(job):
        response |= _recommendation(job, offered, recommender)
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _recommendation(job: Mapping[str, Any], offered: Sequence[str], recommender: Recommender) -> dict[str, Any]:
    """Fields of the admission response: a patch with the recommendation, or a warning that there is none."""
    try:
        if not isinstance(job.get("spec"), Mapping):
            raise NotRecommendable("spec is missing; add it")
        recommended = recommender.recommend(read_wish(job, offered))
        operations = patch.operations(job, recommended)
    except NotRecommendable as error:
        log.info("no recommendation for %s: %s", _name(job), error)
        return {"warnings": [_warning(f"shardtune recommends nothing: {error}")]}
    except Exception:  # a border: every job is admitted
        # Whatever a hostile job holds: its namespace's other jobs are still answered, and this one is admitted.
        log.exception("no recommendation for %s", _name(job))
        return {"warnings": ["shardtune recommends nothing: an error, see the log of its webhook"]}
    log.info("recommended for %s: %s", _name(job), recommended.reason)
    return {
        "patchType": "JSONPatch",
        "patch": base64.b64encode(json.dumps(operations).encode()).decode(),
        "warnings": [_warning(f"shardtune: {recommended.reason}")],
    }


def _warning(text: str) -> str:
    """Shorten a warning to the length that Kubernetes accepts, and replace lone surrogates, which a response cannot
    contain.
    """
    return text.encode(errors="replace").decode()[:_LONGEST_WARNING]


def _request(body: bytes) -> Mapping[str, Any]:
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoReview("the body is no JSON; send an AdmissionReview of admission.k8s.io/v1") from error
    is_review = isinstance(review, dict) and (review.get("apiVersion"), review.get("kind")) == (API_VERSION, KIND)
    request = review.get("request") if is_review else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NoReview(f"the body must be a {KIND} of {API_VERSION} with a request; check the webhook's configuration")
    return request


def _is_new_job(request: Mapping[str, Any]) -> bool:
    kind = request.get("kind")
    is_job = isinstance(kind, dict) and kind.get("kind") == _JOB_KIND
    # A running job's sizes must not change, and Trainer rejects most changes of a specification.
    return is_job and request.get("operation") == "CREATE"


def _name(job: Mapping[str, Any]) -> str:
    metadata = job.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    # As JSON: a name may hold any character until Kubernetes has checked it.
    return json.dumps(f"{metadata.get('namespace')}/{metadata.get('name') or metadata.get('generateName')}"[:300])
