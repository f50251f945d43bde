"""`shardtune studies`: list, create, follow and change the studies of a running service."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.service.cli.connection import connect, find_study
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService, StudyId

if TYPE_CHECKING:
    from shardtune.service.cli import study_file, summary
    from shardtune.service.cli.tune import follow, job, next_commands
    from shardtune.service.client import ServiceClient
    from shardtune.service.trackers import optuna_storage
    from shardtune.service.wording import study_words
else:
    optuna_storage = LazyModule("shardtune.service.trackers.optuna_storage")
    follow = LazyModule("shardtune.service.cli.tune.follow")
    summary = LazyModule("shardtune.service.cli.summary")
    study_file = LazyModule("shardtune.service.cli.study_file")
    study_words = LazyModule("shardtune.service.wording.study_words")
    job = LazyModule("shardtune.service.cli.tune.job")
    next_commands = LazyModule("shardtune.service.cli.tune.next_commands")

app = typer.Typer(help="List, create, follow and change studies of a running service.", no_args_is_help=True)

Timeout = Annotated[float | None, typer.Option(min=0, help="Maximum seconds to wait (default: no limit).")]
NewId = Annotated[str | None, typer.Option("--id", help="Id of the new study (default: chosen by the service).")]


@app.command("list")
def list_studies(
    state: Annotated[
        list[StudyState] | None, typer.Option(help="Only studies in this state; repeat the option for several.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 50,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print studies, newest first."""
    with connect(service, key_file) as client:
        studies = client.studies(state or (), limit)
    if as_json:
        print(json.dumps({"studies": [study.model_dump(mode="json") for study in studies]}))
    else:
        print("\n".join(map(summary.study_row, studies)) or "no studies")


@app.command()
def show(
    study: StudyId = "last",
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the current state of a study."""
    _change_study(study, service, key_file, as_json, lambda _, chosen: chosen)


@app.command()
def create(
    file: Annotated[Path, typer.Argument(help="Study file, whose cluster is one of the service's workers.")],
    study_id: NewId = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the study until it ends; Ctrl-C cancels it.")] = False,
    timeout_s: Timeout = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a study from a file."""
    spec = study_file.validate_study(study_file.read_json_object(file), file.parent)
    kept = "the study was cancelled, or completed if its answer was known; results are kept"
    with (
        connect(service, key_file) as client,
        follow.interruptible_with(f"interrupted; {kept}" if wait else "interrupted"),
    ):
        created = client.create_study(spec, study_id)
        for line in created.warnings:
            job.print_progress(f"note: {line}")
        if not wait:
            _print_study(client, created, as_json)
            return
        job.print_progress(f"study {created.study_id}")
        # Only a study that this command created is cancelled by Ctrl-C; `wait` may follow somebody else's.
        with client.owning(created.study_id):
            follow.follow_study(client, created.study_id, timeout_s, as_json)
        _print_next(client, client.study(created.study_id), service, key_file, as_json)


@app.command()
def wait(
    study: StudyId = "last",
    timeout_s: Timeout = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow a study until it ends, and print its answer. Ctrl-C stops only the waiting; the study continues."""
    with connect(service, key_file) as client, follow.interruptible_with("no longer waiting; the study continues"):
        chosen = find_study(client, study).study_id
        follow.follow_study(client, chosen, timeout_s, as_json)
        _print_next(client, client.study(chosen), service, key_file, as_json)


@app.command()
def pause(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Pause a study: no new run starts, and running ones finish."""
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.pause(chosen.study_id, paused=True))


@app.command()
def resume(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Resume a paused study."""
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.pause(chosen.study_id, paused=False))


@app.command()
def cancel(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Cancel a study for good; its measurements are kept."""
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.cancel(chosen.study_id))


@app.command()
def extend(
    study: StudyId,
    add_trials: Annotated[int | None, typer.Option(help="Number of trials to add to the search.")] = None,
    add_gpu_seconds: Annotated[float | None, typer.Option(help="GPU-seconds (seconds × ranks) to add.")] = None,
    add_wall_seconds: Annotated[
        float | None, typer.Option(help="Seconds to add; they count from now if the budget is used up.")
    ] = None,
    add_pairs: Annotated[
        int | None,
        typer.Option(
            help="Number of paired runs to add for the verdict; raises limits of GPU-seconds and time as needed."
        ),
    ] = None,
    wait_for_quiet_s: Annotated[
        float | None, typer.Option(help="Seconds that runs may wait in all until the machine is quiet.")
    ] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Extend the budget of a study, even an ended one: it continues from its trials and renews its verdict."""
    additions = {
        "trials": add_trials,
        "gpu_seconds": add_gpu_seconds,
        "wall_seconds": add_wall_seconds,
        "pairs": add_pairs,
    }
    try:
        extension = Extension.model_validate(
            {f"add_{name}": value for name, value in additions.items() if value is not None}
            | ({} if wait_for_quiet_s is None else {"wait_for_quiet_s": wait_for_quiet_s})
        )
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.extend(chosen.study_id, extension))


@app.command()
def clone(
    study: StudyId,
    changes: Annotated[Path | None, typer.Option(help="JSON file with the fields to replace, such as budget.")] = None,
    new_id: NewId = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a study from another study's spec, and from nothing else of it."""
    try:
        request = CloneRequest.model_validate(study_file.read_json_object(changes) if changes else {})
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    _change_study(
        study, service, key_file, as_json, lambda client, chosen: client.clone(chosen.study_id, request, new_id)
    )


@app.command()
def delete(
    # No default: `last` would delete the newest study by accident.
    study: Annotated[str, typer.Argument(help="Study id.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw its recommendation; the previous one is recommended again.")
    ] = False,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Hide a study from all lists and cancel its runs; `undelete` restores it."""
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.delete(chosen.study_id, withdraw))


@app.command()
def undelete(
    study: Annotated[str, typer.Argument(help="Study id.")],
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Restore a deleted study."""
    _change_study(study, service, key_file, as_json, lambda client, chosen: client.undelete(chosen.study_id))


@app.command()
def pareto(
    study: StudyId = "last",
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the fastest trial for each amount of memory."""
    with connect(service, key_file) as client:
        front = client.pareto(find_study(client, study).study_id)
    if as_json:
        print(front.model_dump_json())
        return
    for point in front.points:
        speed, memory = study_words.rate(point.tokens_per_s_per_gpu), study_words.memory(point.peak_memory_gib)
        print(f"{memory:>10}  {speed:>9} tokens/s/GPU  trial {point.trial_number}: {point.description}")


@app.command()
def importance(
    study: StudyId = "last",
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the importance of each knob for speed."""
    with connect(service, key_file) as client:
        importances = client.importance(find_study(client, study).study_id)
    if as_json:
        print(importances.model_dump_json())
        return
    for knob in importances.knobs:
        print(f"{knob.importance:>6.1%}  {knob.knob}{'' if knob.is_above_chance else '  (could be chance)'}")
    print(
        importances.reason
        or f"from {importances.trials} feasible trials, {importances.fastest} of them counted as fast"
    )


@app.command("to-optuna")
def to_optuna(
    storage: Annotated[
        str, typer.Option(metavar="URL", help="Optuna storage as SQLAlchemy names it, such as sqlite:///trials.db.")
    ],
    study: StudyId = "last",
    name: Annotated[str | None, typer.Option(help="Name in the storage (default: the study's id).")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Write the ended trials of a study into an Optuna storage, for optuna-dashboard; a repetition adds new ones."""
    with connect(service, key_file) as client:
        chosen = find_study(client, study)
        trials = client.trials(chosen.study_id)
    try:
        written = optuna_storage.write_study(chosen, trials, storage, name)
    except optuna_storage.StorageRejected as error:
        raise InputError(f"--{error}") from None
    if as_json:
        print(json.dumps(asdict(written)))
    else:
        waiting = f"; {written.waiting} have not ended yet" if written.waiting else ""
        print(f"study {written.name!r}: {counted(written.added, 'trial')} added, {written.kept} were there{waiting}")


def _change_study(
    name: str, service: str, key_file: Path | None, as_json: bool, act: Callable[[ServiceClient, Study], Study]
) -> None:
    with connect(service, key_file) as client:
        changed = act(client, find_study(client, name))
        _print_study(client, changed, as_json)
        _print_next(client, changed, service, key_file, as_json)


def _print_next(client: ServiceClient, study: Study, service: str, key_file: Path | None, as_json: bool) -> None:
    """Print the commands that follow an ended study's answer: those that write its files and may decide its verdict.
    With `--json`, print nothing: stdout holds one object."""
    is_ended = not study.state.is_open and study.deleted_at is None
    if is_ended and study.result is not None and not as_json:
        print("\n".join(next_commands.rows(client, study, study.result, service, Path(), key_file)))


def _print_study(client: ServiceClient, study: Study, as_json: bool) -> None:
    if as_json:
        print(study.model_dump_json())
    else:
        print(summary.study_text(study, client.trials(study.study_id) if study.result is not None else ()))
