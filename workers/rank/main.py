"""Main program of one rank, from start to end: join the process group, build and wrap the model, warm up, measure,
report."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch import nn

from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.trials.leases import ModelSummaryTask, ResumeTask, TargetRehearsalTask, TraceTask, TrialTask
from shardtune.api_schemas.trials.measurements import MOST_TIMES
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.clock import now_s
from shardtune.workers.launch import LAUNCHED
from shardtune.workers.rank import classify, mesh, trial_dir
from shardtune.workers.rank.device import CudaDevice, Device, of_kind
from shardtune.workers.rank.measure import memory, speed_check
from shardtune.workers.rank.measure.moments import MomentRecorder
from shardtune.workers.rank.model import context
from shardtune.workers.rank.model.quantization.check import FrozenWeights
from shardtune.workers.rank.own_code import summary as own_code
from shardtune.workers.rank.process import cpu_adam, cpu_time, deadline, environment
from shardtune.workers.rank.rank_context import MakeDevice, RankContext
from shardtune.workers.rank.rehearsal import parts as rehearsal_parts
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training import model_summary, resume_check, trace, user_script, wrap
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training.loop import Loop
from shardtune.workers.rank.training.step_runs import run_steps
from shardtune.workers.rank.versions import library_versions

_LEAVE_S = 10
"""Seconds after which SIGALRM ends a rank that hangs while it leaves the process group. The rank's report is already
written by then."""

MakeTrainer = Callable[[nn.Module, TrainingSetup], Trainer]


def run(folder: Path, make_trainer: MakeTrainer = wrap.make_trainer, make_device: MakeDevice = of_kind) -> int:
    """Run the task of a trial directory as the rank that the environment variables name; returns the exit code.

    Always writes a report, unless the process is killed.
    """
    deadline.enforce(folder)
    rank = int(os.environ.get("RANK", "0"))
    attempt = RankAttempt(folder, rank, make_trainer, make_device)
    try:
        task = trial_dir.read_task(folder)
        if isinstance(task, ModelSummaryTask):
            attempt.phase = "building"
            attempt.write_model_summary(task)
            return 0
        if isinstance(task, TargetRehearsalTask):
            attempt.write_rehearsal(task)
            return 0
        report = attempt.run(task)
    except Exception as error:  # noqa: BLE001 -- the border: every exception becomes the rank's report
        failure = classify.failure_of(error, attempt.phase, rank, attempt.device, attempt.config)
        report = RankReport(rank=rank, status="failed", failure=failure, versions=library_versions())
        sys.stderr.write(failure.traceback or failure.message)
    # The report is written before peers are left: gloo or NCCL may hang there, and the measurement must not be lost.
    trial_dir.write_report(folder, report)
    if report.status != "complete":
        return 1
    attempt.leave()
    return 0


class RankAttempt:
    """Run of one rank's task in stages. `phase` (the present stage), `device` and `config` are kept so that an exception
    can be classified by them."""

    def __init__(self, folder: Path, rank: int, make_trainer: MakeTrainer, make_device: MakeDevice) -> None:
        self.phase: classify.Phase = "starting"
        self.device: Device | None = None
        self.config: TrialConfig | None = None
        self._folder = folder
        self._make_trainer, self._make_device = make_trainer, make_device
        self._progress = trial_dir.ProgressFile(folder, rank)
        self._trainer: Trainer | None = None
        self._frozen_weights: FrozenWeights | None = None

    def write_model_summary(self, task: ModelSummaryTask) -> None:
        """Write a summary of the task's model into the trial directory; raises any error of building the model."""
        if task.model.script is not None:
            user_script.run_profile(task, self._folder, self._progress)
            return
        # The user's own code may import and build for longer than a run may go without progress; its trace has a limit
        # of its own, beyond that one.
        with self._progress.refreshed(Progress(phase="building")):
            summary = model_summary.of(task.model, task.workload)
            if task.model.entry_point is not None:
                summary = own_code.with_trace(summary, task.model, task.workload)
        trial_dir.write_model_summary(self._folder, summary)

    def write_rehearsal(self, task: TargetRehearsalTask) -> None:
        """Rehearse the task's parts: for each, a process of its own builds one rank and runs its step on tensors
        without values. Their reports are written into the trial directory."""
        # Each process has a limit of its own, beyond that of runs without progress.
        with self._progress.refreshed(Progress(phase="building")):
            report = rehearsal_parts.rehearse(task)
        trial_dir.write_rehearsal(self._folder, report)

    def run(self, task: TrialTask | ResumeTask | TraceTask) -> RankReport:
        """Run the task: train and measure, check resuming, or record a trace. Raises any error of the task."""
        self._progress.write(Progress(phase="starting"))
        self.config = task.config
        place = RankContext.from_environment(task.cluster.device, self._make_device)
        self.device = place.accelerator
        environment.apply(task.config, place)
        cpu_adam.ensure_built(task, lambda: self._progress.write(Progress(phase="starting")))
        place.accelerator.use()
        if isinstance(task, TrialTask) and task.model.script is not None:
            return self._run_script(task, place)
        # Ranks of many hosts start at different speeds, and NCCL connects many ranks for more than a minute.
        with self._progress.refreshed(Progress(phase="starting")):
            mesh.join(place, self._folder)
        # After joining: if the operator was built for this trial, the first rank built it before it joined.
        cpu_adam.load(task)
        # Not yet "building": a GPU that hangs in the speed check keeps a core busy, which would pass for loading.
        self._progress.write(Progress(phase="starting"))
        self.phase = "building"
        if isinstance(task, ResumeTask | TraceTask):
            return self._run_derived(task, place)
        # Before the meter starts: the check's matrices must not count in the trial's peak.
        pace_s = speed_check.seconds(place)
        meter = memory.start_meter(place.accelerator)
        begin = time.perf_counter()
        with self._progress.refreshed(Progress(phase="building")):
            built = self._build(task, place)
        wrap_time = time.perf_counter() - begin
        loop = Loop(built.trainer.parameter_checksum, built.setting, built.step, self._progress)
        first_forward_s = _since_launch_s()
        run_steps(loop.steps(meter), built.trainer)
        self._require_frozen_weights()
        self._progress.write(Progress(phase="finishing", step=len(loop.outcome.losses)))
        return _report(place, loop, meter, wrap_time).model_copy(
            update={"first_forward_s": first_forward_s, "steps_ended_s": _since_launch_s(), "pace_s": pace_s}
        )

    def _build(
        self, task: TrialTask, place: RankContext, *, is_traced: bool = False, recorder: MomentRecorder | None = None
    ) -> resume_check.RankTraining:
        step = steps.of(task.model, task.workload, context.group_of(task, place), task.config)
        if is_traced:
            step = trace.NamedStep(step)
        setting = TrainingSetup.of(task, place, step.loss)
        model = step.build_model()
        # A checkpoint of an adapter leaves out frozen weights.
        saved = [p for p in model.parameters() if p.requires_grad or not setting.saves_trained_only]
        parameters = sum(parameter.numel() for parameter in saved)
        if recorder is not None:
            recorder.watch_modules(model)
        self._trainer = self._make_trainer(model, setting)
        self._frozen_weights = FrozenWeights(model, task.workload.adapter)
        if recorder is not None:
            recorder.watch_states(model)
        self.phase = "training"
        return resume_check.RankTraining(setting, step, self._trainer, parameters)

    def _run_derived(self, task: ResumeTask | TraceTask, place: RankContext) -> RankReport:
        begin = time.perf_counter()
        recorder = trace.moment_recorder(task, place) if isinstance(task, TraceTask) else None
        with self._progress.refreshed(Progress(phase="building")), trace.described_oom(recorder):
            built = self._build(task.trial, place, is_traced=isinstance(task, TraceTask), recorder=recorder)
        wrap_time = time.perf_counter() - begin
        if isinstance(task, TraceTask):
            assert recorder is not None
            report = trace.run(task, built, recorder, self._folder, self._progress)
            step_count = len(report.losses)
        else:
            report = resume_check.run(task, built, self._folder, self._progress)
            step_count = report.trajectory[-1].step + 1
        self._require_frozen_weights()
        self._progress.write(Progress(phase="finishing", step=step_count))
        return report.model_copy(update={"wrap_time_s": wrap_time})

    def _require_frozen_weights(self) -> None:
        """Raise a NumericsError if training has changed the quantised base weights, which must stay frozen."""
        if self._frozen_weights is not None:
            self._frozen_weights.require_unmoved()

    def leave(self) -> None:
        """Leave the process group after the report is written. This takes a bounded time, because an error or a hang in
        it must not cost the finished measurement."""
        signal.alarm(_LEAVE_S)
        dist.barrier()
        # On CPU the process ends without destroying the group: gloo has hung there (torch 2.13, one run in about a
        # hundred), with the peer gone and every number known.
        if isinstance(self.device, CudaDevice) and self._trainer is not None:
            self._trainer.close()
            dist.destroy_process_group()

    def _run_script(self, task: TrialTask, place: RankContext) -> RankReport:
        """Run and measure the user's script, which builds, wraps and trains its own model."""
        self._progress.write(Progress(phase="starting"))
        self.phase = "building"
        sample_groups.check(task.config, task.cluster, task.workload, task.model)
        pace_s = speed_check.seconds(place)
        recorder = user_script.ScriptRecorder(task, place, self._folder, self._progress)
        self.phase = "training"
        user_script.run_trial(recorder, task, place, self._folder)
        self._progress.write(Progress(phase="finishing", step=recorder.reports))
        report = _report(place, recorder.loop, recorder.meter, wrap_time=None)
        return report.model_copy(update={"pace_s": pace_s})


def _report(place: RankContext, loop: Loop, meter: memory.MemoryMeter, wrap_time: float | None) -> RankReport:
    outcome = loop.outcome
    timed = len(outcome.losses) - outcome.first_losses - loop.warmup_steps
    if outcome.short_pairs_s:
        # A pair of short steps stands for one step.
        timed = len(outcome.window_step_times_s)
    return RankReport(
        rank=place.rank,
        status="complete",
        wrap_time_s=wrap_time,
        memory=meter.result(),
        warmup_steps=loop.warmup_steps,
        warmup_step_times_s=tuple(outcome.warmup_step_times_s),
        cpu_s=cpu_time.spent_s(),
        is_steady=outcome.is_steady,
        is_pruned=outcome.is_pruned,
        window_step_times_s=tuple(outcome.window_step_times_s),
        own_step_times_s=tuple(outcome.own_step_times_s),
        short_steps=loop.short_step_times(),
        data_wait_s=outcome.data_wait_s,
        measured_steps=timed,
        trajectory=tuple(outcome.trajectory),
        # A sustained run has more steps than a report may have losses.
        losses=tuple(outcome.losses[:MOST_TIMES]),
        skipped_steps=loop.skipped.count,
        compiled=loop.compiled_frames(),
        versions=library_versions(),
    )


def _since_launch_s() -> float | None:
    """Seconds since the launch. The launcher read the same host's clock when it received the order."""
    launched_s = os.environ.get(LAUNCHED)
    return None if launched_s is None else now_s() - float(launched_s)
