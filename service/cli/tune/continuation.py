"""Continue a stored study: `tune --resume` an unfinished one, `tune --add-pairs` one that has an answer."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from shardtune.api_schemas.machines.engines import ENGINES_IN_WORDS
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.service.cli import local_stack, read
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.options import LAUNCHER_VARIABLE, worker_launcher
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.cli.tune.quiet_options import WAIT_FOR_QUIET
from shardtune.service.client import ServiceClient, ServiceRejected
from shardtune.service.wording.more_pairs import more_pairs
from shardtune.service.workers import compatibility, hardware_shape
from shardtune.tuner.freshness.fingerprints import stale_fields

FOLDER = "studies"
"""Name of the folder in the state directory for study files that `tune` writes, so that a command can name such a file
to run its study again."""
_NO_WORKER = "no_worker"
"""Error code with which the service answers that no live worker can continue a study."""


def check_unchanged(options: TuneOptions) -> None:
    """Reject command-line options that would change the stored study that the command continues.

    Raises:
        InputError: names the option, its value and the remedy.
    """
    flag = _flag(options)
    for name, value in options.of_a_new_study():
        # Further pairs may wait; a search that goes on keeps its own wait.
        if name == WAIT_FOR_QUIET and options.add_pairs:
            continue
        raise InputError(
            f"{name} ({value}) would change the study that {flag} continues as it was stored; leave it out, or "
            "start a new study without " + flag
        )


def check_state_dir(options: TuneOptions) -> None:
    """Reject a state directory that does not exist before anything is written, because no study is stored there.

    Raises:
        InputError: names the directory and the remedy.
    """
    # A database of the environment holds the study, wherever its job ran before.
    if local_stack.DATABASE_VARIABLE not in os.environ and not read.is_folder(options.state_dir):
        raise InputError(
            f"{_flag(options)}: --state-dir ({options.state_dir}) does not exist; name the directory of the study, or "
            "start one with `shardtune tune FILE`"
        )


def find(client: ServiceClient, options: TuneOptions) -> Study:
    """Find the newest unfinished study for `--resume`, or the newest with an answer for `--add-pairs`.

    Raises:
        InputError: there is no such study, or the options offer fewer nodes or another number of ranks than it needs.
    """
    kind = "unfinished" if options.resume else "finished"
    candidates = [study for study in client.studies() if (study.state.is_open if options.resume else study.result)]
    if not candidates:
        raise InputError(
            f"{_flag(options)}: no {kind} study in --state-dir ({options.state_dir}); start one with `shardtune tune FILE`"
        )
    study = max(candidates, key=lambda study: study.created_at)
    _check_ranks(study.cluster, options)
    _check_nodes(study.cluster, options)
    return study


def earlier_confirmation(client: ServiceClient, spec: StudyRequest) -> Study | None:
    """Find an earlier study that compares the same configurations on the same target cluster, if it is unfinished or
    more paired runs would decide it. None if there is no such study, or `spec` does not confirm an answer on a target.

    The measurements of the earlier study are used again, because the cluster job that ran it may have reached its time
    limit or been requeued.
    """
    # In a shared database another job may be at work on that study.
    if spec.confirms is None or local_stack.DATABASE_VARIABLE in os.environ:
        return None
    same = [study for study in client.studies() if _compares_the_same(study.spec, spec)]
    newest = max(same, key=lambda study: study.created_at, default=None)
    is_open = newest is not None and (newest.state.is_open or deciding_pairs(newest) is not None)
    return newest if is_open else None


def deciding_pairs(study: Study) -> Extension | None:
    """Return an extension of a finished study, with the number of paired runs that should decide it; None if the study
    is unfinished or decided."""
    more = None if study.result is None or study.state.is_open else more_pairs(study, study.result)
    return None if more is None else Extension(add_pairs=more.pairs)


def _compares_the_same(stored: StudyRequest, spec: StudyRequest) -> bool:
    return stored.confirms == spec.confirms and stored.space == spec.space and stored.baseline == spec.baseline


def _check_ranks(cluster: Cluster, options: TuneOptions) -> None:
    # On GPUs --ranks limits what the worker offers, which may be more than the study uses.
    needed, offered = cluster.gpus_per_node, options.ranks
    if offered is None or offered == needed or (cluster.device == "cuda" and offered > needed):
        return
    raise InputError(
        f"--ranks ({offered}) would change the study that {_flag(options)} continues, which has {needed} ranks; "
        "leave it out, or start a new study"
    )


def _check_nodes(cluster: Cluster, options: TuneOptions) -> None:
    # A worker of fewer nodes would wait for ever. Without --nodes it gets the study's own number, if it has a launcher.
    is_local = worker_launcher(options.hosts) == "local"
    offered = 1 if is_local else options.nodes
    if offered is None or offered >= cluster.nodes or local_stack.DATABASE_VARIABLE in os.environ:
        return
    shown, remedy = f"--nodes ({offered})", "leave it out"
    if is_local:
        is_stated = bool("--launcher" in options.hosts or os.environ.get(LAUNCHER_VARIABLE))
        shown, remedy = f"--launcher ({'local' if is_stated else 'missing'})", f"add --launcher {ENGINES_IN_WORDS}"
    raise InputError(
        f"{shown} offers {offered} of the {cluster.nodes} nodes of the study that {_flag(options)} continues; {remedy}, "
        "or start a new study"
    )


def check_worker(client: ServiceClient, study: Study, worker_name: str, options: TuneOptions) -> None:
    """Reject the continuation of a study whose runs this machine's worker would not get, since they would wait for
    ever.

    Raises:
        InputError: names what differs, and the remedy.
    """
    # In a shared database another worker may run it.
    if not options.resume or local_stack.DATABASE_VARIABLE in os.environ:
        return
    live = (worker.inventory for worker in client.workers() if worker.name == worker_name and worker.is_live)
    inventory = next(live, None)
    if inventory is None:
        return
    if not hardware_shape.has_same_shape(inventory.cluster, study.cluster):
        here, needed = compatibility.describe(inventory.cluster), compatibility.describe(study.cluster)
        raise InputError(
            f"--resume: study {study.study_id} needs {needed}, and this machine has {here}; continue it on that hardware, or "
            "start a new study"
        )
    changes = (
        () if study.fingerprint is None else stale_fields(study.fingerprint, inventory.fingerprint, study.cluster.nodes)
    )
    if changes:
        differences = ", ".join(
            f"{field} ({getattr(inventory.fingerprint, field)} instead of {getattr(study.fingerprint, field)})"
            for field in changes
        )
        raise InputError(
            f"--resume: study {study.study_id} does not compare with new runs on this machine: other {differences}; restore "
            "it, or start a new study"
        )


def pause_others(client: ServiceClient, study: Study | None, *, is_one_of_several: bool = False) -> None:
    """Pause all other running studies of the state directory, because the service would run older studies first.

    `is_one_of_several`: whether the command runs several studies; it may then itself continue a paused study later.
    """
    # A database of the environment may be shared: other people's studies keep running.
    if local_stack.DATABASE_VARIABLE not in os.environ:
        for other in client.studies():
            if other.state is StudyState.RUNNING and (study is None or other.study_id != study.study_id):
                client.pause(other.study_id, paused=True)
                remedy = "" if is_one_of_several else "; --resume continues the newest"
                sys.stderr.write(f"study {other.study_id} is unfinished and was paused{remedy}\n")
    if study is not None and study.state is StudyState.PAUSED:
        client.pause(study.study_id, paused=False)


def begin_or_continue(
    client: ServiceClient,
    study: Study | None,
    spec: StudyRequest | None,
    options: TuneOptions,
    say: Callable[[str], None],
) -> Study:
    """Create a study, or extend the stored one by the paired runs that its verdict lacks or that `--add-pairs` asks
    for.

    A study that compares configurations on the target cluster begins anew if this machine can no longer extend it.
    After an update of torch, for example, old and new measurements would not be comparable.

    Raises:
        InputError: the service rejects the request.
        PlatformFailure: the service failed.
    """
    if study is not None:
        more = due_extension(study, options)
        if more is None:
            return study
        try:
            return client.extend(study.study_id, more)
        except ServiceRejected as rejected:
            if spec is None or rejected.code != _NO_WORKER:
                raise _error_of(rejected) from None
            say(f"{rejected.detail}; a new comparison begins instead")
    assert spec is not None
    try:
        return client.create_study(spec, options.study_id)
    except ServiceRejected as rejected:
        raise _error_of(rejected) from None


def _error_of(rejected: ServiceRejected) -> InputError | PlatformFailure:
    return InputError(*rejected.lines()) if rejected.is_input_error else PlatformFailure(*rejected.lines())


def due_extension(study: Study, options: TuneOptions) -> Extension | None:
    """Return the extension of a study by paired runs: by as many as `--add-pairs` asks for, or as a finished
    comparison on the target cluster needs for its verdict. None for an unfinished study."""
    if not options.add_pairs:
        return deciding_pairs(study) if study.spec.confirms is not None else None
    minutes = options.wait_for_quiet_min
    return Extension(add_pairs=options.add_pairs, wait_for_quiet_s=None if minutes is None else 60 * minutes)


def write_study(study: Study, state_dir: Path) -> Path:
    """Write a stored study as a study file and return the file's path, which a command can name to run the study
    again.

    Raises:
        InputError: the file cannot be written.
    """
    path = state_dir / FOLDER / f"{study.study_id}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(study.spec.model_copy(update={"cluster": study.cluster}).model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; choose another --state-dir") from None
    return path


def _flag(options: TuneOptions) -> str:
    return "--resume" if options.resume else "--add-pairs"
