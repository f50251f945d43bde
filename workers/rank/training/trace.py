"""Trace on one rank: train until steps are warm, then run a few steps under torch's profiler, into one file per rank."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.leases import TraceTask
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure.moments import MomentRecorder
from shardtune.workers.rank.process import cpu_time
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import Trainer
from shardtune.workers.rank.training.resume_check import RankTraining
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.training.step_loop import StepLoop
from shardtune.workers.rank.training.step_runs import Steps, run_steps
from shardtune.workers.rank.trial_dir import ProgressFile
from shardtune.workers.rank.versions import library_versions
from shardtune.workers.trial_dir import TRACES

_WATCHED = 2
"""Number of first steps whose memory is recorded. Two are needed, because the optimizer creates its state at the end of
the first step."""


def moment_recorder(task: TraceTask, place: RankContext) -> MomentRecorder:
    """Start a recorder of this rank's memory, before the model is built."""
    limit, config = task.trial.memory_limit_gib, task.trial.config
    return MomentRecorder(
        place.rank,
        None if limit is None else round(limit * GIB),
        config.backend,
        is_compiled=config.compile,
        is_cuda=place.is_cuda,
    )


@contextmanager
def described_oom(recorder: MomentRecorder | None) -> Iterator[None]:
    """Context that adds a description of the memory in use to an out-of-memory error of the device. Only the first
    error of each recorder gets it.

    Raises:
        OutOfMemoryError: torch's message, followed by the recorded moment.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        moment = None if recorder is None else recorder.finish()
        if moment is None:
            raise
        raise torch.OutOfMemoryError(f"{error}\n{moment.describe()}") from error


def run(
    task: TraceTask, built: RankTraining, recorder: MomentRecorder, folder: Path, progress: ProgressFile
) -> RankReport:
    """Train and write this rank's trace into the trial directory's folder of traces.

    Raises:
        NumericsError: the loss is not finite, or gradients kept overflowing.
    """
    place = built.setting.context
    loop = TraceLoop(built.trainer.parameter_checksum, built.setting, built.step, progress)
    with described_oom(recorder):
        run_steps(loop.warm_up(_WATCHED), recorder.watched(built.trainer))
    moment = recorder.finish()
    run_steps(loop.warm_up(task.warmup_steps), built.trainer)
    profiler = _profiled(loop, task.steps, NamedTrainer(built.trainer), place, progress)
    (folder / TRACES).mkdir(exist_ok=True)
    with progress.refreshed(Progress(phase="finishing", step=task.warmup_steps + task.steps)):
        profiler.export_chrome_trace(str(folder / TRACES / f"rank_{place.rank}.json.gz"))
    return RankReport(
        rank=place.rank,
        status="complete",
        moment=moment,
        warmup_step_times_s=tuple(loop.outcome.warmup_step_times_s),
        window_step_times_s=tuple(loop.outcome.window_step_times_s),
        losses=tuple(loop.outcome.losses),
        skipped_steps=loop.skipped.count,
        cpu_s=cpu_time.spent_s(),
        versions=library_versions(),
    )


def _profiled(
    loop: "TraceLoop", steps: int, trainer: "NamedTrainer", place: RankContext, progress: ProgressFile
) -> profile:
    """Trace the steps and return the profiler. If the loss scale skips a step, all are traced again, and the profiler
    is that of the last try.

    Raises:
        NumericsError: a loss is not finite, or too many traces had skipped steps.
    """
    while True:
        # Shapes are recorded because a trace shows the bytes of gloo's collectives in no other way.
        profiler = profile(activities=_activities(place), record_shapes=True)
        profiler.start()
        run_steps(loop.record(steps), trainer)
        # It collects the events of all threads, which takes minutes for a long trace. Both this and the export keep Python's
        # interpreter lock (torch 2.13), so that only the launcher sees their work (`launchers.silent_work`).
        with progress.refreshed(Progress(phase="finishing")):
            profiler.stop()
        if loop.is_traced:
            return profiler
        progress.write(Progress(phase="warming_up"))


def _activities(place: RankContext) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.is_cuda else [])]


class TraceLoop(StepLoop):
    """Loop over the steps of a trace task, which records training steps with torch's profiler."""

    is_traced = False
    """Whether all traced steps updated the weights, that is, the loss scale skipped none."""

    def warm_up(self, count: int) -> Steps[None]:
        """Yield warm-up steps, which are timed but not traced; tries that the loss scale skipped count in the time.
        Their number is fixed: the loop does not wait for steady times."""
        self._planned = count
        for _ in range(count):
            seconds = yield from self._train_step(self._micro_batches.of_step(self._step))
            self.outcome.warmup_step_times_s.append(self._slowest(seconds))
            self._report_progress("warming_up")

    def record(self, count: int) -> Steps[None]:
        """Yield the traced steps back to back, with batches that are made beforehand, as in a timed window. If the loss
        scale skipped a step, no figure is recorded, and the caller traces all steps again.

        Raises:
            NumericsError: a loss is not finite, or too many traces had skipped steps.
        """
        first_step = self._step
        batches = [self._micro_batches.of_step(self._step + i) for i in range(count)]
        dist.barrier()
        begin = clock(self._place.accelerator)
        losses, norms = [], []
        for step_batches in batches:
            with record_function(f"ProfilerStep#{self._step}"):
                loss, norm = yield step_batches
            self._end_step()
            losses.append(loss)
            norms.append(norm)
        seconds = clock(self._place.accelerator) - begin
        slowest_s = self._slowest(seconds)
        mean_losses = mesh.mean(torch.stack(losses), self._place)
        if all(map(math.isfinite, mean_losses)) and self.skipped.spoils(norms):
            self._step = first_step
            return
        self.outcome.window_step_times_s.append(slowest_s / count)
        self._note_losses(mean_losses)
        self.is_traced = True


class NamedTrainer:
    """Trainer that labels the parts of a training step in the trace."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of this number of micro batches (see `Trainer.begin_step`)."""
        self._trainer.begin_step(micro_batches)

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""
        # DeepSpeed labels no parts, and the labels of torch leave out clipping.
        with record_function("shardtune::micro_batch"):
            return self._trainer.micro_step(batch, last)

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        with record_function("shardtune::optimizer"):
            return self._trainer.optimizer_step()


class NamedStep:
    """Training step that labels its forward pass in the trace. What is not labelled within a micro batch is the
    backward pass."""

    def __init__(self, step: Step) -> None:
        self.build_model, self.make_batch = step.build_model, step.make_batch
        self._loss = step.loss

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Scalar mean loss over the batch's samples (see `Step.loss`)."""
        with record_function("shardtune::forward"):
            return self._loss(model, batch)
