"""Truth about the answers: the configurations that they name, run beside each other on the quiet machine.

After the studies, without foreign load, the worker's own launcher runs each configuration once a round, in an order of
its own. Two configurations are compared by the product's paired test on the rounds.
"""

import csv
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.busy.tune_runs import TuneRun
from benchmarks.own_trials.runs import append, text_of, workplace
from benchmarks.search.record import PLAN, run_undisturbed
from benchmarks.search.table import config_of
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.cli.errors import PlatformFailure
from shardtune.service.cli.study_file import read_json_object, validate_study
from shardtune.tuner.verdict import paired_test
from shardtune.workers.agent.attempt import Workplace

Outcome = Literal["right", "undecided_or_busy", "wrong"]
RANKS = 2
"""Number of CPU ranks of `tune` without `--ranks`."""
_CLUSTER = Cluster(device="cpu", gpus_per_node=RANKS, memory_gib=4, host_memory_gib=16)
_COLUMNS = ("config", "round", "step_time_s", "disturbed")


@dataclass(frozen=True)
class Truth:
    """Step times of configurations in the rounds of a quiet machine, by the configuration's content key."""

    seconds: dict[str, list[float]]
    disturbed_runs: int = 0
    """Number of runs that count although other programs disturbed them: with any, the truth is uncertain."""

    def is_faster(self, config: TrialConfig, other: TrialConfig, gain: float = 0.0) -> bool:
        """Whether the paired test shows that a configuration is faster than another, by more than `gain`."""
        pairs = zip(self.seconds[config.content_key()], self.seconds[other.content_key()], strict=True)
        ratios = [math.log(theirs / own) for own, theirs in pairs]
        speedup = paired_test.speedup(ratios)
        return paired_test.decide(ratios, len(ratios)) == "faster" and speedup is not None and speedup.value > 1 + gain


@dataclass(frozen=True)
class Claim:
    """Claim of an answer, as far as the quiet machine can contradict it."""

    verdict: str | None
    """Verdict of the answer; None where a command ended without an answer."""
    best: TrialConfig | None = None
    baseline: TrialConfig | None = None
    rivals: tuple[TrialConfig, ...] = ()
    """Configurations that the study tried and that the answer says are no faster than `best`."""

    @property
    def configs(self) -> tuple[TrialConfig, ...]:
        """Configurations that have to run before the claim can be judged."""
        named = {Verdict.CONFIRMED: (self.best, self.baseline), Verdict.NOT_FASTER: (self.best, *self.rivals)}
        chosen = named.get(Verdict(self.verdict), ()) if self.verdict in set(Verdict) else ()
        return tuple(config for config in chosen if config is not None)

    def judge(self, truth: Truth) -> Outcome:
        """Outcome of the claim: whatever claims nothing is `undecided_or_busy`."""
        if self.verdict == Verdict.CONFIRMED and self.best and self.baseline:
            return "right" if truth.is_faster(self.best, self.baseline) else "wrong"
        if self.verdict == Verdict.NOT_FASTER and self.best:
            missed = [rival for rival in self.rivals if truth.is_faster(rival, self.best, paired_test.WORTHWHILE)]
            return "wrong" if missed else "right"
        return "undecided_or_busy"


def claim_of(run: TuneRun, reference: TrialConfig | None) -> Claim:
    """Claim of a run's answer. `reference`: winner of the runs without load, a rival where the study tried it."""
    if run.answer is None or run.rows is None:
        return Claim(None)
    best, baseline = (_config(run.answer[name]["config"]) for name in ("best", "baseline"))
    tried = {_config(trial.config).content_key(): _config(trial.config) for trial in run.rows.trials}
    by_number = {trial.number: _config(trial.config) for trial in run.rows.trials}
    fastest = [by_number[number] for number in run.rows.fastest_search()]
    candidate = [_config(run.answer["candidate"]["config"])] if run.answer.get("candidate") else []
    known = [reference] if reference is not None and reference.content_key() in tried else []
    others = [config for config in fastest if config.content_key() != best.content_key()][:1]
    rivals = {config.content_key(): config for config in (*candidate, *others, *known)}
    rivals.pop(best.content_key(), None)
    return Claim(run.answer["verdict"], best, baseline, tuple(rivals.values()))


def reference_of(runs: Sequence[TuneRun]) -> TrialConfig | None:
    """Configuration that most runs without load recommend as faster; None where none does."""
    confirmed = [run.answer["best"]["config"] for run in runs if run.load == 0 and run.answer and run.answer["verdict"] == "confirmed"]  # fmt: skip
    winners = [_config(config) for config in confirmed]
    return max(winners, key=winners.count, default=None)


def _config(plain: object) -> TrialConfig:
    return TrialConfig.model_validate(plain)


def measure_truth(folder: Path, study_file: Path, configs: Sequence[TrialConfig], rounds: int) -> Truth:
    """Run each configuration in each round, except what the folder's `truth.csv` holds.

    Raises:
        PlatformFailure: a configuration that an answer names failed.
    """
    path, by_key = folder / "truth.csv", {config.content_key(): config for config in configs}
    stored = _read(path)
    remaining = [
        (number, key)
        for number in range(1, rounds + 1)
        for key in random.Random(number).sample(sorted(by_key), len(by_key))
        if (number, key) not in stored
    ]
    if remaining:
        with tempfile.TemporaryDirectory() as work, workplace(Path(work), RANKS) as place:
            spec = _spec(place, study_file)
            for number, key in remaining:
                stored[number, key] = _run(place, spec, by_key[key], path, number, len(stored))
    seconds = {key: [stored[number, key][0] for number in range(1, rounds + 1)] for key in by_key}
    return Truth(seconds, sum(stored[number, key][1] for number in range(1, rounds + 1) for key in by_key))


def _run(
    place: Workplace, spec: StudySpec, config: TrialConfig, path: Path, number: int, index: int
) -> tuple[float, bool]:
    task = TrialTask(model=spec.model, workload=spec.workload, cluster=_CLUSTER, config=config, plan=PLAN)
    result, _, disturbed = run_undisturbed(place, task, 10 * index)
    if not isinstance(result, Measurement):
        raise PlatformFailure(f"{config.describe()} failed on the quiet machine: {result.message}")
    row = {"config": text_of(config), "round": str(number), "step_time_s": f"{result.step_time_s:.6f}"}
    append(path, _COLUMNS, row | {"disturbed": disturbed or ""})
    print(f"round {number}: {config.describe()}: {result.step_time_s * 1e3:.1f} ms", file=sys.stderr, flush=True)
    return result.step_time_s, disturbed is not None


def _spec(place: Workplace, study_file: Path) -> StudySpec:
    """Study of the command, with the precision that it chooses on this machine."""
    request = validate_study(read_json_object(study_file), study_file.parent)
    devices = [DeviceDtypes.from_fingerprint(place.fingerprint, {})]
    return request.with_precision(decide(request.workload.precision, devices)[0])


def _read(path: Path) -> dict[tuple[int, str], tuple[float, bool]]:
    if not path.exists():
        return {}
    with path.open(newline="") as lines:
        return {
            (int(row["round"]), config_of(row["config"], str(path)).content_key()): (
                float(row["step_time_s"]),
                bool(row["disturbed"]),
            )
            for row in csv.DictReader(lines)
        }
