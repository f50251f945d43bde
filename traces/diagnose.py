"""Combine the trace tables of all ranks into one diagnosis, with notes on the questions that the traces cannot answer."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean

from shardtune.api_schemas.trials.diagnosis import (
    PART_NAMES,
    CollectiveFigures,
    Diagnosis,
    Lane,
    LateRank,
    RankStep,
    StepParts,
    Timeline,
)
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.traces.matched_collectives import (
    clock_offsets,
    join_moments,
    matched_collectives,
    shift_trace,
    steps_of,
    waits_by_late_rank,
)
from shardtune.traces.parts import RankTimes, StepTimes, Use
from shardtune.traces.rank_trace import RankTrace

_LEAST_WAIT = 0.01
"""Fraction of a step's time. If ranks wait less than this for another rank, no late rank is reported."""
_MOST_RANKS_TOLD = 3
_CELLS, _MOST_LANES = 200, 16
"""Maximum number of cells in a row of a timeline, and maximum number of rows, of which each shows one rank."""


def diagnosis(traces: Sequence[RankTrace]) -> Diagnosis:
    """Diagnose the traces of one job, one per rank.

    Raises:
        UnreadableTrace: the traces are of different jobs, or two are of the same rank.
    """
    ordered = sorted(traces, key=lambda trace: trace.rank)
    _check_one_job(ordered)
    instances = matched_collectives(ordered)
    offsets = clock_offsets(ordered, instances)
    ordered = [shift_trace(trace, offset) for trace, offset in zip(ordered, offsets, strict=True)]
    moving = join_moments(ordered, instances)
    times = [RankTimes(trace, moments) for trace, moments in zip(ordered, moving, strict=True)]
    numbers = sorted({number for own in times for number in own.step_numbers})
    shown = numbers[len(numbers) // 2] if numbers else None
    steps = [
        (trace.rank, step)
        for at, (trace, own) in enumerate(zip(ordered, times, strict=True))
        for step in own.steps(shown if at < _MOST_LANES else None)
    ]
    if not steps:
        raise UnreadableTrace(
            f"trace ({ordered[0].name}): nothing ran on the device within its steps; record whole steps (call prof.step() "
            "after each)"
        )
    rank_steps = [_rank_step(rank, step) for rank, step in steps]
    communicated, hidden = sum(step.communication_s for step in rank_steps), sum(step.hidden_s for step in rank_steps)
    step_s = fmean(step.parts.step_s for step in rank_steps)
    return Diagnosis(
        device=ordered[0].device,
        world_size=ordered[0].world_size,
        ranks=tuple(trace.rank for trace in ordered),
        step_s=_rounded(step_s),
        parts=_mean([step.parts for step in rank_steps]),
        overlap=round(min(1.0, hidden / communicated), 4) if communicated else None,
        steps=tuple(rank_steps),
        collectives=tuple(_figures(ordered, times, [step for _, step in steps])),
        late_rank=_late_rank(ordered, waits_by_late_rank(ordered, instances), rank_steps, step_s),
        timeline=_timeline(steps),
        notes=tuple(_notes(ordered, any(instance.is_complete for instance in instances), offsets)),
    )


def _check_one_job(traces: Sequence[RankTrace]) -> None:
    twice = [rank for rank, count in Counter(trace.rank for trace in traces).items() if count > 1]
    if twice:
        names = ", ".join(trace.name for trace in traces if trace.rank == twice[0])
        raise UnreadableTrace(
            f"rank {twice[0]} has {len(names.split(', '))} traces ({names}); leave one trace per rank"
        )
    if len({trace.world_size for trace in traces}) > 1 or len({trace.device for trace in traces}) > 1:
        sizes = ", ".join(f"{trace.name}: {trace.device}, {trace.world_size} ranks" for trace in traces[:4])
        raise UnreadableTrace(f"the traces are not of one job ({sizes}); put each job's into a folder of its own")


def _rounded(seconds: float) -> float:
    """Round seconds to nanoseconds, because further digits in the JSON would show more than was measured."""
    return round(seconds, 9)


def _mean(parts_of_steps: Sequence[StepParts]) -> StepParts:
    return StepParts(
        **{f"{name}_s": _rounded(fmean(getattr(parts, f"{name}_s") for parts in parts_of_steps)) for name in PART_NAMES}
    )


def _rank_step(rank: int, step: StepTimes) -> RankStep:
    return RankStep(
        rank=rank,
        step=step.step,
        parts=_mean([step.parts]),
        communication_s=_rounded(step.communication_s),
        hidden_s=_rounded(step.hidden_s),
    )


def _figures(
    traces: Sequence[RankTrace], times: Sequence[RankTimes], steps: Sequence[StepTimes]
) -> list[CollectiveFigures]:
    """Return the figures of the collectives, one entry for each kind, purpose and group size. The entries are sorted by
    the time in which no computation ran beside the collectives, longest first."""
    called: dict[Use, list[tuple[int | None, float | None]]] = defaultdict(list)
    for trace, own in zip(traces, times, strict=True):
        for collective, use, step in zip(trace.collectives, own.uses, steps_of(trace), strict=True):
            if step is not None:
                called[use].append((collective.message_bytes, collective.moved_bytes))
    figures = [_use_figures(use, sizes, steps) for use, sizes in called.items()]
    return sorted(figures, key=lambda figure: -figure.exposed_s)


def _use_figures(
    use: Use, sizes: Sequence[tuple[int | None, float | None]], steps: Sequence[StepTimes]
) -> CollectiveFigures:
    of_step = [step.uses[use] for step in steps if use in step.uses]
    transferring_s = sum(times.transferring_s for times in of_step) / len(steps)
    messages = [size for size, _ in sizes if size is not None]
    moved = [size for _, size in sizes if size is not None]
    moved_bytes = sum(moved) / len(steps) if len(moved) == len(sizes) else None
    return CollectiveFigures(
        kind=use[0],
        purpose=use[1],
        group_size=use[2],
        calls=round(len(sizes) / len(steps), 2),
        message_bytes=round(fmean(messages)) if len(messages) == len(sizes) else None,
        moved_bytes=None if moved_bytes is None else round(moved_bytes),
        transferring_s=_rounded(transferring_s),
        waiting_s=_rounded(sum(times.waiting_s for times in of_step) / len(steps)),
        exposed_s=_rounded(sum(times.exposed_s for times in of_step) / len(steps)),
        bytes_per_s=round(moved_bytes / transferring_s) if moved_bytes and transferring_s > 0 else None,
    )


def _timeline(steps: Sequence[tuple[int, StepTimes]]) -> Timeline | None:
    """Return the timeline of the step whose activity was kept in detail, with the same time scale for all ranks."""
    shown = [(rank, step, step.moments) for rank, step in steps if step.moments is not None][:_MOST_LANES]
    longest = max((step.parts.step_s for _, step, _ in shown), default=0.0)
    if longest <= 0:
        return None
    lanes = []
    for rank, step, moments in shown:
        length = round(1e9 * step.parts.step_s)
        parts, communication = moments.lane(length, 1e9 * longest / _CELLS)
        lanes.append(Lane(rank=rank, parts=parts, communication=communication))
    return Timeline(step=shown[0][1].step, seconds=_rounded(longest), lanes=tuple(lanes))


def _late_rank(
    traces: Sequence[RankTrace], waited: dict[int, dict[int, int]], rank_steps: Sequence[RankStep], step_s: float
) -> LateRank | None:
    """Return the rank for which the other ranks wait most; None if they wait too short a time to report."""
    by_trace: Counter[int] = Counter()
    for step in waited.values():
        by_trace.update(step)
    if not by_trace.total():
        return None
    late, most = by_trace.most_common(1)[0]
    share = most / by_trace.total()
    others_wait_s = share * fmean(
        rank_step.parts.waiting_s for rank_step in rank_steps if rank_step.rank != traces[late].rank
    )
    if others_wait_s < _LEAST_WAIT * step_s:
        return None
    return LateRank(
        rank=traces[late].rank,
        share_of_waiting=round(share, 4),
        others_wait_s=_rounded(others_wait_s),
        steps=sum(1 for step in waited.values() if max(step, key=lambda at: step[at]) == late),
    )


def _message_sizes(trace: RankTrace) -> Iterator[int | None]:
    """Yield the message size of each collective that was launched within a step. Barriers are skipped, because they
    have no message."""
    for collective, step in zip(trace.collectives, steps_of(trace), strict=True):
        if step is not None and collective.kind != "barrier":
            yield collective.message_bytes


def _notes(traces: Sequence[RankTrace], has_whole: bool, offsets: Sequence[int]) -> Iterator[str]:
    world = traces[0].world_size
    communicates = any(trace.collectives for trace in traces)
    if not communicates:
        yield "no collectives of NCCL or gloo are in the traces: one process, or another library; communication is 0"
    if world is not None and len(traces) < world:
        known = {trace.rank for trace in traces}
        # One more than is told, and no list of all: a trace may claim any number of ranks.
        missing = list(islice((rank for rank in range(world) if rank not in known), _MOST_RANKS_TOLD + 1))
        shown = ", ".join(map(str, missing[:_MOST_RANKS_TOLD])) + (", …" if len(missing) > _MOST_RANKS_TOLD else "")
        yield f"{len(traces)} of {world} ranks: what the others did (rank {shown}) is not known"
    if any(trace.has_unnamed_groups for trace in traces):
        yield (
            "gloo does not say which process group a collective is of, and this job has several: waiting for other ranks is "
            "counted as transferring"
        )
    elif communicates and not has_whole:
        yield (
            "no collective was found on all of its ranks: waiting for other ranks is counted as transferring, or is a lower "
            "bound"
        )
    if any(not trace.steps for trace in traces):
        yield "no steps are marked (ProfilerStep#): the whole trace is taken for one step; call prof.step() after each"
    if any(size is None for trace in traces for size in _message_sizes(trace)):
        yield "some collectives come without sizes: bytes are unknown (record_shapes=True, or torch 2.2 and later on GPUs)"
    if any(offsets):
        most = max(offsets, key=abs)
        yield f"the ranks' clocks were {abs(most) / 1e6:.1f} ms apart; they were aligned by the ends of common collectives"
