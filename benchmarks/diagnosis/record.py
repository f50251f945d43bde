"""Run cases: `python -m benchmarks.diagnosis.record record|pairs|rates FOLDER PAIRS CASE:SEED …`, one folder a case.

A process of its own, so that a slow link can be made in a network namespace around it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.diagnosis import cases, own_job
from benchmarks.diagnosis.cases import Case
from benchmarks.own_trials.runs import PLAN, attempted, execute, workplace
from shardtune.api_schemas.machines.hardware import Cluster, Inventory
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TraceTask, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.machine import hardware_speed

MODEL_SUMMARY, TRACED, REMEDY, PAIRS = "profile.json", "traced.json", "remedy.json", "pairs.json"
"""Files beside a case's `traces`: the model summary, the run that left them, the configuration to try, and the step
times of both."""
_OWN_JOB_S = 240.0


def named(name: str, seed: int) -> Case:
    """A case by its name."""
    return next(item for item in (*cases.planted(seed), *cases.healthy(seed)) if item.name == name)


def rates(folder: Path, link_mbit: int | None) -> Path:
    """File of the machine's rates over such a link."""
    return folder / f"hardware-{link_mbit or 'plain'}.json"


def ratios_of(folder: Path) -> list[float]:
    """Speed-ups of the remedy, pair by pair; empty where it was not run."""
    path = folder / PAIRS
    return [before / after for before, after in json.loads(path.read_text())] if path.exists() else []


class Recorder:
    """A fork server that runs one case after the other."""

    def __init__(self, place: Workplace, folder: Path) -> None:
        self._place, self._folder, self._number = place, folder, 0

    def record(self, name: str, seed: int) -> None:
        """Leave the traces and the model's profile."""
        into, case = self._folder / f"{name}-{seed}", named(name, seed)
        into.mkdir(parents=True, exist_ok=True)
        if case.is_own_job:
            _own_job(case, into / "traces")
            return
        model_summary = execute(self._place, ModelSummaryTask(model=case.model, workload=case.workload), self._next())
        (into / MODEL_SUMMARY).write_text(model_summary.model_dump_json())
        traced = self._traced(case)
        (into / TRACED).write_text(traced.model_dump_json())
        shutil.copytree(traced.folder, into / "traces")

    def pairs(self, name: str, seed: int, count: int) -> None:
        """Run the configuration and its remedy in turn."""
        into, case = self._folder / f"{name}-{seed}", named(name, seed)
        remedy = TrialConfig.model_validate_json((into / REMEDY).read_text())
        pairs = [(self._step_s(case, case.config), self._step_s(case, remedy)) for _ in range(count)]
        (into / PAIRS).write_text(json.dumps(pairs))

    def rates(self, into: Path) -> None:
        """Measure the machine as a worker does."""
        cluster = Cluster(device="cpu", gpus_per_node=cases.RANKS, memory_gib=4, host_memory_gib=16)
        offered = Inventory(cluster=cluster, fingerprint=self._place.fingerprint)
        measurement = hardware_speed.measure(self._place.launcher, offered, self._place.work_dir, lambda: False)
        assert measurement is not None
        into.write_text(measurement.measured.model_dump_json())

    def _traced(self, case: Case) -> ProfilerRecording:
        trial = TrialTask(model=case.model, workload=case.workload, cluster=case.cluster, config=case.config)
        result = attempted(self._place, TraceTask(trial=trial), self._next()).result
        assert isinstance(result, ProfilerRecording), f"{case.name}: {result}"
        return result

    def _step_s(self, case: Case, config: TrialConfig) -> float:
        task = TrialTask(model=case.model, workload=case.workload, cluster=case.cluster, config=config, plan=PLAN)
        measured = execute(self._place, task, self._next())
        assert isinstance(measured, Measurement), f"{case.name}: {measured}"
        return measured.step_time_s

    def _next(self) -> int:
        self._number += 1
        return self._number


def _own_job(case: Case, traces: Path) -> None:
    traces.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cases.RANKS}"]
    command += [str(Path(own_job.__file__)), str(traces), str(case.slow_rank_s), str(case.slow_data_s)]
    subprocess.run(command, check=True, timeout=_OWN_JOB_S, stdin=subprocess.DEVNULL, env=dict(os.environ))


def main(description: str, folder: Path, count: int, names: list[str]) -> None:
    """Go through the cases."""
    with tempfile.TemporaryDirectory() as work, workplace(Path(work), cases.RANKS) as place:
        recorder = Recorder(place, folder)
        if description == "rates":
            recorder.rates(Path(names[0]))
            return
        for single_name in names:
            name, _, seed = single_name.rpartition(":")
            if description == "record":
                recorder.record(name, int(seed))
            else:
                recorder.pairs(name, int(seed), count)
            print(f"{description} {single_name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
