"""Losses of two recipes over the same data on real ranks: a healthy recipe is told from one that trains badly."""

from typing import Any

import bitsandbytes
import pytest

from shardtune.api_schemas.studies.recipes import LossVerdict
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.verdict import loss_difference
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import IS_LONG
from tests.support.ranks.reference_training import train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = pytest.mark.ranks

STEPS = 200 if IS_LONG else 100
TWO_BLOCKS = LLAMA | {"num_hidden_layers": 2}
DDP: dict[str, Any] = {"kind": "ddp"}
SEEDS = range(10) if IS_LONG else range(1)


def trained(host: HostProcess, precision: str, seed: int, lr: float, steps: int = STEPS) -> RankReport:
    """Report of a run that keeps the losses of its first steps."""
    task = tiny_task(
        DDP,
        precision=precision,
        micro_batch=4,
        seed=seed,
        optimizer={"lr": lr},
        model=TWO_BLOCKS,
        parity_steps=2,
    )
    plan = task.plan.model_copy(update={"loss_steps": steps})
    report = host.run(task.model_copy(update={"plan": plan}))[0]
    assert report.status == "complete", report.failure
    return report


def test_a_run_keeps_the_losses_of_its_first_steps_and_times_others(host: HostProcess) -> None:
    report = trained(host, "fp32", 1, 1e-3, steps=30)
    assert len(report.trajectory) == 2 and report.measured_steps == 2 and report.warmup_steps == 1
    assert len(report.losses) == 30 + report.warmup_steps + report.measured_steps
    assert report.losses[:2] == tuple(record.loss for record in report.trajectory)
    assert report.losses[29] < 0.8 * report.losses[0]


def test_a_recipe_that_loses_its_updates_is_told_from_a_healthy_one(host: HostProcess) -> None:
    """At a learning rate of 2e-5 most updates are below half of a bfloat16 weight's last digit, and are lost."""
    told = []
    for seed in SEEDS:
        stated, true, mixed = (trained(host, name, seed, 2e-5).losses for name in ("fp32", "bf16-true", "bf16-mixed"))
        bad, healthy = (loss_difference.compare(other[:STEPS], stated[:STEPS], 0.02) for other in (true, mixed))
        told.append(bad.verdict is LossVerdict.WORSE and healthy.verdict is LossVerdict.AS_WELL)
        print(seed, bad, healthy)
    assert sum(told) >= 0.9 * len(told), told


def losses_of_8_bit_moments(seed: int, optimizer: str, steps: int) -> list[float]:
    """Losses of one process; fewer steps are trained anew, also where more were trained before."""
    task = tiny_task(
        DDP, model=TWO_BLOCKS, micro_batch=4, seed=seed, optimizer={"kind": optimizer, "lr": 1e-3}, parity_steps=steps
    )
    return [record.loss for record in train(task)]


def test_8_bit_moments_with_a_wrong_scale_are_told_from_healthy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: each step finds the first moments half as large as the last step left them."""
    correct_step = bitsandbytes.optim.AdamW8bit.step

    def halving_step(self: Any, *args: Any, **options: Any) -> Any:
        result = correct_step(self, *args, **options)
        scales = [state["absmax1"] for state in self.state.values() if "absmax1" in state]
        assert scales
        for scale in scales:
            scale.mul_(0.5)
        return result

    told = []
    for seed in SEEDS:
        stated, healthy = (losses_of_8_bit_moments(seed, name, 100) for name in ("adamw", "adamw-8bit"))
        with monkeypatch.context() as planted:
            planted.setattr(bitsandbytes.optim.AdamW8bit, "step", halving_step)
            bad = losses_of_8_bit_moments(seed, "adamw-8bit", 99)
        wrong, right = (loss_difference.compare(other, stated, 0.02) for other in (bad, healthy))
        told.append(wrong.verdict is LossVerdict.WORSE and right.verdict is LossVerdict.AS_WELL)
        print(seed, wrong, right)
    assert sum(told) >= 0.9 * len(told), told
