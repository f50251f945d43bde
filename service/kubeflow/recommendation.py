"""Recommendation for a TrainJob: the best known configuration, otherwise the fastest one that is predicted to fit."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from shardtune.api_schemas.formatting import rate
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.client import NoService, ServiceClient, ServiceError, ServiceRejected, ServiceUnreachable
from shardtune.service.kubeflow.wish import NotRecommendable, Wish
from shardtune.tuner.prediction import catalogue

_SAME_FIELDS = ("sequence_length", "data", "precision", "optimizer", "float8", "adapter", "attention", "global_batch")
"""Names of the fields that a study's workload and a prediction request have in common."""
_NOT_SERVED = ("unknown_best", "awaits_approval", "too_busy", "no_worker")
"""Error codes of responses in which the service says that it has no measured recommendation."""


_NEAR_FRACTION = 0.9
"""Minimum speed per GPU of a smaller cluster, as a fraction of the fastest cluster's speed per GPU, at which the
smaller cluster is preferred.
"""
_AWAY_AFTER_S = 0.6
"""Seconds within which the service must answer that it is ready. With all other work, a job is then admitted unchanged
within one second if the service is away."""
_MOST_REQUESTS = 16
"""Maximum number of requests to the service at once, those that nobody waits for any more included."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class JobRecommendation:
    """Configuration that is recommended for a TrainJob, and the cluster for which it is meant."""

    cluster: Cluster
    config: TrialConfig
    tokens_per_s_per_gpu: float
    reason: str
    """Sentence that says whether the configuration was measured or predicted, and from which study or prediction it
    comes.
    """


class Recommender:
    """Client that gets recommendations for TrainJobs from a Shardtune service within a time limit.

    A service that does not answer soon that it is ready is not asked for anything else. New requests are sent only in
    the first half of the limit, and none is waited for after its end.
    """

    def __init__(self, client: ServiceClient, answer_within_s: float, away_after_s: float = _AWAY_AFTER_S) -> None:
        self._client = client
        self._answer_within_s = answer_within_s
        self._away_after_s = min(away_after_s, answer_within_s)
        # The client's own time limits do not cover a name server that is silent, nor a response that arrives byte by byte.
        self._threads = ThreadPoolExecutor(_MOST_REQUESTS, thread_name_prefix="request-to-service")

    def recommend(self, wish: Wish) -> JobRecommendation:
        """Recommend a measured configuration for one of the clusters that a TrainJob allows. If there is none,
        recommend the fastest configuration that is predicted to fit. Of several clusters, the smallest one is chosen
        whose speed per GPU is near the best.

        Raises:
            NotRecommendable: the service does not answer in time, rejects the request, or no configuration fits.
        """
        try:
            if found := self._find(wish):
                return _most_economical(found)
        except ServiceRejected as rejected:
            raise NotRecommendable("; ".join(rejected.lines())[:1000]) from rejected
        except (ServiceUnreachable, NoService) as error:
            raise NotRecommendable(f"the service does not answer ({error}); create the job again") from error
        except ServiceError as error:
            # A request that cannot be sent, such as one with too many lengths for an address.
            raise NotRecommendable(str(error)[:1000]) from error
        raise NotRecommendable(
            f"nothing is predicted to fit surely on {' or '.join(wish.clusters)}; offer larger clusters, or tune it with "
            f"`shardtune tune`"
        )

    def _find(self, wish: Wish) -> list[JobRecommendation]:
        """Configurations for the clusters that a TrainJob allows: the measured ones or, if there are none, predicted ones."""
        starts_s = time.monotonic()
        self._require_time(starts_s)
        self._answer_of(self._client.check_ready, self._away_after_s)
        # Measured answers first, of any cluster: a prediction never goes before what was measured.
        for find in (self._measured, self._predicted):
            found: list[JobRecommendation] = []
            for name in wish.clusters:
                self._require_time(starts_s)
                left_s = starts_s + self._answer_within_s - time.monotonic()
                found += self._answer_of(partial(find, wish, name), left_s)
            if found:
                return found
        return []

    def _require_time(self, starts_s: float) -> None:
        """Check that half of the time limit is left for one more request.

        Raises:
            NotRecommendable: less is left.
        """
        if time.monotonic() - starts_s > self._answer_within_s / 2:
            raise NotRecommendable(f"no answer within {self._answer_within_s:g} s; create the job again")

    def _answer_of(self, request: Callable[[], _Answer], within_s: float) -> _Answer:
        """Result of a request to the service, which a thread of its own sends. The thread of a request that is late is
        abandoned, and ends by itself.

        Raises:
            NotRecommendable: the result does not come in time.
        """
        result = self._threads.submit(request)
        try:
            return result.result(within_s)
        except TimeoutError:
            result.cancel()
            raise NotRecommendable(
                f"the service does not answer within {within_s:.1f} s; create the job again"
            ) from None

    def _measured(self, wish: Wish, name: str) -> list[JobRecommendation]:
        try:
            best = self._client.find_best(wish.model, name, wish.workload, match="exact")
        except ServiceRejected as rejected:
            if rejected.code in _NOT_SERVED:
                return []
            raise
        # Stale, or of a machine that was too busy: a prediction for what the job asks is worth more.
        if best.confidence.level is ConfidenceLevel.LOW:
            return []
        speedup = best.speedup if best.verdict is Verdict.CONFIRMED else None
        gain = "" if speedup is None else f", {speedup.value:.2f} times as fast as its baseline"
        reason = (
            f"measured on {name} by study {best.study_id}: {best.description}{gain} "
            f"({best.freshness}, {best.confidence.level} confidence)"
        )
        return [JobRecommendation(best.cluster, best.best.config, best.best.tokens_per_s_per_gpu, reason)]

    def _predicted(self, wish: Wish, name: str) -> list[JobRecommendation]:
        table = self._client.predict(_request(wish.model, name, wish.workload))
        first = next((row for row in table.fastest if row.memory.verdict == "fits"), None)
        if first is None or first.speed is None:
            return []
        speed = first.speed.tokens_per_s_per_gpu
        reason = (
            f"predicted for {name}, not measured: {first.description}, {first.memory.total_gib:.1f} of "
            f"{first.memory.capacity_gib:.1f} GiB, {rate(speed)} tokens/s per GPU; `shardtune tune` measures it"
        )
        return [JobRecommendation(catalogue.parse_cluster(name), first.config, speed, reason)]


def _most_economical(found: Sequence[JobRecommendation]) -> JobRecommendation:
    """Choose the smallest cluster whose speed per GPU is at least nine tenths of the best. On too few GPUs, a model
    may fit only with offloading, which is slow; on more GPUs than needed, the same tokens cost more.
    """
    fastest = max(recommended.tokens_per_s_per_gpu for recommended in found)
    near = [choice for choice in found if choice.tokens_per_s_per_gpu >= _NEAR_FRACTION * fastest]
    return min(near, key=lambda recommended: recommended.cluster.world_size)


def _request(model: str, cluster: str, workload: Mapping[str, Any]) -> PredictionRequest:
    """Build the request to predict which configuration is the fastest for a workload.

    Raises:
        NotRecommendable: the workload cannot be predicted.
    """
    # As the study would read it: `precision: auto`, merged lengths, an optimizer by its name.
    read = WorkloadRequest.model_validate(workload).model_dump(mode="json")
    common = {field: read[field] for field in _SAME_FIELDS if read.get(field) is not None}
    try:
        return PredictionRequest.model_validate({"model": model, "cluster": cluster, "top": 1, **common})
    except ValidationError as error:
        message = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        raise NotRecommendable(message[:1000]) from None
