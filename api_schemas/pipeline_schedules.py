"""Schedules of a pipeline: in which order a rank takes micro batches through its stages, and where stages lie."""

from dataclasses import dataclass
from typing import Literal, get_args

PipelineSchedule = Literal["1f1b", "gpipe", "interleaved_1f1b"]
"""1F1B (PipeDream-Flush, arXiv:2006.09503), GPipe (arXiv:1811.06965) and interleaved 1F1B (arXiv:2104.04473), by
`torch.distributed.pipelining`."""
SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)


@dataclass(frozen=True)
class ScheduleFacts:
    """What has to be known of one."""

    title: str
    """torch's name and torchtitan's; with `Schedule` before it, torch's class."""
    is_interleaved: bool = False
    """Several stages lie on a rank: stage i on rank i modulo the ranks."""


FACTS: dict[str, ScheduleFacts] = {
    "1f1b": ScheduleFacts("1F1B"),
    "gpipe": ScheduleFacts("GPipe"),
    "interleaved_1f1b": ScheduleFacts("Interleaved1F1B", is_interleaved=True),
}


def stages_of_rank(rank: int, ranks: int, virtual: int) -> tuple[int, ...]:
    """The stages of one of the ranks, in order."""
    return tuple(rank + ranks * chunk for chunk in range(virtual))


def check_virtual(schedule: str, virtual: int, ranks: int) -> None:
    """Refuse a number of stages on each of so many ranks that the schedule does not have.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if virtual > 1 and ranks == 1:
        raise ValueError(
            f"pipeline_virtual_stages ({virtual}) needs several ranks, and pipeline_parallel is 1; use 1, with '1f1b'"
        )
    if FACTS[schedule].is_interleaved and virtual == 1:
        raise ValueError(
            f"pipeline_schedule ({schedule!r}) needs several stages on a rank, and pipeline_virtual_stages is 1; set it to 2 or "
            "more, or use '1f1b'"
        )
    if not FACTS[schedule].is_interleaved and virtual > 1:
        raise ValueError(
            f"pipeline_virtual_stages ({virtual}) needs a schedule with several stages on a rank, and pipeline_schedule is "
            f"{schedule!r}; use 'interleaved_1f1b' or 1"
        )


def divides(schedule: str, ranks: int, micro_batches: int) -> bool:
    """Whether the schedule can take so many micro batches in a step: an interleaved one in rounds of equal length (torch 2.13,
    `ScheduleInterleaved1F1B`)."""
    return (
        schedule not in FACTS or not FACTS[schedule].is_interleaved or not micro_batches % _rounds(ranks, micro_batches)
    )


def check_micro_batches(schedule: str, ranks: int, micro_batches: int) -> None:
    """Refuse a step that the schedule cannot divide.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if not divides(schedule, ranks, micro_batches):
        raise ValueError(
            f"pipeline_schedule ({schedule!r}) takes the micro batches of a step in rounds for {ranks} ranks, and {micro_batches} do "
            f"not divide into {_rounds(ranks, micro_batches)}; use a micro_batch that leaves a multiple of {ranks}, or '1f1b'"
        )


def _rounds(ranks: int, micro_batches: int) -> int:
    return max(1, micro_batches // ranks)
