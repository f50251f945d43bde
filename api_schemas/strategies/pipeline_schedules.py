"""Pipeline schedules: the order in which a rank runs micro batches through its pipeline stages, and the assignment of
stages to ranks."""

from dataclasses import dataclass
from typing import Literal, get_args

PipelineSchedule = Literal[
    "1f1b", "gpipe", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v"
]
"""Name of a pipeline schedule of `torch.distributed.pipelining`: 1F1B (PipeDream-Flush, arXiv:2006.09503), GPipe
(arXiv:1811.06965), interleaved 1F1B (arXiv:2104.04473), its zero-bubble and V-shaped zero-bubble forms
(arXiv:2401.10241), and DualPipeV (after arXiv:2412.19437)."""
SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)


@dataclass(frozen=True)
class ScheduleFacts:
    """Properties of a pipeline schedule."""

    title: str
    """Name of the schedule in torchtitan. With the prefix `Schedule` it is the name of the class in torch."""
    is_interleaved: bool = False
    """Whether the schedule places several stages on each rank, either in a loop (stage i on rank i modulo the number of
    ranks) or in a V shape."""
    is_v: bool = False
    """Whether the schedule places two stages on each rank in a V shape. The second stages are in reverse order, so that
    the first rank has the first and the last stage."""
    has_rounds: bool = False
    """Whether the schedule runs the micro batches of a step in rounds of equal length."""
    splits_backward: bool = False
    """Whether the schedule computes the gradients of weights separately, later than the gradients of inputs, for which
    other ranks wait."""
    per_rank: int = 1
    """Minimum number of micro batches in a step, divided by the number of ranks of the pipeline."""


FACTS: dict[str, ScheduleFacts] = {
    "1f1b": ScheduleFacts("1F1B"),
    "gpipe": ScheduleFacts("GPipe"),
    "interleaved_1f1b": ScheduleFacts("Interleaved1F1B", is_interleaved=True, has_rounds=True),
    "interleaved_zero_bubble": ScheduleFacts(
        "InterleavedZeroBubble", is_interleaved=True, has_rounds=True, splits_backward=True
    ),
    "zbv_zero_bubble": ScheduleFacts("ZBVZeroBubble", is_interleaved=True, is_v=True, splits_backward=True),
    "dual_pipe_v": ScheduleFacts("DualPipeV", is_interleaved=True, is_v=True, splits_backward=True, per_rank=2),
}


def stages_of_rank(rank: int, ranks: int, virtual: int, is_v: bool = False) -> tuple[int, ...]:
    """Return the numbers of the pipeline stages that a rank holds, in order."""
    if is_v:
        return rank, 2 * ranks - 1 - rank
    return tuple(rank + ranks * chunk for chunk in range(virtual))


def check_virtual(schedule: str, virtual: int, ranks: int) -> None:
    """Reject a number of virtual stages per rank (`virtual`) that the pipeline schedule does not allow on `ranks`
    ranks.

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
    if FACTS[schedule].is_v and virtual != 2:
        raise ValueError(
            f"pipeline_virtual_stages ({virtual}) must be 2 under pipeline_schedule {schedule!r}, whose stages form a V"
        )
    if not FACTS[schedule].is_interleaved and virtual > 1:
        raise ValueError(
            f"pipeline_virtual_stages ({virtual}) needs a schedule with several stages on a rank, and pipeline_schedule is "
            f"{schedule!r}; use 'interleaved_1f1b' or 1"
        )


def check_split(schedule: str, keeps: bool, waits: bool) -> None:
    """Reject a pipeline schedule that delays the gradients of weights unless the settings allow it. They must keep
    parameters gathered from forward to backward (`keeps`), and reduce gradients after the last micro batch (`waits`).

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if not FACTS[schedule].splits_backward:
        return
    why = f"pipeline_schedule ({schedule!r}) computes gradients of weights later than those of hidden states"
    if not keeps:
        raise ValueError(f"{why}, by parameters that are still gathered; set reshard_after_forward to false")
    if not waits:
        raise ValueError(f"{why}, so that none is whole before the last micro batch; set grad_sync to 'last'")


def check_checkpointing(schedule: str, is_selective: bool) -> None:
    """Reject selective activation checkpointing with a pipeline schedule that runs backward twice per block, since
    torch (2.13) recomputes only once.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if FACTS[schedule].splits_backward and is_selective:
        raise ValueError(
            f"pipeline_schedule ({schedule!r}) goes through each block backward twice, which torch's selective checkpointing does "
            "not allow; set activation_checkpointing to 'full' or 'none', or use 'interleaved_1f1b'"
        )


def obstacle(schedule: str, ranks: int, micro_batches: int) -> str | None:
    """Return the reason why a pipeline schedule cannot run a step with this number of micro batches (torch 2.13); None
    if it can."""
    facts, rounds = FACTS[schedule], max(1, micro_batches // ranks)
    if facts.has_rounds and micro_batches % rounds:
        return (
            f"takes the micro batches of a step in rounds for {ranks} ranks, and {micro_batches} do not divide into {rounds}; use a "
            f"micro_batch that leaves a multiple of {ranks}, or '1f1b'"
        )
    if micro_batches < facts.per_rank * ranks:
        return (
            f"needs {facts.per_rank} micro batches in a step for each of {ranks} ranks, and there are {micro_batches}; use a smaller "
            "micro_batch, or '1f1b'"
        )
    return None


def check_micro_batches(schedule: str, ranks: int, micro_batches: int) -> None:
    """Reject a number of micro batches per step that the pipeline schedule cannot run.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    why = obstacle(schedule, ranks, micro_batches)
    if ranks > 1 and why is not None:
        raise ValueError(f"pipeline_schedule ({schedule!r}) {why}")
