"""The exhaustive half: every configuration three times, in an order of its own each time, by one warm gang."""

import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.tuner.search.space import build
from tests.lab.session import GangSession

ROUNDS = 3
PLAN = MeasurePlan(
    parity_steps=2, max_warmup_steps=2, window_steps=1, min_windows=4, max_windows=20, min_measure_s=2, max_measure_s=8
)
_T_975 = 4.303
"""Student's, with two degrees of freedom."""


@dataclass
class Candidate:
    """One configuration and its runs."""

    config: TrialConfig
    times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """The last recorded one of each run."""

    @property
    def step_time_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def half_width_s(self) -> float:
        return _T_975 * statistics.stdev(self.times_s) / math.sqrt(len(self.times_s))

    def as_json(self, reference: float) -> dict[str, Any]:
        """Row as the benchmark prints it."""
        ends = [round(self.step_time_s + sign * self.half_width_s, 4) for sign in (-1, 1)]
        difference = max(abs(loss - reference) for loss in self.losses)
        return {
            "config": self.config.describe(),
            "step_time_s": round(self.step_time_s, 4),
            "ci95": ends,
            "loss_difference": difference,
        }


def exhaust(session: GangSession, spec: StudySpec, cluster: Cluster) -> list[Candidate]:
    """Measure the whole space."""
    model_summary = session.run(ModelSummaryTask(model=spec.model, workload=spec.workload))
    assert model_summary["kind"] == "ModelSummary", model_summary
    space = build(spec.workload, cluster, ModelSummary.model_validate(model_summary["result"]), spec.space)
    candidates = [Candidate(config) for config in space.enumerate()]
    for number in range(ROUNDS):
        for item in random.Random(number).sample(candidates, len(candidates)):
            _run(session, spec, cluster, item)
    return candidates


def _run(session: GangSession, spec: StudySpec, cluster: Cluster, candidate: Candidate) -> None:
    task = TrialTask(model=spec.model, workload=spec.workload, cluster=cluster, config=candidate.config, plan=PLAN)
    answer = session.run(task)
    assert answer["kind"] == "Measurement", answer
    candidate.times_s.append(answer["result"]["step_time_s"])
    candidate.losses.append(answer["result"]["trajectory"][-1]["loss"])
    print(f"{candidate.config.describe()}: {candidate.times_s[-1]:.3f} s a step", file=sys.stderr, flush=True)


def found_by(config: dict[str, Any], candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that a study's answer is."""
    trial_config = TrialConfig.model_validate(config)
    return next(candidate for candidate in candidates if candidate.config == trial_config)
