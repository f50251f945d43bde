"""Divide one step of one rank's trace into computation, transfers, waits and unassigned time. Each moment is assigned
to the first active layer by precedence, so that the parts sum to the step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.trials.diagnosis import PART_LETTERS, PART_NAMES, StepParts
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.traces.kinds import purpose
from shardtune.traces.rank_trace import RankTrace, StepMark, Work
from shardtune.traces.spans import Segments, Spans, clip, contains, spans, union

_S = 1e-9
_MOST_USES = 256
_MOST_CELLS = 1 << 27
"""Maximum size of the table for one step. The size is the number of pieces into which the step is cut, times the number
of layers (such as computation or collectives); each cell takes a byte or more."""
Pieces = NDArray[np.bool_]
Use = tuple[str, str, int | None]
"""Kind, purpose and group size of a collective, by which collectives are grouped."""


@dataclass(frozen=True)
class UseTimes:
    """Seconds of the collectives of one kind, purpose and group size in one step."""

    transferring_s: float
    waiting_s: float
    exposed_s: float


@dataclass(frozen=True)
class StepTimes:
    """Times of one step on one rank: how long each part of it took, and how long its collectives took."""

    step: int
    parts: StepParts
    communication_s: float
    hidden_s: float
    uses: dict[Use, UseTimes]
    moments: "Moments | None"
    """Pieces into which the step is cut, from which its timeline is drawn; None for steps whose timeline is not
    shown."""


@dataclass(frozen=True)
class Moments:
    """Step of one rank, cut into pieces in each of which the same activities last; from it the activity at any moment
    can be read."""

    pieces: Segments
    start: int
    part: NDArray[np.int64]
    """Index into `PART_NAMES` of the part of the step to which each piece belongs."""
    is_busy: Pieces
    communicates: Pieces

    def lane(self, length: int, cell: float) -> tuple[str, str]:
        """Return two rows of letters for a timeline: for each cell, the part of the step at the cell's middle, and
        whether the rank communicates then."""
        if length <= 0 or not len(self.pieces.lengths):
            return "", ""
        count = max(1, round(length / cell))
        middles = self.start + ((np.arange(count) + 0.5) * length / count).astype(np.int64)
        at = self.pieces.at(middles)
        letters = np.array(list(PART_LETTERS))
        communication = np.where(self.communicates, np.where(self.is_busy, "b", "x"), ".")
        return "".join(letters[self.part[at]]), "".join(communication[at])


def windows(trace: RankTrace) -> tuple[StepMark, ...]:
    """Return the start and end of each step on the device that does the work. On CPU ranks these are the profiler's
    step marks.

    A GPU runs later than its host. There a step lasts from its first kernel to the first kernel of the next step, and
    the last step ends with its last kernel.
    """
    marks = trace.steps or (StepMark(0, trace.first, trace.last),)
    if trace.device == "cpu":
        return marks
    nccl = [(collective.start, collective.end) for collective in trace.collectives]
    work = np.concatenate((trace.compute.spans, trace.copies.spans, spans(nccl)))
    launches = np.array([collective.launched for collective in trace.collectives], dtype=np.int64)
    launched = np.concatenate((trace.compute.launched[:, 0], trace.copies.launched[:, 0], launches))
    own = [work[(launched >= mark.start) & (launched < mark.end)] for mark in marks]
    steps_with_work = [
        (mark, spans_of_step) for mark, spans_of_step in zip(marks, own, strict=True) if len(spans_of_step)
    ]
    begins = np.maximum.accumulate([int(spans_of_step[:, 0].min()) for _, spans_of_step in steps_with_work] or [0])
    ends = [*begins[1:], max(int(steps_with_work[-1][1][:, 1].max()), int(begins[-1]))] if steps_with_work else []
    return tuple(
        StepMark(mark.number, int(begin), int(end))
        for (mark, _), begin, end in zip(steps_with_work, begins, ends, strict=False)
    )


class RankTimes:
    """Layers of one rank's trace (computation, collectives, copies, …), from which the times of its steps are
    calculated."""

    def __init__(self, trace: RankTrace, moving_from: Sequence[int]) -> None:
        self._trace, self._windows = trace, windows(trace)
        in_optimizer = contains(trace.optimizer, trace.compute.launched[:, 0])
        self._compute, self._optimizer = trace.compute.spans[~in_optimizer], trace.compute.spans[in_optimizer]
        self._uses: dict[Use, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self.uses: list[Use] = []
        """Kind, purpose and group size of each collective of the trace."""
        launches = np.array([collective.launched for collective in trace.collectives], dtype=np.int64)
        late = contains(trace.optimizer, launches)
        for collective, moment, in_step in zip(trace.collectives, moving_from, late, strict=True):
            use = (collective.kind, purpose(collective.kind, collective.elements, bool(in_step)), collective.group_size)
            self.uses.append(use)
            waited, moved = self._uses.setdefault(use, ([], []))
            waited.append((collective.start, moment))
            moved.append((moment, collective.end))

    @property
    def step_numbers(self) -> list[int]:
        """Numbers of the steps recorded in the trace, in order of time."""
        return [window.number for window in self._windows]

    def steps(self, shown: int | None) -> Iterator[StepTimes]:
        """Yield the times of every recorded step. The pieces for a timeline are kept only for the step with the number
        `shown`; those of all steps of a long trace would take gigabytes."""
        for window in self._windows:
            yield self._step(window, is_shown=window.number == shown)

    def _step(self, window: StepMark, is_shown: bool) -> StepTimes:
        start, end = window.start, window.end
        waited = [spans(waits) for waits, _ in self._uses.values()]
        moved = [spans(moves) for _, moves in self._uses.values()]
        layers = self._layers(_all(waited), _all(moved), start, end)
        intervals = [layer for _, layer in layers] + waited + moved
        self._check_size(intervals, start, end)
        pieces = Segments(intervals, start, end)
        shown = np.array([PART_NAMES.index(name) for name, _ in layers] + [PART_NAMES.index("host")])
        part = shown[pieces.first_active(len(layers))]
        parts = {f"{name}_s": pieces.time(part == i) * _S for i, name in enumerate(PART_NAMES)}
        is_busy: Pieces = np.isin(part, [PART_NAMES.index("compute"), PART_NAMES.index("optimizer")])
        communicates: Pieces = np.any(pieces.active[len(layers) :], axis=0)
        return StepTimes(
            moments=Moments(pieces, start, part, is_busy, communicates) if is_shown else None,
            step=window.number,
            parts=StepParts(**parts),
            communication_s=pieces.time(communicates) * _S,
            hidden_s=pieces.time(communicates & is_busy) * _S,
            uses={
                use: UseTimes(
                    transferring_s=pieces.time(moving) * _S,
                    waiting_s=pieces.time(waits & ~moving) * _S,
                    exposed_s=pieces.time((moving | waits) & ~is_busy) * _S,
                )
                for use, waits, moving in self._rows(pieces, len(layers))
            },
        )

    def _check_size(self, intervals: Sequence[Spans], start: int, end: int) -> None:
        """Reject a step whose table of pieces and layers would be too large. Its size follows from the contents of the
        trace file, which may come from anyone."""
        pieces = sum(2 * len(clip(layer, start, end)) for layer in intervals)
        if len(self._uses) > _MOST_USES or len(intervals) * pieces > _MOST_CELLS:
            raise UnreadableTrace(
                f"trace ({self._trace.name}): a step has {pieces // 2:,} events and {len(self._uses)} kinds, purposes and "
                "group sizes of collectives, more than are analysed; record shorter steps"
            )

    def _rows(self, pieces: Segments, before: int) -> Iterator[tuple[Use, Pieces, Pieces]]:
        count = len(self._uses)
        for i, use in enumerate(self._uses):
            yield use, pieces.active[before + i], pieces.active[before + count + i]

    def _layers(self, waited: Spans, moved: Spans, start: int, end: int) -> list[tuple[str, Spans]]:
        """Return the layers of the trace (such as computation or collectives) in order of precedence: a moment belongs
        to the first layer that is active then. The order differs on CPU ranks, where creating a batch runs operators,
        and an optimizer in C++ records no operators."""
        trace = self._trace
        first = [("data", trace.data)] if trace.device == "cpu" else []
        busy = [("optimizer", self._optimizer), ("compute", self._compute), ("transferring", moved)]
        other = [("copies", trace.copies.spans), ("waiting", waited)]
        if trace.device == "cpu":
            return [*first, *busy, *other, ("optimizer", trace.optimizer)]
        return [*busy, *other, ("data", trace.data), ("idle", self._launched_but_idle(start, end))]

    def _launched_but_idle(self, start: int, end: int) -> Spans:
        """Return the periods in which the device was idle although the host had already launched the device's next
        operation."""
        nccl = [(collective.start, collective.end) for collective in self._trace.collectives]
        calls_of_nccl = [(collective.launched, collective.launched) for collective in self._trace.collectives]
        every = [self._trace.compute, self._trace.copies, Work(spans(nccl), spans(calls_of_nccl))]
        work = np.concatenate([layer.spans for layer in every])
        launched = np.concatenate([layer.launched for layer in every])
        order = np.argsort(work[:, 0], kind="stable")
        begins, calls = work[order, 0], launched[order, 1]
        busy = union(clip(work, start, end))
        gaps = np.stack((np.append([start], busy[:, 1]), np.append(busy[:, 0], [end])), axis=1)
        following = np.searchsorted(begins, gaps[:, 1], side="left")
        has_following = following < len(begins)
        call = (
            np.where(has_following, calls[np.minimum(following, max(len(calls) - 1, 0))], gaps[:, 1])
            if len(calls)
            else gaps[:, 1]
        )
        return np.stack((np.clip(call, gaps[:, 0], gaps[:, 1]), gaps[:, 1]), axis=1)


def _all(some: list[Spans]) -> Spans:
    return np.concatenate(some) if some else spans([])
