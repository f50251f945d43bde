"""Read the traces of one job from a folder: which files they are, and how many are too many."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from shardtune.api_schemas.diagnosis import Diagnosis
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.explaining.trace_run import Recorded
from shardtune.tuner.diagnosis import kineto
from shardtune.tuner.diagnosis.diagnose import diagnosis
from shardtune.tuner.diagnosis.findings import traced_trial
from shardtune.tuner.diagnosis.findings.find import findings
from shardtune.tuner.diagnosis.json_pieces import UnreadableTrace, too_large
from shardtune.tuner.diagnosis.rank_trace import RankTrace

MOST_RANKS = 64


def explained(folder: Path) -> Diagnosis:
    """Of a job of which nothing else is known.

    Raises:
        InputError: see `diagnosis_of`.
    """
    found = diagnosis_of(folder)
    return found.model_copy(update={"findings": findings(found)})


def explained_trial(recorded: Recorded) -> Diagnosis:
    """Of a trial of a study, with remedies that its space and the memory gate admit.

    Raises:
        InputError: see `diagnosis_of`.
    """
    found = diagnosis_of(Path(recorded.traced.folder))
    trial = traced_trial.of_study(recorded.study, recorded.task.config)
    seen = findings(found, trial, recorded.link_bytes_per_s)
    return found.model_copy(update={"recorded": recorded.traced, "findings": seen})


def diagnosis_of(folder: Path) -> Diagnosis:
    """Of the traces in a folder, one a rank.

    Raises:
        InputError: there are none, or one cannot be read to its end.
    """
    paths = _traces(folder)
    try:
        return diagnosis([_read(path) for path in paths])
    except UnreadableTrace as error:
        raise InputError(f"--trace ({folder}): {error}") from None


def _traces(folder: Path) -> Sequence[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(f"--trace ({folder}) does not exist; give the folder with one trace a rank")
    found = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    if not found:
        raise InputError(
            f"--trace ({folder}) has no .json or .json.gz; give the folder that the profiler's export of each rank went to"
        )
    if len(found) > MOST_RANKS:
        raise InputError(
            f"--trace ({folder}) has {len(found)} traces, more than the {MOST_RANKS} that are read; leave those of some hosts"
        )
    return found


def _read(path: Path) -> RankTrace:
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            if not is_packed and path.stat().st_size > kineto.MOST_BYTES:
                raise too_large(path.name, kineto.MOST_BYTES)
            file.seek(0)
            stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file
            return kineto.read(stream, path.name)
    except OSError as error:
        raise InputError(f"--trace ({path}) cannot be read: {error.strerror or error}; check the file") from None
