"""Does the resume check name a slow disk, and is it silent on the same disk when nothing holds it back?

Run as root: unshare -m python -m benchmarks.diagnosis.slow_disk --json [--runs 5] [--healthy 5] [--pairs 2] [--first-seed 100]

Each case is a real resume check on 2 CPU ranks, in a work directory on a disk of its own (`throttled_disk`): model, backend, speed
and interval are drawn. The remedy (saving beside training) runs in pairs with waiting for the checkpoint, in a job of its own
(`saving_job`) on the same disk; what a checkpoint takes from training is its seconds less those of the steps alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.diagnosis import saving_job
from benchmarks.diagnosis.cases import RANKS
from benchmarks.diagnosis.throttled_disk import ThrottledDisk, throttled_disk
from benchmarks.own_trials.runs import attempted, workplace
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import ResumeTask, TrialTask
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan
from shardtune.tuner.verdict.winner import checkpoint_cost
from shardtune.workers.agent.attempt import Workplace

_STRATEGIES: tuple[dict[str, Any], ...] = (
    {"kind": "ddp"},
    {"kind": "fsdp1", "dp_shard": RANKS},
    {"kind": "fsdp2", "dp_shard": RANKS},
    {"kind": "zero", "stage": 1},
    {"kind": "zero", "stage": 3},
)
_PLAN = ResumePlan(fewest_steps=2, most_steps=2, steps_after=2)
_WINDOW_S, _JOB_S = 10.0, 400.0


@dataclass(frozen=True)
class Case:
    """One resume check."""

    model: ModelSpec
    strategy: dict[str, Any]
    every_s: float
    """The training saves as often."""
    disk_bytes_per_s: int
    """0: nothing holds the disk back."""


def drawn(seed: int, *, is_slow: bool) -> Case:
    """Strategies in turn; the rest by the seed."""
    random = Random(f"slow disk {seed}")
    hidden, layers = random.choice((256, 320, 384)), random.choice((4, 6, 8))
    config: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 1024, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    every_s, rate = random.choice((60.0, 90.0, 120.0)), random.choice((6, 8, 12)) * 10**6
    return Case(
        ModelSpec(name=f"llama-{layers}x{hidden}", config=config),
        _STRATEGIES[seed % len(_STRATEGIES)],
        every_s,
        rate if is_slow else 0,
    )


def checked(place: Workplace, case: Case, number: int) -> ResumeMeasurement:
    """Measurement of a winner's resume check."""
    workload = Workload(sequence_length=64, global_batch=4, precision=PRECISIONS["fp32"])
    cluster = Cluster(device="cpu", gpus_per_node=RANKS, memory_gib=4, host_memory_gib=16)
    config = TrialConfig.model_validate({"strategy": case.strategy, "micro_batch": 2})
    task = ResumeTask(trial=TrialTask(model=case.model, workload=workload, cluster=cluster, config=config), plan=_PLAN)
    result = attempted(place, task, number).result
    assert isinstance(result, ResumeMeasurement), result
    return result


def row_of(case: Case, measured: ResumeMeasurement) -> dict[str, Any]:
    """Findings, beside the planted mistake."""
    assert measured.disk is not None
    findings = checkpoint_cost.findings(measured, case.strategy["kind"], case.every_s)
    return {
        "strategy": case.strategy,
        "checkpoint_mb": round(measured.checkpoint_bytes / 1e6, 1),
        "save_s": round(measured.save_s, 2),
        "planted_mb_per_s": case.disk_bytes_per_s / 1e6,
        "told_mb_per_s": round(measured.disk.write_bytes_per_s / 1e6, 1),
        "share": round(checkpoint_cost.saving_fraction(measured, case.every_s), 4),
        "named": next((place for place, item in enumerate(findings) if checkpoint_cost.DISK_LIMITED in item), None),
        "said": findings,
    }


def remedy_of(disk: ThrottledDisk, case: Case, checkpoint_bytes: int, pairs: int) -> dict[str, Any]:
    """Saving beside training against waiting for it: seconds that a checkpoint takes from training, and the gain at the interval."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += [str(Path(saving_job.__file__)), str(disk.folder / "saved")]
    command += [str(checkpoint_bytes), str(_WINDOW_S), str(pairs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=True, timeout=_JOB_S, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    )
    printed = json.loads(done.stdout)
    lost = [(waiting - alone, beside - alone) for alone, waiting, beside in printed]
    gains = sorted((case.every_s + waiting) / (case.every_s + beside) for waiting, beside in lost)
    return {"lost_s": [[round(item, 2) for item in pair] for pair in lost], "gain": round(median(gains), 4)}


def run(runs: int, healthy: int, pairs: int, first_seed: int) -> dict[str, Any]:
    """All of it."""
    slow: list[dict[str, Any]] = []
    healthy_rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        throttled_disk(Path(name)) as disk,
        workplace(disk.folder, RANKS) as place,
    ):
        for seed in range(first_seed, first_seed + runs):
            slow.append(_planted(disk, place, seed, pairs))
        disk.hold_back(0)
        for seed in range(first_seed, first_seed + healthy):
            case = drawn(seed, is_slow=False)
            healthy_rows.append(row_of(case, checked(place, case, 2 * seed)))
    return summary(slow, healthy_rows)


def _planted(disk: ThrottledDisk, place: Workplace, seed: int, pairs: int) -> dict[str, Any]:
    case = drawn(seed, is_slow=True)
    disk.hold_back(case.disk_bytes_per_s)
    measured = checked(place, case, 2 * seed + 1)
    row = row_of(case, measured)
    if pairs and case.strategy["kind"] != "zero":
        row["remedy"] = remedy_of(disk, case, measured.checkpoint_bytes, pairs)
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def summary(slow: list[dict[str, Any]], healthy: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures in the form of `python -m benchmarks.diagnosis`."""
    gains = [row["remedy"]["gain"] for row in slow if "remedy" in row]
    remedy: dict[str, Any] = {"runs": len(gains), "helped": sum(gain > 1 for gain in gains)}
    planted = {
        "case": "slow_disk",
        "kind": "slow_checkpoints",
        "named": sum(row["named"] is not None for row in slow),
        "first_two": sum(row["named"] is not None and row["named"] < 2 for row in slow),
        "of": len(slow),
        "remedy": remedy | ({"gain": round(median(gains), 4)} if gains else {}),
        "rows": slow,
    }
    alarms = sum(bool(row["said"]) for row in healthy)
    return {"planted": [planted], "healthy": {"runs": len(healthy), "false_alarms": alarms, "rows": healthy}}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=100)
    options = parser.parse_args()
    answer = run(options.runs, options.healthy, options.pairs, options.first_seed)
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
