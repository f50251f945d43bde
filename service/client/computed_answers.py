"""Client calls whose answers are computed for the request: predictions, plans, costs of studies, and the best known
configuration of a job.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel
from shardtune.api_schemas.studies.study_cost import StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.client.transport import Calls


class ComputedClient:
    """Part of `shardtune.client.ServiceClient` with the calls that store nothing."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def predict(self, request: PredictionRequest) -> PredictionTable:
        """Predict memory and speed of configurations without running them."""
        answer = self._calls.send("POST", "/v1/predictions", request.model_dump(mode="json"))
        return self._calls.read(PredictionTable, answer)

    def plan(self, request: PlanRequest) -> Plan:
        """Plan a training run: hours, money and finish date by kind and number of GPUs."""
        # A time that the request leaves out is that of its study, so that the default must not be sent as if stated.
        goodput = request.goodput.model_dump(mode="json", exclude_unset=True)
        body = request.model_dump(mode="json") | {"goodput": goodput}
        return self._calls.read(Plan, self._calls.send("POST", "/v1/plans", body))

    def study_cost(self, spec: StudyRequest) -> StudyCost:
        """Estimate how long a study would take and what it would gain, before anything runs."""
        answer = self._calls.send("POST", "/v1/predictions/study-cost", spec.model_dump(mode="json"))
        return self._calls.read(StudyCost, answer)

    def find_best(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        workload: Mapping[str, Any],
        match: Literal["nearest", "exact"] = "nearest",
        lowest_confidence: ConfidenceLevel = ConfidenceLevel.MEDIUM,
        *,
        projections: bool = False,
    ) -> BestConfig:
        """Return the best known configuration for a model, a cluster and a workload, without starting a study.
        `projections`: whether to accept a configuration whose speed was projected from fewer GPUs."""
        params = {
            "model": model if isinstance(model, str) else json.dumps(model),
            "cluster": cluster if isinstance(cluster, str) else json.dumps(cluster),
            "workload": json.dumps(workload, separators=(",", ":")),
            "match": match,
            "lowest_confidence": lowest_confidence.value,
            "projections": str(projections).lower(),
        }
        return self._calls.read(BestConfig, self._calls.send("GET", "/v1/best", params=params))

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the service."""
        document: dict[str, Any] = self._calls.send("GET", "/openapi.json")
        return document
