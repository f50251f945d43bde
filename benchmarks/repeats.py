"""Record repeats of real trials, the noise that `benchmarks.verdicts` resamples.

`python -m benchmarks.repeats --record NAME --minutes 9 [--out benchmarks/data/repeats.csv]` runs a few configurations
of the tiny Llama on 2 CPU ranks over and over, in an order drawn anew for each round, by the worker's own launcher and
rank code with the plan of a study, and appends one row per run. Rows of one record are in the order of their runs.
"""

import argparse
import csv
import json
import os
import random
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.machine import library_probe
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.machine.inventory import find_gpus, fingerprint
from shardtune.workers.trial_dir import TrialDir

DATA = Path(__file__).parent / "data" / "repeats.csv"
CLUSTER = Cluster(device="cpu", gpus_per_node=2, memory_gib=8, host_memory_gib=16)
CONFIGURATIONS = {
    "ddp": TrialConfig(strategy=DdpConfig()),
    "ddp-micro-batch-8": TrialConfig(strategy=DdpConfig(gradient_as_bucket_view=True), micro_batch=8),
    "zero-2": TrialConfig(strategy=ZeroConfig(stage=2), micro_batch=4),
    "fsdp2-sharded": TrialConfig(strategy=Fsdp2Config(dp_shard=2), micro_batch=4),
    "fsdp2-replicated": TrialConfig(
        strategy=Fsdp2Config(dp_replicate=2, dp_shard=1, reshard_after_forward=False), micro_batch=8
    ),
}


@dataclass(frozen=True)
class Repeat:
    """One run."""

    record: str
    """Runs made back to back by one call; noise is resampled within a record."""
    position: int
    started_s: float
    """Seconds since the record's first run."""
    configuration: str
    tokens_per_s_per_gpu: float
    half_width: float
    """Half of the 95 % interval within the run, relative."""
    elapsed_s: float
    foreign_cpu_cores: float | None = None
    """CPU cores that other programs kept busy meanwhile; None in records that lack the column."""


def read(path: Path = DATA) -> list[Repeat]:
    """All rows of a file, in order."""
    with path.open(newline="") as file:
        return [
            Repeat(
                row["record"],
                int(row["position"]),
                float(row["started_s"]),
                row["configuration"],
                float(row["tokens_per_s_per_gpu"]),
                float(row["half_width"]),
                float(row["elapsed_s"]),
                float(foreign_cpu_cores) if (foreign_cpu_cores := row["foreign_cpu_cores"]) else None,
            )
            for row in csv.DictReader(file)
        ]


def record(name: str, minutes: float, path: Path, folder: Path) -> None:
    """Run rounds until the time is used, and append their rows."""
    launcher = LocalLauncher(
        {**os.environ, "PYTHONUNBUFFERED": "1"},
        f"repeats-{os.getpid()}",
        folder / "host.log",
        1200,
        observer=HostObserver(None),
    )
    try:
        gpus = find_gpus()
        actual_fingerprint = fingerprint(gpus, library_probe.of_prepared(launcher.prepare(lambda: False), gpus))
        place = Workplace(folder, launcher, actual_fingerprint, CLUSTER.world_size, None, 0.1)
        began, position = time.monotonic(), 0
        while time.monotonic() - began < 60 * minutes:
            for chosen in random.sample(sorted(CONFIGURATIONS), len(CONFIGURATIONS)):
                started = time.monotonic() - began
                measured = _run(place, actual_fingerprint, chosen)
                row = Repeat(
                    name,
                    position,
                    round(started, 2),
                    chosen,
                    round(measured.tokens_per_s_per_gpu, 2),
                    round(measured.step_time_half_width_s / measured.step_time_s, 4),
                    round(measured.elapsed_s, 2),
                    measured.conditions.foreign_cpu_cores if measured.conditions is not None else None,
                )
                _append(path, row)
                position += 1
    finally:
        launcher.close()


def _run(place: Workplace, actual_fingerprint: Fingerprint, chosen: str) -> Measurement:
    task = TrialTask(
        model=preset("llama-tiny"),
        workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"]),
        cluster=CLUSTER,
        # As in the rounds before: the recorded ones kept freed memory.
        config=CONFIGURATIONS[chosen].model_copy(update={"malloc": "keep"}),
    )
    attempted = run_attempt(
        place,
        task,
        lambda: TrialDir.create(place.work_dir, "repeat", task, actual_fingerprint, 0.1),
        RunLimits(120, 60),
        lambda: None,
    )
    assert attempted is not None
    if isinstance(attempted.result, Failure):
        raise SystemExit(f"{chosen}: {attempted.result.kind.value}: {attempted.result.message}")
    assert isinstance(attempted.result, Measurement)
    return attempted.result


def _append(path: Path, row: Repeat) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([field.name for field in fields(Repeat)])
        writer.writerow(astuple(row))


def main() -> None:
    """Record for some minutes and say how many rows there are now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", required=True, help="name of this series of runs")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record(options.record, options.minutes, options.out, Path(folder))
    rows = [row for row in read(options.out) if row.record == options.record]
    print(json.dumps({"record": options.record, "runs": len(rows)}))


if __name__ == "__main__":
    main()
