"""Split one step of one rank, moment by moment, into computation, transfers, waits and unassigned time.

Each moment belongs to the first layer that is there, so the parts sum to the step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.trials.diagnosis import PART_LETTERS, PART_NAMES, StepParts
from shardtune.traces.kinds import purpose
from shardtune.traces.rank_trace import RankTrace, StepMark, Work
from shardtune.traces.spans import Segments, Spans, clip, contains, spans, union

_S = 1e-9
Pieces = NDArray[np.bool_]
Use = tuple[str, str, int | None]
"""Kind, purpose and group size of a collective."""


@dataclass(frozen=True)
class UseTimes:
    """Times of the collectives of one use in one step, in seconds."""

    transferring_s: float
    waiting_s: float
    exposed_s: float


@dataclass(frozen=True)
class StepTimes:
    """One step of one rank."""

    step: int
    parts: StepParts
    communication_s: float
    hidden_s: float
    uses: dict[Use, UseTimes]
    moments: "Moments"
    """Pieces of the step, for a timeline."""


@dataclass(frozen=True)
class Moments:
    """A step piece by piece, to be looked at in its moments."""

    pieces: Segments
    start: int
    part: NDArray[np.int64]
    """Index of `PART_NAMES`, by piece."""
    is_busy: Pieces
    communicates: Pieces

    def lane(self, length: int, cell: float) -> tuple[str, str]:
        """Return parts and communication in the middle of each cell, as letters."""
        if length <= 0 or not len(self.pieces.lengths):
            return "", ""
        count = max(1, round(length / cell))
        middles = self.start + ((np.arange(count) + 0.5) * length / count).astype(np.int64)
        at = self.pieces.at(middles)
        letters = np.array(list(PART_LETTERS))
        communication = np.where(self.communicates, np.where(self.is_busy, "b", "x"), ".")
        return "".join(letters[self.part[at]]), "".join(communication[at])


def windows(trace: RankTrace) -> tuple[StepMark, ...]:
    """Return the steps on the side that works: on CPU ranks the host's own, on a GPU the work that each step of the
    host has launched.

    A GPU is behind its host, so a step lasts there from its first kernel to the next step's; the last, to its own last end.
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
    """The layers of one rank's trace, and its steps cut out of them."""

    def __init__(self, trace: RankTrace, moving_from: Sequence[int]) -> None:
        self._trace = trace
        in_optimizer = contains(trace.optimizer, trace.compute.launched[:, 0])
        self._compute, self._optimizer = trace.compute.spans[~in_optimizer], trace.compute.spans[in_optimizer]
        self._uses: dict[Use, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self.uses: list[Use] = []
        """Use of each collective of the trace."""
        launches = np.array([collective.launched for collective in trace.collectives], dtype=np.int64)
        late = contains(trace.optimizer, launches)
        for collective, moment, in_step in zip(trace.collectives, moving_from, late, strict=True):
            use = (collective.kind, purpose(collective.kind, collective.elements, bool(in_step)), collective.group_size)
            self.uses.append(use)
            waited, moved = self._uses.setdefault(use, ([], []))
            waited.append((collective.start, moment))
            moved.append((moment, collective.end))

    def steps(self) -> Iterator[StepTimes]:
        """Every step that the trace has."""
        yield from (self._step(window) for window in windows(self._trace))

    def _step(self, window: StepMark) -> StepTimes:
        start, end = window.start, window.end
        waited = [spans(waits) for waits, _ in self._uses.values()]
        moved = [spans(moves) for _, moves in self._uses.values()]
        layers = self._layers(_all(waited), _all(moved), start, end)
        pieces = Segments([layer for _, layer in layers] + waited + moved, start, end)
        shown = np.array([PART_NAMES.index(name) for name, _ in layers] + [PART_NAMES.index("host")])
        part = shown[pieces.first_active(len(layers))]
        parts = {f"{name}_s": pieces.time(part == i) * _S for i, name in enumerate(PART_NAMES)}
        is_busy: Pieces = np.isin(part, [PART_NAMES.index("compute"), PART_NAMES.index("optimizer")])
        communicates: Pieces = np.any(pieces.active[len(layers) :], axis=0)
        return StepTimes(
            moments=Moments(pieces, start, part, is_busy, communicates),
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

    def _rows(self, pieces: Segments, before: int) -> Iterator[tuple[Use, Pieces, Pieces]]:
        count = len(self._uses)
        for i, use in enumerate(self._uses):
            yield use, pieces.active[before + i], pieces.active[before + count + i]

    def _layers(self, waited: Spans, moved: Spans, start: int, end: int) -> list[tuple[str, Spans]]:
        """Return the layers in order of precedence. On CPU ranks making a batch takes operators, and an optimizer in
        C++ shows none."""
        trace = self._trace
        first = [("data", trace.data)] if trace.device == "cpu" else []
        busy = [("optimizer", self._optimizer), ("compute", self._compute), ("transferring", moved)]
        other = [("copies", trace.copies.spans), ("waiting", waited)]
        if trace.device == "cpu":
            return [*first, *busy, *other, ("optimizer", trace.optimizer)]
        return [*busy, *other, ("data", trace.data), ("idle", self._launched_but_idle(start, end))]

    def _launched_but_idle(self, start: int, end: int) -> Spans:
        """Return gaps of the device after the call that launched the next operation had returned."""
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
