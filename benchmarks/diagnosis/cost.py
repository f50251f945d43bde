"""Cost of a profile, and the order of strategies by profiled and by timed steps.

Run: python -m benchmarks.diagnosis.cost --json [--rounds 2]

Each strategy is run on 2 CPU ranks as a trial and under the profiler, in turn; beside each other stand the seconds of a timed and of a
profiled step, of both runs, of the analysis (its processor time), and the bytes that the database would keep.
"""

import argparse
import gzip
import json
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.diagnosis import cases
from benchmarks.own_trials.runs import attempted, execute, workplace
from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.leases import TraceTask, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.db.tables.types import Packed
from shardtune.workers.agent.analysis import diagnose
from shardtune.workers.agent.attempt import Workplace

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero1": {"kind": "zero", "stage": 1},
    "zero3": {"kind": "zero", "stage": 3},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}


class Cost(Schema):
    """One strategy, once."""

    timed_step_s: float
    traced_step_s: float
    trial_s: float
    trace_s: float
    analysis_cpu_s: float
    analysis_s_per_100k: float
    """Bytes of all events of all ranks' traces."""
    stored_bytes: int
    trace_bytes: int


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    figures: dict[str, list[Cost]] = {name: [] for name in STRATEGIES}
    with tempfile.TemporaryDirectory() as work, workplace(Path(work), cases.RANKS) as place:
        for round_ in range(options.rounds):
            for number, name in enumerate(STRATEGIES):
                figures[name].append(_cost(place, STRATEGIES[name], 10 * (round_ * len(STRATEGIES) + number)))
    answer = summary(figures)
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))


def summary(scored_predictions: dict[str, list[Cost]]) -> dict[str, Any]:
    """Medians by strategy, and both orders, the fastest first."""
    rows = {
        name: {field: round(median(getattr(item, field) for item in some), 4) for field in Cost.model_fields}
        for name, some in scored_predictions.items()
    }
    orders = {field: sorted(rows, key=lambda name: rows[name][field]) for field in ("timed_step_s", "traced_step_s")}
    ratio = {name: round(row["trace_s"] / row["trial_s"], 2) for name, row in rows.items()}
    return {"strategies": rows, "orders": orders, "trace_over_trial": ratio}


def _events(folder: Path) -> int:
    return sum(len(json.loads(gzip.open(path).read())["traceEvents"]) for path in folder.iterdir())


def _cost(place: Workplace, strategy: dict[str, Any], number: int) -> Cost:
    case = next(cases.healthy(100))
    config = case.config.model_validate({"strategy": strategy, "micro_batch": 8})
    trial = TrialTask(model=case.model, workload=case.workload, cluster=case.cluster, config=config)
    begin = time.monotonic()
    measured = execute(place, trial, number)
    trial_s = time.monotonic() - begin
    assert isinstance(measured, Measurement), measured
    done = attempted(place, TraceTask(trial=trial), number + 1)
    assert isinstance(done.result, ProfilerRecording), done
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    diagnosis = diagnose(done.result)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert isinstance(diagnosis, Diagnosis), diagnosis
    analysis_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(
        timed_step_s=measured.step_time_s,
        traced_step_s=done.result.step_s,
        trial_s=trial_s,
        trace_s=done.elapsed_s,
        analysis_cpu_s=analysis_s,
        analysis_s_per_100k=analysis_s / _events(Path(done.result.folder)) * 1e5,
        stored_bytes=len(Packed(Diagnosis).packed(diagnosis)),
        trace_bytes=done.result.bytes,
    )


if __name__ == "__main__":
    main()
