"""Two training steps of one rank, by the code that ranks run: model, strategy, micro batches and optimizer."""

import resource
import time

from torch import nn

from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import RehearsedRank
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import context
from shardtune.workers.rank.own_code import fused_attention
from shardtune.workers.rank.process import bounded_child
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.rehearsal import peers
from shardtune.workers.rank.rehearsal.device import RehearsedDevice
from shardtune.workers.rank.rehearsal.peak import PeakTracker
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from shardtune.workers.rank.training.batches import MicroBatches
from shardtune.workers.rank.training.step_runs import Steps, run_steps

_STEPS = 2
"""Number of steps that a rehearsal runs (a trial on tensors without values). The first one differs from the others:
DTensor runs each operator on whole tensors to learn its sharding, and the optimizer creates its states."""


def rehearse(task: RehearsalTask) -> RehearsedRank:
    """Build one rank of the task's trial and run its steps on tensors without values. Returns the rank's peak memory,
    and how much time the rehearsal took.

    Raises:
        ValueError: the strategy rejects the configuration.
        Exception: any error that the model's code or torch raises because tensors have no values.
    """
    trial, device = task.trial, RehearsedDevice()
    begin = time.perf_counter()
    peers.join(task.rank, trial.cluster.world_size)
    place = RankContext(
        task.rank,
        task.rank % trial.cluster.gpus_per_node,
        trial.cluster.world_size,
        trial.cluster.gpus_per_node,
        device,
    )
    step = steps.of(trial.model, trial.workload, context.group_of(trial, place), trial.config)
    setting = TrainingSetup.of(trial, place, step.loss)
    model = step.build_model()
    # Before sharding: blocks of this stage then have another class than those of others.
    blocks = [block for _, block in repeated_blocks(model)]
    trainer = wrap.make_trainer(model, setting)
    set_up_s = time.perf_counter() - begin
    tracker = PeakTracker(clones_reductions=trial.cluster.device == "cpu")
    with device.mode, peers.agreeing_stages(), fused_attention.as_on_gpus():
        own_part = _trained_module(trainer, model)
        tracker.track_external(own_part)
        with tracker.without_sharding_rules(), tracker:
            run_steps(_two_steps(MicroBatches(setting, step), task.micro_batches, tracker), trainer)
    parts = tracker.peak_parts()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return RehearsedRank(
        rank=task.rank,
        blocks=_own_blocks(trial, own_part, blocks),
        peak_bytes=sum(parts.values()),
        parts=parts,
        process_groups=peers.process_groups(),
        set_up_s=round(set_up_s, 3),
        cpu_s=round(usage.ru_utime + usage.ru_stime, 2),
        peak_rss_mib=bounded_child.peak_rss_mib(),
    )


def _two_steps(batches: MicroBatches, count: int, tracker: PeakTracker) -> Steps[None]:
    for number in range(_STEPS):
        yield batches.of_step(number, count)
        if number < _STEPS - 1:
            tracker.forget_peak()


def _trained_module(trainer: Trainer, model: nn.Module) -> nn.Module:
    """Module with the parameters that this rank holds."""
    return next(
        (module for name in ("_model", "_fsdp") if isinstance(module := getattr(trainer, name, None), nn.Module)), model
    )


def _own_blocks(trial: TrialTask, own_part: nn.Module, blocks: list[nn.Module]) -> int:
    """Number of the model's blocks that are on this rank: a pipeline stage holds some of them."""
    if trial.config.strategy.stages == 1:
        return len(blocks)
    own = {id(module) for module in own_part.modules()}
    return sum(id(block) in own for block in blocks)
