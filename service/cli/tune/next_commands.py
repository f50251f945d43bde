"""Commands that may decide an open verdict, and write the files of an answer, for answers that are printed again.

`tune` prints its own next command (`answer.next_command`), with the options of its command line.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.service.cli.options import DEFAULT_SERVICE
from shardtune.service.cli.tune.answer import next_command
from shardtune.service.cli.tune.options import DEFAULT_OUT, DEFAULT_STATE_DIR, TuneOptions
from shardtune.service.cli.tune.quiet_options import DEFAULT_WAIT_MINUTES
from shardtune.service.client import ServiceClient
from shardtune.service.process.own_command import command_words
from shardtune.service.wording.more_pairs import more_pairs

_STUDY_FILE = Path("FILE")
"""Name that stands for the study file in a command, because the state directory does not hold that file's path."""
_CHANGES = "CHANGES.json"
"""Name that stands for a file with the fields that a clone replaces."""


def rows(
    client: ServiceClient,
    study: Study,
    result: StudyResult,
    service: str | None,
    state_dir: Path,
    key_file: Path | None = None,
) -> list[str]:
    """Return the summary's rows with the command that writes the answer's files, and with the command that may decide
    the verdict if it is open. `service`: URL of the service; None for one on the state directory. `key_file`: file
    with the service's key, if the command line names one."""
    where = ["--state-dir", str(state_dir)] if state_dir != DEFAULT_STATE_DIR else []
    if service is not None:
        where = ["--service", service, *_key_words(key_file)]
    export = shlex.join([*command_words(), "export", study.study_id, "--out", str(DEFAULT_OUT), *where])
    command = to_decide(client, study, result, service, state_dir, key_file)
    return [f"{'files':<12}{export}", *([] if command is None else [f"{'to decide':<12}{command}"])]


def to_decide(
    client: ServiceClient,
    study: Study,
    result: StudyResult,
    service: str | None,
    state_dir: Path,
    key_file: Path | None = None,
) -> str | None:
    """Return the command that may decide a study's verdict; None if the verdict is decided, if the study runs, or if
    the service started it itself."""
    is_open = result.undecided is not None or result.too_busy is not None
    if not is_open or study.state.is_open or study.system_study is not None:
        return None
    if service is not None:
        where = [] if service == DEFAULT_SERVICE else ["--service", service]
        return _on_service(study, result, [*where, *_key_words(key_file)])
    # `tune --add-pairs` extends the newest study with an answer, and no other.
    newest = next((stored.study_id for stored in client.studies() if stored.result is not None), None)
    if newest != study.study_id and more_pairs(study, result) is not None:
        serve = [*command_words(), "serve"]
        serve += ["--state-dir", str(state_dir)] if state_dir != DEFAULT_STATE_DIR else []
        worker = shlex.join([*command_words(), "worker"])
        return f"{_on_service(study, result, [])}, while `{shlex.join(serve)}` and a `{worker}` run"
    command = next_command(study, result, _options(state_dir))
    return None if command is None else command + _missing_options(study)


def _missing_options(study: Study) -> str:
    """Name the options that the command needs and the state directory does not hold; empty if it needs none."""
    own_code = ["--allow-script or --allow-model"] if study.spec.model.is_own else []
    # Without them `tune` offers one node, and rejects to continue the study.
    launcher = ["--launcher"] if study.cluster.nodes > 1 else []
    options = " and ".join([*own_code, *launcher])
    return f"; add the {options} options that the study ran with" if options else ""


def _key_words(key_file: Path | None) -> list[str]:
    return [] if key_file is None else ["--key-file", str(key_file)]


def _options(state_dir: Path) -> TuneOptions:
    return TuneOptions(
        study=_STUDY_FILE,
        ranks=None,
        max_trials=None,
        memory_gib=None,
        resume=False,
        state_dir=state_dir,
        out=DEFAULT_OUT,
        as_json=False,
    )


def _on_service(study: Study, result: StudyResult, where: Sequence[str]) -> str:
    """Return the command that extends a study on a running service by the pairs that may decide it, or clones it if no
    pairs would. `where`: words that name the service and its key."""
    more = more_pairs(study, result)
    if more is None:
        clone = [*command_words(), "studies", "clone", study.study_id, *where]
        if result.too_busy is not None:
            return f"{shlex.join(clone)}, once nothing else uses its machine"
        if result.undecided is not None and result.undecided.is_extension_off:
            changed = shlex.join([*clone, "--changes", _CHANGES])
            return f'{changed}, with the study\'s budget and "short_steps": false in that file, so that each run times whole steps'
        return f"{shlex.join(clone)} (runs it again)"
    waits = ["--wait-for-quiet-s", str(60 * DEFAULT_WAIT_MINUTES)] if more.waits_for_quiet else []
    words = [*command_words(), "studies", "extend", study.study_id, "--add-pairs", str(more.pairs), *waits, *where]
    return shlex.join(words)
