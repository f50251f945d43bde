"""Commands that may decide an open verdict, and write the files of an answer, for answers that are printed again.

`tune` prints its own next command (`answer.next_command`), with the options of its command line.
"""

import shlex
from pathlib import Path

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.service.cli.options import DEFAULT_SERVICE
from shardtune.service.cli.tune.answer import next_command
from shardtune.service.cli.tune.options import DEFAULT_OUT, DEFAULT_STATE_DIR, TuneOptions
from shardtune.service.cli.tune.quiet_options import DEFAULT_WAIT_MINUTES
from shardtune.service.client import ServiceClient
from shardtune.service.wording.more_pairs import more_pairs

_STUDY_FILE = Path("FILE")
"""Name that stands for the study file in a command, because the state directory does not hold that file's path."""
_OWN_CODE = "; add the --allow-script or --allow-model options that the study ran with"


def rows(client: ServiceClient, study: Study, result: StudyResult, service: str | None, state_dir: Path) -> list[str]:
    """Return the summary's rows with the command that writes the answer's files, and with the command that may decide
    the verdict if it is open. `service`: URL of the service; None for one on the state directory."""
    where = ["--state-dir", str(state_dir)] if state_dir != DEFAULT_STATE_DIR else []
    if service is not None:
        where = ["--service", service]
    export = shlex.join(["shardtune", "export", study.study_id, "--out", str(DEFAULT_OUT), *where])
    command = to_decide(client, study, result, service, state_dir)
    return [f"{'files':<12}{export}", *([] if command is None else [f"{'to decide':<12}{command}"])]


def to_decide(
    client: ServiceClient, study: Study, result: StudyResult, service: str | None, state_dir: Path
) -> str | None:
    """Return the command that may decide a study's verdict; None if the verdict is decided, if the study runs, or if
    the service started it itself."""
    is_open = result.undecided is not None or result.too_busy is not None
    if not is_open or study.state.is_open or study.system_study is not None:
        return None
    if service is not None:
        return _on_service(study, result, service)
    # `tune --add-pairs` extends the newest study with an answer, and no other.
    newest = next((stored.study_id for stored in client.studies() if stored.result is not None), None)
    if newest != study.study_id and more_pairs(study, result) is not None:
        serve = ["shardtune", "serve"]
        serve += ["--state-dir", str(state_dir)] if state_dir != DEFAULT_STATE_DIR else []
        return f"{_on_service(study, result, DEFAULT_SERVICE)}, while `{shlex.join(serve)}` runs"
    command = next_command(study, result, _options(state_dir))
    return command if command is None or not study.spec.model.is_own else command + _OWN_CODE


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


def _on_service(study: Study, result: StudyResult, service: str) -> str:
    """Return the command that extends a study on a running service by the pairs that may decide it, or clones it if no
    pairs would."""
    where = [] if service == DEFAULT_SERVICE else ["--service", service]
    more = more_pairs(study, result)
    if more is None:
        clone = shlex.join(["shardtune", "studies", "clone", study.study_id, *where])
        if result.too_busy is not None:
            return f"{clone}, once nothing else uses its machine"
        return f"{clone} (runs it again)"
    waits = ["--wait-for-quiet-s", str(60 * DEFAULT_WAIT_MINUTES)] if more.waits_for_quiet else []
    words = ["shardtune", "studies", "extend", study.study_id, "--add-pairs", str(more.pairs), *waits, *where]
    return shlex.join(words)
