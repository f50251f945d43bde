"""`shardtune explain`: explain step time from the traces of a training job, or of a trial that is run again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.diagnosis import PART_NAMES, CollectiveFigures, Diagnosis, StepParts
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AllowModel, AsJson, KeyFile, Service, StateDir, worker_options
from shardtune.service.cli.terminal import PrintableConsole
from shardtune.service.wording.diagnosis_words import (
    bytes_in_words,
    collective_in_words,
    columns_in_words,
    expected_in_words,
    findings_in_words,
    fraction_of_step,
    memory_in_words,
    profiling_cost,
    summary_sentences,
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
"""Width of the output in characters if stdout is not a terminal."""
_MOST_ROWS = 12


@app.command()
def explain(
    study: Annotated[str | None, typer.Argument(help="Study id, or `last` (default) for the newest study.")] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Number of the trial (default: the recommended one).")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Folder with one Kineto trace per rank (.json, .json.gz) of any training job, in place of a study."
        ),
    ] = None,
    try_remedy: Annotated[
        bool,
        typer.Option("--try", help="Measure the first remedy in a new study: paired runs with and without it."),
    ] = False,
    state_dir: StateDir = Path(".shardtune"),
    service: Service = None,
    key_file: KeyFile = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="Maximum seconds to wait for a worker of --service (default: no limit)."),
    ] = None,
    as_json: AsJson = False,
    allow_model: AllowModel = None,
) -> None:
    """Explain the step time of a training job: computing, communication, waiting for other ranks, the host."""
    if trace is not None and (study is not None or trial is not None):
        raise InputError(f"--trace ({trace}) replaces the study; leave out the study and --trial")
    if trace is not None and try_remedy:
        raise InputError(
            f"--try measures a trial of a study, and --trace ({trace}) has no study; leave out one of them"
        )
    # Without --service the trial runs here: its study may be of a state directory whose `tune` has ended.
    if trace is None and service is not None:
        if try_remedy:
            raise InputError(
                f"--try measures on this machine; leave out --service ({service}), and unset SHARDTUNE_SERVICE_URL if it is set"
            )
        diagnosis = explain_request.request_diagnosis(study or "last", trial, service, key_file, timeout_s)
    elif trace is None:
        recorded = trace_run.record_trial(study or "last", trial, state_dir, worker_options(allow_model, None))
        diagnosis = trace_files.explain_trial(recorded)
        if try_remedy:
            diagnosis = remedy_job.measure_remedy(recorded, diagnosis, state_dir, worker_options(allow_model, None))
    else:
        diagnosis = trace_files.explain_folder(trace)
    if as_json:
        print(diagnosis.model_dump_json())
    else:
        show(diagnosis)


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis: the parts of each rank's step, the collectives, sentences that sum them up, the findings and
    the notes."""
    # Rich assumes 80 columns for a pipe, and would break each row over several lines.
    console = PrintableConsole(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(_parts_table(diagnosis))
    console.print(columns_in_words(diagnosis), style="dim")
    if diagnosis.collectives:
        console.print(_collectives_table(diagnosis))
    console.print()
    for sentence in summary_sentences(diagnosis):
        console.print(sentence)
    if diagnosis.expected:
        console.print(expected_in_words(diagnosis))
    if diagnosis.recorded is not None and diagnosis.recorded.memory is not None:
        console.print(memory_in_words(diagnosis.recorded.memory))
    console.print()
    for line in findings_in_words(diagnosis):
        console.print(line)
    if diagnosis.recorded is not None:
        console.print(profiling_cost(diagnosis.recorded))
    for note in diagnosis.notes:
        console.print(f"note: {note}", style="dim")


def _parts_table(diagnosis: Diagnosis) -> Table:
    """Return the table of the mean parts of a step: a row for each of the first ranks, and one row for all ranks."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("rank", "step ms", *PART_NAMES, "hidden comm"):
        shown.add_column(heading, justify="right")
    by_rank = {rank: [step for step in diagnosis.steps if step.rank == rank] for rank in diagnosis.ranks}
    # A row per rank of a large job would scroll the findings off the screen; the last row covers all of them.
    for rank, steps in list(by_rank.items())[:_MOST_ROWS]:
        mean = _mean_of([step.parts for step in steps])
        hidden_s = sum(step.hidden_s for step in steps) / len(steps) if steps else 0.0
        shown.add_row(str(rank), *_fractions_row(mean, hidden_s))
    if len(by_rank) > 1:
        hidden_s = sum(step.hidden_s for step in diagnosis.steps) / len(diagnosis.steps)
        shown.add_row("all", *_fractions_row(diagnosis.parts, hidden_s))
    return shown


def _mean_of(parts: Sequence[StepParts]) -> StepParts:
    count = max(1, len(parts))
    return StepParts(**{f"{name}_s": sum(getattr(part, f"{name}_s") for part in parts) / count for name in PART_NAMES})


def _fractions_row(parts: StepParts, hidden_s: float) -> list[str]:
    # A rank without a complete step has only zeros.
    step_s = parts.step_s or 1.0
    fractions = [getattr(parts, f"{name}_s") / step_s for name in PART_NAMES]
    return [f"{1e3 * parts.step_s:,.1f}", *(f"{fraction:.1%}" for fraction in fractions), f"{hidden_s / step_s:.1%}"]


def _collectives_table(diagnosis: Diagnosis) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "collectives per step and rank",
        "ranks",
        "calls",
        "message",
        "speed",
        "transfer ms",
        "wait ms",
        "exposed",
    ):
        shown.add_column(heading, justify="left" if heading.startswith("coll") else "right")
    for collective in diagnosis.collectives[:_MOST_ROWS]:
        shown.add_row(*_collective_row(collective, diagnosis))
    return shown


def _collective_row(collective: CollectiveFigures, diagnosis: Diagnosis) -> list[str]:
    return [
        collective_in_words(collective),
        "" if collective.group_size is None else str(collective.group_size),
        f"{collective.calls:,.1f}",
        "" if collective.message_bytes is None else bytes_in_words(collective.message_bytes),
        "" if collective.bytes_per_s is None else speed_in_words(collective.bytes_per_s),
        f"{1e3 * collective.transferring_s:,.2f}",
        f"{1e3 * collective.waiting_s:,.2f}",
        f"{fraction_of_step(collective.exposed_s, diagnosis):.1%}",
    ]
