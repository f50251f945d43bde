"""Rank of predicted speeds for own code: configurations of traced scripts, run on two CPU ranks and scored.

python -m benchmarks.own_code.ranking run --rounds 3 --minutes 20   (again and again, until nothing is left)
python -m benchmarks.own_code.ranking score [--json]

A worker traces each script, and configurations are drawn from the whole space, so many of each strategy. Each round runs
every configuration once, in an order of its own over all scripts.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_code import entries
from benchmarks.own_code.scripts import SCRIPTS
from benchmarks.own_trials.cases import STRATEGIES, Job, draw, remaining
from benchmarks.own_trials.runs import PLAN, append, execute, outcome, text_of, workplace
from benchmarks.own_trials.scores import HARDWARE, MIB, Row, Scored, by_config, memory_of, read, speed_of
from shardtune.api_schemas.machines.hardware import HardwareReport
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.config.allowlist import Allowed

_FOLDER = Path(__file__).parents[1] / "data"
DATA, SUMMARIES = _FOLDER / "own_code_trials.csv", _FOLDER / "own_code_summaries.json"
_COLUMNS = (
    "job", "strategy", "config", "round", "started", "peak_allocated_mib", "step_time_s", "half_width_s", "failure",
    "fingerprint",
)  # fmt: skip
_RANKS = 2


def _job(name: str) -> Job:
    (script,) = (script for script in SCRIPTS if script.name == name)
    workload = Workload(sequence_length=script.length, global_batch=16, precision=PRECISIONS["fp32"])
    # Replicas of shards need more than two ranks to differ from DDP.
    strategies = {kind: knobs for kind, knobs in STRATEGIES.items() if kind != "hsdp"}
    model = ModelSpec(name=name, entry_point=entries.entry_point(name))
    return Job(name, model, workload, ranks=_RANKS, per_strategy=3, strategies=strategies)


JOBS = {name: _job(name) for name in entries.NAMES}


def run(names: list[str], rounds: int, minutes: float) -> None:
    """Trace the scripts, then run what the file does not hold yet; no run begins after `minutes`."""
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages"
        entries.install(packages)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
        with workplace(Path(folder), ranks=_RANKS) as machine:
            place = replace(machine, allowed=Allowed(frozenset(map(entries.entry_point, names))))
            planned = _plan(place, names)
            remaining_rows = remaining(planned, read(DATA) if DATA.exists() else [], rounds)
            for number, row in enumerate(remaining_rows):
                if time.monotonic() > end:
                    print(f"{len(remaining_rows) - number} runs are left", flush=True)
                    return
                _measure(place, row, len(names) + number)


def _plan(place: Workplace, names: list[str]) -> list[Row]:
    """Trace the scripts, keep what the worker reports of them, and draw their configurations."""
    kept = json.loads(SUMMARIES.read_text()) if SUMMARIES.exists() else {}
    planned: list[Row] = []
    for number, name in enumerate(names):
        job = JOBS[name]
        summary = execute(place, ModelSummaryTask(model=job.model, workload=job.workload), number)
        assert isinstance(summary, ModelSummary) and summary.step_trace is not None, summary
        kept[name] = summary.model_dump(mode="json", exclude_defaults=True)
        planned += [
            {"job": name, "strategy": strategy, "config": text_of(config)} for strategy, config in draw(job, summary)
        ]
    SUMMARIES.write_text(json.dumps(kept) + "\n")
    return planned


def _measure(place: Workplace, row: Row, number: int) -> None:
    """Run one configuration, and append its row to the file."""
    job, config = JOBS[row["job"]], TrialConfig.model_validate_json(row["config"])
    summary = ModelSummary.model_validate(json.loads(SUMMARIES.read_text())[job.name])
    task = TrialTask(
        model=job.model,
        workload=job.workload,
        cluster=job.cluster,
        config=config,
        plan=PLAN,
        leaves_parameters_unused=summary.leaves_parameters_unused,
    )
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = execute(place, task, number)
    assert not isinstance(result, ModelSummary)
    written = row | {"started": begun} | outcome(result, place.fingerprint)
    append(DATA, _COLUMNS, written)
    said = written.get("failure") or f"{written['step_time_s']} s"
    print(f"{begun} {row['job']} {config.describe()}: {said}", flush=True)


def score(rows: list[Row]) -> dict[str, list[Scored]]:
    """Predictions from each script's trace for the rows with a measurement, by script."""
    summaries = json.loads(SUMMARIES.read_text())
    measured = HardwareReport.model_validate_json(HARDWARE[_RANKS].read_bytes()).measured
    scores: dict[str, list[Scored]] = {}
    for name in dict.fromkeys(row["job"] for row in rows):
        job = JOBS[name]
        shape = traced_shape.of_study(job.model, ModelSummary.model_validate(summaries[name]))
        assert shape is not None
        runs = by_config([row for row in rows if row["job"] == name and row["peak_allocated_mib"]])
        configs = [TrialConfig.model_validate_json(text) for text in runs]
        candidates = from_configs(configs, job.workload.sequence_length, job.ranks, job.workload.global_batch)
        result = evaluate(shape, candidates, job.workload, job.cluster, measured=measured)
        assert result.step is not None
        peaks = np.broadcast_to(result.memory.allocated, (len(runs),))
        scores[name] = []
        for index, (own, config) in enumerate(zip(runs.values(), configs, strict=True)):
            parts = {
                part: float(np.broadcast_to(values, len(runs))[index]) for part, values in result.step.parts.items()
            }
            times = tuple(float(row["step_time_s"]) for row in own)
            scores[name].append(Scored(own[0], times, config, float(peaks[index]) / MIB, parts))
    return scores


def report(rows: list[Row]) -> dict[str, Any]:
    """Rank correlations and errors of the peaks, by script; speeds are calibrated on five of a script's rows."""
    return {
        "failed": sum(1 for row in rows if row["failure"]),
        "by_script": {name: memory_of(part) | speed_of({name: part}) for name, part in score(rows).items()},
    }


def main() -> None:
    """Run or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "score"))
    parser.add_argument("--script", choices=entries.NAMES, action="append", help="run these (default: all)")
    parser.add_argument("--rounds", type=int, default=1, help="times each configuration is run")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins later")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.action == "run":
        run(options.script or list(entries.NAMES), options.rounds, options.minutes)
    else:
        print(json.dumps(report(read(DATA)), indent=None if options.json else 1))


if __name__ == "__main__":
    main()
