"""`shardtune studies`: what a running service has, and what its user does about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from shardtune.api_schemas.studies.study import Study, StudyState
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.service.cli.connection import running, study_named
from shardtune.service.cli.errors import InputError, Interrupted, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService, StudyId
from shardtune.service.cli.signals import signals_interrupt

if TYPE_CHECKING:
    from shardtune.service.cli import study_file, summary
    from shardtune.service.cli.tune import job, progress_lines
    from shardtune.service.client import ServiceClient
    from shardtune.service.wording import study_words
else:
    progress_lines, summary = (
        LazyModule("shardtune.service.cli.tune.progress_lines"),
        LazyModule("shardtune.service.cli.summary"),
    )
    study_file = LazyModule("shardtune.service.cli.study_file")
    study_words = LazyModule("shardtune.service.wording.study_words")
    job = LazyModule("shardtune.service.cli.tune.job")

app = typer.Typer(help="Studies of a running service: list, create, follow and change them.", no_args_is_help=True)

Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most; without it, until it ends.")]
NewId = Annotated[str | None, typer.Option("--id", help="An id of your choice for the new study.")]


@app.command("list")
def list_studies(
    state: Annotated[list[StudyState] | None, typer.Option(help="Only these; give the option once per state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print studies, newest first."""
    with running(service, key_file) as client:
        found = client.studies(state or (), limit)
    if as_json:
        print(json.dumps({"studies": [study.model_dump(mode="json") for study in found]}))
    else:
        print("\n".join(map(summary.study_line, found)) or "no studies")


@app.command()
def show(
    study: StudyId = "last",
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one study as it stands."""
    _change(study, service, key_file, as_json, lambda _, found: found)


@app.command()
def create(
    file: Annotated[Path, typer.Argument(help="A study file; its cluster is one that a worker of the service has.")],
    study_id: NewId = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it ends; Ctrl-C cancels it.")] = False,
    timeout_s: Timeout = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a study from a file."""
    spec = study_file.study_spec(study_file.read_json_object(file), file.parent)
    with running(service, key_file) as client, _interruptible("interrupted; the study was cancelled, results are kept"):
        created = client.create_study(spec, study_id)
        for line in created.warnings:
            job.say(f"note: {line}")
        if not wait:
            _print(created, as_json)
            return
        job.say(f"study {created.study_id}")
        with client.owning(created.study_id):
            _follow(client, created.study_id, timeout_s, as_json)


@app.command()
def wait(
    study: StudyId = "last",
    timeout_s: Timeout = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Follow a study until it ends, and print its answer. Ctrl-C ends the waiting; the study goes on."""
    with running(service, key_file) as client, _interruptible("no longer waiting; the study goes on"):
        _follow(client, study_named(client, study).study_id, timeout_s, as_json)


@app.command()
def pause(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Give out no more runs of a study; those that run may finish."""
    _change(study, service, key_file, as_json, lambda client, found: client.pause(found.study_id, paused=True))


@app.command()
def resume(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Go on with a paused study."""
    _change(study, service, key_file, as_json, lambda client, found: client.pause(found.study_id, paused=False))


@app.command()
def cancel(
    study: StudyId, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """End a study for good; what was measured is kept."""
    _change(study, service, key_file, as_json, lambda client, found: client.cancel(found.study_id))


@app.command()
def extend(
    study: StudyId,
    add_trials: Annotated[int | None, typer.Option(help="More trials of the search.")] = None,
    add_gpu_seconds: Annotated[float | None, typer.Option(help="More seconds × ranks.")] = None,
    add_wall_seconds: Annotated[float | None, typer.Option(help="More seconds, from now if all are used.")] = None,
    add_pairs: Annotated[int | None, typer.Option(help="More pairs for the verdict.")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Raise a study's budget, also when it has ended: it goes on from its trials, and its verdict is renewed."""
    given = {"trials": add_trials, "gpu_seconds": add_gpu_seconds, "wall_seconds": add_wall_seconds, "pairs": add_pairs}
    try:
        more = Extension.model_validate({f"add_{name}": value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    _change(study, service, key_file, as_json, lambda client, found: client.extend(found.study_id, more))


@app.command()
def clone(
    study: StudyId,
    changes: Annotated[Path | None, typer.Option(help="JSON file with the fields to replace, such as budget.")] = None,
    new_id: NewId = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a study from another one's spec; nothing else is taken over."""
    try:
        request = CloneRequest.model_validate(study_file.read_json_object(changes) if changes else {})
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    _change(study, service, key_file, as_json, lambda client, found: client.clone(found.study_id, request, new_id))


@app.command()
def delete(
    study: Annotated[str, typer.Argument(help="Its id.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Its answer is served no longer, but what was served before.")
    ] = False,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Leave a study out of all lists; what runs of it is cancelled. `undelete` takes it back."""
    _change(study, service, key_file, as_json, lambda client, found: client.delete(found.study_id, withdraw))


@app.command()
def undelete(
    study: Annotated[str, typer.Argument(help="Its id.")],
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a deleted study again."""
    _change(study, service, key_file, as_json, lambda client, found: client.undelete(found.study_id))


@app.command()
def pareto(
    study: StudyId = "last",
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the fastest trial for each amount of memory."""
    with running(service, key_file) as client:
        front = client.pareto(study_named(client, study).study_id)
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
    """Print which knobs mattered for speed."""
    with running(service, key_file) as client:
        found = client.importance(study_named(client, study).study_id)
    if as_json:
        print(found.model_dump_json())
        return
    for knob in found.knobs:
        print(f"{knob.importance:>6.1%}  {knob.knob}{'' if knob.is_above_chance else '  (could be chance)'}")
    print(found.reason or f"of {found.trials} feasible trials, {found.fastest} of them the fastest")


def _change(
    name: str, service: str, key_file: Path | None, as_json: bool, act: Callable[[ServiceClient, Study], Study]
) -> None:
    with running(service, key_file) as client:
        _print(act(client, study_named(client, name)), as_json)


@contextmanager
def _interruptible(words: str) -> Iterator[None]:
    with signals_interrupt():
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(words) from None


def _follow(client: ServiceClient, study_id: str, timeout_s: float | None, as_json: bool) -> None:
    """Tell what happens on stderr, then the answer."""
    with progress_lines.LineView(job.say) as view:

        def seen(study: Study) -> None:
            elapsed_s = (
                (study.finished_at or datetime.now(UTC)) - (study.started_at or study.created_at)
            ).total_seconds()
            view.show(study, client.trials(study_id), client.rejections(study_id), elapsed_s)

        try:
            study = client.wait(study_id, seen, timeout_s)
        except TimeoutError as error:
            raise PlatformFailure(f"{error}; it goes on") from None
    if study.result is None:
        raise job.without_result(study, client.trials(study_id))
    if as_json:
        print(json.dumps(summary.as_json(study, study.result, client.trials(study_id))))
    else:
        print(summary.as_text(study, study.result, client.trials(study_id), client.rejections(study_id)))


def _print(study: Study, as_json: bool) -> None:
    print(study.model_dump_json() if as_json else summary.study_text(study))
