"""Raw trace in the attackers' own project, which `benchmarks.service.hostile` lets them download."""

import os

import httpx

from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

_TRACE = b"\x1f\x8b" + os.urandom((16 << 20) - 2)
"""Largest content that the service stores as a rank's trace."""


def own_trace(url: str, key: str) -> str:
    """Finish a study with a simulated worker, trace its first trial, and return the path of the stored trace."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60) as http:
        worker = SimulatedWorker(http, "trace-maker", raw_trace=lambda _: _TRACE, task_kinds=TASK_KINDS).register()
        budget = {"max_trials": 2, "max_pairs": 7, "resume_check": False}
        created = http.post("/v1/studies", json=SPEC | {"budget": budget, "cluster": CLUSTER.model_dump()})
        trial = f"/v1/studies/{created.raise_for_status().json()['study_id']}/trials/1"
        worker.work()
        http.post(f"{trial}:diagnose").raise_for_status()
        worker.work()
        return f"{trial}/trace"
