"""Let a sampler search a table: what it asks for is looked up, with the noise that was measured between runs."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.search.measured import MeasuredTable, Run
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import MemoryCalibration

CURVE_TRIALS = 20
"""Every replay goes on so long, to compare curves, and then until the goal is reached."""
GOAL = 0.97
"""Fraction of the best speed that counts as found."""


@dataclass(frozen=True)
class View:
    """View of a sampler before each trial."""

    history: Sequence[Observation]
    rejected: set[str]
    gate: Callable[[TrialConfig], Rejection | None]
    memory: MemoryCalibration


Ask = Callable[[View], TrialConfig | None]


@dataclass
class Replay:
    """One search: after each trial the best share so far, and the GPU-seconds spent."""

    shares: list[float] = field(default_factory=list)
    gpu_seconds: list[float] = field(default_factory=list)
    infeasible: int = 0
    ask_s: list[float] = field(default_factory=list)
    history: list[Observation] = field(default_factory=list)

    @property
    def trials_to_goal(self) -> int | None:
        """Trials until one within the goal was tried; None: never."""
        return next((number for number, share in enumerate(self.shares, start=1) if share >= GOAL), None)

    @property
    def gpu_seconds_to_goal(self) -> float | None:
        """GPU-seconds to the goal; None also where the table does not say what its runs took."""
        trials = self.trials_to_goal
        return None if trials is None else self.gpu_seconds[trials - 1] or None


def replay(table: MeasuredTable, ask: Ask, seed: int, most: int) -> Replay:
    """Search until the goal is reached and the curve is long enough, or nothing is left."""
    new_replay = Replay()
    history = new_replay.history
    rejected: set[str] = set()
    while len(history) < most and (new_replay.trials_to_goal is None or len(history) < CURVE_TRIALS):
        view = _view(table, history, rejected)
        begun = time.process_time()
        config = ask(view)
        new_replay.ask_s.append(time.process_time() - begun)
        if config is None:
            break
        key = table.space.key(config)
        run = _drawn(table, key, seed)
        history.append(_observed(table, config, run, len(history)))
        new_replay.infeasible += history[-1].state is TrialState.INFEASIBLE
        new_replay.shares.append(max(table.share(key), new_replay.shares[-1] if new_replay.shares else 0.0))
        spent = (run.wall_s or table.usual_wall_s) * table.cluster.world_size
        new_replay.gpu_seconds.append(spent + (new_replay.gpu_seconds[-1] if new_replay.gpu_seconds else 0.0))
    return new_replay


def _drawn(table: MeasuredTable, key: str, seed: int) -> Run:
    """One of the configuration's runs, the same for every sampler of this seed."""
    runs = table.runs[key]
    return runs[random.Random(f"{seed}:{key}").randrange(len(runs))]


def _view(table: MeasuredTable, history: Sequence[Observation], rejected: set[str]) -> View:
    memory = table.memory(history)
    return View(history, rejected, partial(table.gate, memory=memory), memory)


def _observed(table: MeasuredTable, config: TrialConfig, run: Run, number: int) -> Observation:
    kind = run.infeasible(table.limit_gib)
    measurement = None
    if run.step_time_s is not None:
        measurement = _measurement(table, config, run, run.step_time_s)
    if kind is None:
        return Observation(number, config, TrialOrigin.SAMPLER, TrialState.COMPLETE, measurement)
    failure = Failure(kind=kind, message=run.failure or "too much memory", peak_allocated_gib=run.peak_gib)
    return Observation(number, config, TrialOrigin.SAMPLER, TrialState.INFEASIBLE, measurement, failure)


def _measurement(table: MeasuredTable, config: TrialConfig, run: Run, seconds: float) -> Measurement:
    workload, ranks = table.workload, table.cluster.world_size
    return Measurement(
        tokens_per_s_per_gpu=workload.tokens_per_step / ranks / seconds,
        step_time_s=seconds,
        step_time_half_width_s=run.half_width_s,
        memory=Memory(peak_allocated_gib=run.peak_gib),
        wrap_time_s=None,
        warmup_steps=0,
        measured_steps=1,
        window_step_times_s=(seconds,),
        trajectory=(),
        losses=(),
        gradient_accumulation=max(1, workload.global_batch // (config.micro_batch * ranks)),
        elapsed_s=run.wall_s or table.usual_wall_s,
    )
