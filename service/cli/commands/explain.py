"""`shardtune explain`: where the steps of a training job went, from the traces of its ranks or of a trial run again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.trials.diagnosis import PART_NAMES, CollectiveFigures, Diagnosis, StepParts
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AllowModel, AsJson, KeyFile, Service, StateDir, worker_options
from shardtune.service.wording.diagnosis_words import (
    bytes_in_words,
    columns_in_words,
    cost,
    expected_in_words,
    findings_in_words,
    memory_in_words,
    sentences,
    share,
    speed_in_words,
    use_in_words,
)

if TYPE_CHECKING:
    from shardtune.service.cli import remedy_job
    from shardtune.service.cli.explain import explain_request, trace_files, trace_run
else:
    explain_request = LazyModule("shardtune.service.cli.explain.explain_request")
    remedy_job = LazyModule("shardtune.service.cli.remedy_job")
    trace_files = LazyModule("shardtune.service.cli.explain.trace_files")
    trace_run = LazyModule("shardtune.service.cli.explain.trace_run")

app = typer.Typer()

_WIDTH = 150
"""Of a table that is not on a terminal."""
_MOST_ROWS = 12


@app.command()
def explain(
    study: Annotated[
        str | None, typer.Argument(help="A study of `tune`: its id, or `last` (default) for the newest.")
    ] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="The number of a trial; the answer without it.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Instead: a folder with one Kineto trace of each rank (.json, .json.gz), of any training job."
        ),
    ] = None,
    try_remedy: Annotated[
        bool,
        typer.Option("--try", help="Measure the first remedy in a study of its own: paired runs with and without it."),
    ] = False,
    state_dir: StateDir = Path(".shardtune"),
    service: Service = None,
    key_file: KeyFile = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for a worker of --service; without it, until it is told."),
    ] = None,
    as_json: AsJson = False,
    allow_model: AllowModel = None,
) -> None:
    """Say where the steps of a training job went: computing, communication, waiting for other ranks, the host."""
    if trace is not None and (study is not None or trial is not None):
        raise InputError(f"--trace ({trace}) says what to explain; leave out the study and --trial")
    if trace is not None and try_remedy:
        raise InputError(f"--try measures a trial of a study, and --trace ({trace}) is none; leave out one of them")
    if trace is None and service is not None:
        if try_remedy:
            raise InputError(
                f"--try measures on this machine; leave out --service ({service}), and unset SHARDTUNE_SERVICE_URL if it says so"
            )
        found = explain_request.asked(study or "last", trial, service, key_file, timeout_s)
    elif trace is None:
        recorded = trace_run.record(study or "last", trial, state_dir, worker_options(allow_model, None))
        found = trace_files.explained_trial(recorded)
        if try_remedy:
            found = remedy_job.tried(recorded, found, state_dir, worker_options(allow_model, None))
    else:
        found = trace_files.explained(trace)
    if as_json:
        print(found.model_dump_json())
    else:
        show(found)


def show(found: Diagnosis) -> None:
    """Print the parts of each rank, the collectives, three sentences, the findings, and what could not be told."""
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(_parts(found))
    console.print(columns_in_words(found), style="dim")
    if found.collectives:
        console.print(_collectives(found))
    console.print()
    for sentence in sentences(found):
        console.print(sentence)
    if found.expected:
        console.print(expected_in_words(found))
    if found.recorded is not None and found.recorded.memory is not None:
        console.print(memory_in_words(found.recorded.memory))
    console.print()
    for line in findings_in_words(found):
        console.print(line)
    if found.recorded is not None:
        console.print(cost(found.recorded))
    for note in found.notes:
        console.print(f"note: {note}", style="dim")


def _parts(found: Diagnosis) -> Table:
    """Means over the steps: of the first ranks, and of all."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("rank", "step ms", *PART_NAMES, "hidden comm"):
        shown.add_column(heading, justify="right")
    by_rank = {rank: [one for one in found.steps if one.rank == rank] for rank in found.ranks}
    for rank, own in list(by_rank.items())[:_MOST_ROWS]:
        mean = _mean_of([one.parts for one in own])
        hidden_s = sum(one.hidden_s for one in own) / len(own) if own else 0.0
        shown.add_row(str(rank), *_row(mean, hidden_s))
    if len(by_rank) > 1:
        hidden_s = sum(one.hidden_s for one in found.steps) / len(found.steps)
        shown.add_row("all", *_row(found.parts, hidden_s))
    return shown


def _mean_of(some: Sequence[StepParts]) -> StepParts:
    count = max(1, len(some))
    return StepParts(**{f"{name}_s": sum(getattr(one, f"{name}_s") for one in some) / count for name in PART_NAMES})


def _row(parts: StepParts, hidden_s: float) -> list[str]:
    step_s = parts.step_s or 1.0
    shares = [getattr(parts, f"{name}_s") / step_s for name in PART_NAMES]
    return [f"{1e3 * parts.step_s:,.1f}", *(f"{one:.1%}" for one in shares), f"{hidden_s / step_s:.1%}"]


def _collectives(found: Diagnosis) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "collectives, a step and rank",
        "ranks",
        "calls",
        "message",
        "speed",
        "transfer ms",
        "wait ms",
        "exposed",
    ):
        shown.add_column(heading, justify="left" if heading.startswith("coll") else "right")
    for one in found.collectives[:_MOST_ROWS]:
        shown.add_row(*_use_row(one, found))
    return shown


def _use_row(one: CollectiveFigures, found: Diagnosis) -> list[str]:
    return [
        use_in_words(one),
        "" if one.group_size is None else str(one.group_size),
        f"{one.calls:,.1f}",
        "" if one.message_bytes is None else bytes_in_words(one.message_bytes),
        "" if one.bytes_per_s is None else speed_in_words(one.bytes_per_s),
        f"{1e3 * one.transferring_s:,.2f}",
        f"{1e3 * one.waiting_s:,.2f}",
        f"{share(one.exposed_s, found):.1%}",
    ]
