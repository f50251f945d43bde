"""Questions about traces with a planted cause: every time in them is known, because this module wrote it."""

from pathlib import Path
from typing import Any

from benchmarks.agent_questions.question import Question, equals, near
from tests.support.values import synthetic_traces as made

_STEP_US = 100_000.0
_STEPS = 20


def _computing(start: float, end: float, number: int) -> list[made.Event]:
    """Kernel of one rank from start to end, launched just before."""
    kernel = made.event("kernel", "gemm", start, end, 7, correlation=number)
    return made.launched(kernel, start - 90, 5.0)


def _steps(rank: int, parts: Any) -> dict[str, Any]:
    events: list[made.Event] = []
    for number in range(_STEPS):
        begin = number * _STEP_US
        events.append(made.step(number, begin, begin + _STEP_US))
        events += parts(rank, begin, 1000 * (number + 1))
    return made.trace(rank, 2, events, "nccl")


def _write(folder: Path, parts: Any) -> str:
    return str(made.write(folder, [_steps(rank, parts) for rank in range(2)]))


def _late(rank: int, begin: float, number: int) -> list[made.Event]:
    """Rank 1 computes 30 ms longer; rank 0 waits in the reduction."""
    end = begin + (50_000 if rank == 0 else 80_000)
    reduction = made.nccl(end, begin + 90_000, number + 500, [0, 1], elements=10_000_000)
    return [*_computing(begin + 100, end, number), *made.launched(reduction, begin + 90)]


def _starved(_rank: int, begin: float, number: int) -> list[made.Event]:
    """The loader takes 40 ms of 100."""
    loading = made.event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", begin, begin + 40_000)
    kernel = made.event("kernel", "gemm", begin + 40_100, begin + 99_000, 7, correlation=number)
    return [loading, *made.launched(kernel, begin + 40_010)]


def _exposed(_rank: int, begin: float, number: int) -> list[made.Event]:
    """A reduction of 25 ms runs after the computing."""
    reduction = made.nccl(begin + 70_000, begin + 95_000, number + 500, [0, 1], elements=10_000_000)
    return [*_computing(begin + 100, begin + 70_000, number), *made.launched(reduction, begin + 90)]


def _overlapped(_rank: int, begin: float, number: int) -> list[made.Event]:
    """A reduction of 40 ms, the first 20 of them beside computing."""
    reduction = made.nccl(begin + 50_000, begin + 90_000, number + 500, [0, 1], elements=10_000_000)
    return [*_computing(begin + 100, begin + 70_000, number), *made.launched(reduction, begin + 90)]


def _healthy(_rank: int, begin: float, number: int) -> list[made.Event]:
    return _computing(begin + 100, begin + 99_000, number)


def _slow_host(_rank: int, begin: float, number: int) -> list[made.Event]:
    """A hundred kernels of 0.3 ms, each launched 0.7 ms after the last one ended."""
    events: list[made.Event] = []
    for index in range(100):
        start = begin + 1000.0 * index + 700
        kernel = made.event("kernel", "gemm", start, start + 290, 7, correlation=number * 10 + index)
        events += made.launched(kernel, start - 10)
    return events


def questions(folder: Path) -> list[Question]:
    """Write the traces below a folder, and return the questions about them."""
    plans: tuple[tuple[str, Any, str, Any, Any, str], ...] = (
        ("late", _late, "Why do my GPUs wait?", lambda a: (a[0]["late_rank"], a[0]["findings"][0]["kind"]),
         equals((1, "late_rank")), "rank 1 joins each reduction 30 ms late"),
        ("starved", _starved, "Is my data loader too slow?", lambda a: a[0]["parts"]["data"]["value"],
         near(0.4, 0.05), "the loader takes 40 of 100 ms"),
        ("starved_2", _starved, "What should I change first?", lambda a: a[0]["findings"][0]["kind"],
         equals("data_waits"), "the loader: 40 of 100 ms"),
        ("exposed", _exposed, "How much of the step is communication that nothing hides?",
         lambda a: a[0]["parts"]["transferring"]["value"], near(0.25, 0.05), "25 of 100 ms"),
        ("overlapped", _overlapped, "How much of my communication overlaps with computing?",
         lambda a: a[0]["overlap"]["value"], near(0.5, 0.05), "20 of 40 ms"),
        ("host", _slow_host, "Why is the GPU idle most of the time?",
         lambda a: a[0]["findings"][0]["kind"], equals("host_bound"), "the host launches a kernel every ms that takes 0.3"),
    )  # fmt: skip
    return [
        Question(
            "diagnosis", text, (("diagnose", {"trace_folder": _write(folder / name, parts)}),), read, is_right, key
        )
        for name, parts, text, read, is_right, key in plans
    ]
