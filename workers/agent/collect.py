"""Result of an attempt from its ranks' reports: one Measurement, ModelSummary, ResumeMeasurement,
ProfilerRecording or Failure.

Decisions use structured reports, exit codes and kernel counters only; logs are never searched.
"""

import statistics
from collections.abc import Sequence

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.padding import Padding, padding_of
from shardtune.api_schemas.trials.diagnosis import MemoryMoment, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TargetRehearsalTask, Task, TraceTask, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rank_reports import CheckpointPart, RankReport
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent import rank_figures
from shardtune.workers.agent.failures import crash, first_failure
from shardtune.workers.agent.supervise import RanksEnd
from shardtune.workers.trial_dir import TRACES, TrialDir

_MOST_RANKS = 64
"""Maximum number of ranks whose own figures a measurement contains. Further ranks would make it large and add little
information."""


def attempt_outcome(
    task: Task, directory: TrialDir, ended: RanksEnd, peak_flops: float | None
) -> Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | RehearsalReport | Failure:
    """Result of an attempt: a measurement, another result of the task, or a failure, joined from the reports of its
    ranks."""
    failure = first_failure(directory, ended)
    if failure is not None:
        return failure
    if isinstance(task, ModelSummaryTask):
        return directory.model_summary() or crash("the profile task ended without a profile", rank=0, exit_code=0)
    if isinstance(task, TargetRehearsalTask):
        return directory.rehearsal() or crash("the rehearsal ended without an answer", rank=0, exit_code=0)
    reports = _complete_reports([directory.report(rank) for rank in range(task.cluster.world_size)])
    if isinstance(reports, Failure):
        return reports
    if isinstance(task, TrialTask):
        return measurement(task, reports, ended, peak_flops)
    if isinstance(task, TraceTask):
        return trace_record(task, directory, reports, ended)
    before = _complete_reports([directory.first_report(rank) for rank in range(task.cluster.world_size)])
    return before if isinstance(before, Failure) else resume_measurement(before, reports, ended)


def _complete_reports(reports: Sequence[RankReport | None]) -> Sequence[RankReport] | Failure:
    complete = [report for report in reports if report is not None]
    if len(complete) == len(reports):
        return complete
    rank = reports.index(None)
    return crash(f"rank {rank} ended without a report", rank=rank, exit_code=0)


def resume_measurement(
    before: Sequence[RankReport], after: Sequence[RankReport], ended: RanksEnd
) -> ResumeMeasurement | Failure:
    """Measurement of a resume check, joined from the reports of the ranks that saved the checkpoint and of those that
    loaded it."""
    saved = [report.checkpoint for report in before if report.checkpoint is not None]
    loaded = [report.checkpoint for report in after if report.checkpoint is not None]
    if len(saved) < len(before) or len(loaded) < len(after) or saved[0].step != loaded[0].step:
        return crash("the ranks did not report what they saved or loaded", rank=None, exit_code=0)
    peaks = [
        rank_figures.largest(report.memory for report in reports if report.memory is not None)
        for reports in (before, after)
    ]
    return ResumeMeasurement(
        saved_at_step=saved[0].step,
        losses=before[0].losses,
        uninterrupted=before[0].trajectory,
        resumed=after[0].trajectory,
        save_s=max(part.seconds for part in saved),
        load_s=max(part.seconds for part in loaded),
        checkpoint_bytes=loaded[0].checkpoint_bytes,
        checkpoint_files=loaded[0].files,
        disk=saved[0].disk,
        ranks=len(saved),
        writing_ranks=_writers(saved),
        allocator_retries=rank_figures.total(memory.allocator_retries for memory in peaks),
        allocator_ooms=rank_figures.total(memory.allocator_ooms for memory in peaks),
        elapsed_s=ended.elapsed_s,
    )


def _writers(saved: Sequence[CheckpointPart]) -> int | None:
    """Number of ranks that wrote a substantial part of the checkpoint. None if the kernel's counters of written bytes
    explain less than half of it, as on a file system in memory."""
    # A file system in memory writes nothing to a disk, so that the kernel's counters stay near zero there.
    parts = [part.written_bytes for part in saved if part.written_bytes is not None]
    if len(parts) < len(saved) or sum(parts) < saved[0].checkpoint_bytes / 2:
        return None
    mean_bytes = saved[0].checkpoint_bytes / len(parts)
    return max(1, sum(part >= mean_bytes / 10 for part in parts))


def trace_record(
    task: TraceTask, directory: TrialDir, reports: Sequence[RankReport], ended: RanksEnd
) -> ProfilerRecording | Failure:
    """Description of the ranks' traces. It contains step times with and without the profiler, which show how much the
    profiler slows the steps. A failure if the traces are on another host."""
    folder = directory.path / TRACES
    if not folder.is_dir():
        return Failure(
            kind=FailureKind.SETUP,
            message="the ranks ran on another host than the worker's agent, and their traces are there; explain the study with "
            "a worker on one machine (--launcher local)",
        )
    return ProfilerRecording(
        folder=str(folder),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        steps=task.steps,
        step_s=max(report.window_step_times_s[0] for report in reports),
        # Over a cycle, as the recorded steps: single steps of samples of several lengths differ.
        plain_step_s=max(
            statistics.fmean(report.warmup_step_times_s[-task.workload.steps_per_cycle :]) for report in reports
        ),
        elapsed_s=ended.elapsed_s,
        memory=max((report.moment for report in reports if report.moment is not None), key=_fullness, default=None),
    )


def _fullness(moment: MemoryMoment) -> int:
    return moment.peak_bytes


def measurement(
    task: TrialTask, reports: Sequence[RankReport], ended: RanksEnd, peak_flops: float | None
) -> Measurement | Failure:
    """Measurement of a trial, joined from the reports of its ranks. The step time is that of the slowest rank, the
    memory that of the rank that used most. Tokens per second are computed from the workload."""
    # The slowest rank's time per window: all ranks wait for it in the next collective.
    windows = [max(steps) for steps in zip(*(report.window_step_times_s for report in reports), strict=False)]
    # One window has no spread, and so no confidence interval.
    if len(windows) < 2:
        return crash(f"the ranks timed {len(windows)} windows, too few for a measurement", rank=None, exit_code=0)
    world_size = task.cluster.world_size
    step_time_s = statistics.median(windows)
    tokens_per_s_per_gpu = task.workload.tokens_per_step / step_time_s / world_size
    memory = rank_figures.largest(report.memory for report in reports if report.memory is not None)
    limit = task.memory_limit_gib
    if limit is not None and memory.peak_allocated_gib is not None and memory.peak_allocated_gib > limit:
        return Failure(
            kind=FailureKind.OVER_LIMIT,
            message=f"a rank held {memory.peak_allocated_gib:.3f} GiB of tensors, more than its limit of {limit:.3f} GiB",
            peak_allocated_gib=memory.peak_allocated_gib,
        )
    first = reports[0]
    last_step_s = rank_figures.latest(report.steps_ended_s for report in reports)
    return Measurement(
        tokens_per_s_per_gpu=tokens_per_s_per_gpu,
        step_time_s=step_time_s,
        step_time_half_width_s=rank_figures.half_width(windows),
        mfu=model_flops_utilisation(task, tokens_per_s_per_gpu, peak_flops),
        memory=memory,
        wrap_time_s=max((r.wrap_time_s for r in reports if r.wrap_time_s is not None), default=None),
        warmup_steps=first.warmup_steps,
        measured_steps=first.measured_steps,
        window_step_times_s=tuple(windows),
        warmup_step_times_s=first.warmup_step_times_s,
        ranks=tuple(rank_figures.of_rank(report) for report in reports[:_MOST_RANKS] if report.memory is not None),
        nodes=tuple(
            rank_figures.of_host(node, reports) for node in ended.conditions.nodes if len(ended.conditions.nodes) > 1
        ),
        trajectory=first.trajectory,
        losses=first.losses,
        gradient_accumulation=task.config.accumulation(task.workload.global_batch, world_size),
        elapsed_s=ended.elapsed_s,
        is_steady=all(report.is_steady for report in reports),
        is_precise=task.plan.is_precise_enough(statistics.fmean(windows), rank_figures.half_width(windows)),
        is_pruned=first.is_pruned,
        short_steps=first.short_steps,
        padding=_padding(task),
        skipped_steps=first.skipped_steps,
        compiled=first.compiled,
        data_wait_fraction=rank_figures.data_wait_fraction(reports, windows),
        startup_s=rank_figures.latest(report.first_forward_s for report in reports),
        teardown_s=None if last_step_s is None else ended.elapsed_s - last_step_s,
    )


def _padding(task: TrialTask) -> Padding | None:
    """Numbers of padded and real tokens in the run's timed steps. None if all samples have the same length, because
    there is no padding then."""
    workload, ranks = task.workload, task.cluster.world_size
    plan = workload.sample_plan
    return None if plan is None else padding_of(plan, task.config.split(workload.global_batch, ranks))


def model_flops_utilisation(task: TrialTask, tokens_per_s_per_gpu: float, peak_flops: float | None) -> float | None:
    """Model FLOPs utilisation (MFU), as Chowdhery et al. 2022 (PaLM) define it in appendix B. Backward counts twice as
    much as forward, or less with frozen weights; recomputation does not count.

    None if the model's FLOPs or the device's peak are unknown. The known peak is that of bf16 and fp16, so that float32
    has no MFU.
    """
    if task.forward_flops_per_token is None or peak_flops is None or task.workload.precision.computes_in_float32:
        return None
    return task.passes * task.forward_flops_per_token * tokens_per_s_per_gpu / peak_flops
