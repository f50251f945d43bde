"""Read the traces of one job from a folder, up to a maximum number of ranks."""

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.traces.json_pieces import UnreadableTrace, too_large
from shardtune.traces.rank_trace import RankTrace

MOST_RANKS = 64
_MOST_EVENTS = 12_000_000
"""Maximum number of events of all ranks together; all of them are in memory during the analysis."""


def diagnose_folder(folder: Path) -> Diagnosis:
    """Diagnose the traces in a folder, one per rank.

    Raises:
        UnreadableTrace: the folder has no traces, or a trace cannot be read to its end.
    """
    traces: list[RankTrace] = []
    for path in _trace_files(folder):
        # Each rank may use what the ranks before it left.
        left = _MOST_EVENTS - sum(trace.events for trace in traces)
        traces.append(_read(path, min(left, kineto.MOST_EVENTS)))
    return diagnosis(traces)


def _trace_files(folder: Path) -> Sequence[Path]:
    try:
        if folder.exists() and not folder.is_dir():
            return [folder]
        if not folder.is_dir():
            raise UnreadableTrace("it does not exist; give the folder with one trace a rank")
        files = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    except OSError as error:
        # Such as a folder of another user, or a name that is too long.
        raise UnreadableTrace(f"it cannot be read: {error.strerror or error}; check the folder") from None
    if not files:
        raise UnreadableTrace(
            "it has no .json or .json.gz; give the folder that the profiler's export of each rank went to"
        )
    if len(files) > MOST_RANKS:
        raise UnreadableTrace(
            f"it has {len(files)} traces, more than the {MOST_RANKS} that are read; leave those of some hosts"
        )
    return files


def _read(path: Path, most_events: int) -> RankTrace:
    try:
        with regular_file.open_regular(path, sys.maxsize) as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            if not is_packed and path.stat().st_size > kineto.MOST_BYTES:
                raise too_large(path.name, kineto.MOST_BYTES)
            file.seek(0)
            stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file
            return kineto.read(stream, path.name, most_events=most_events)
    except regular_file.IrregularFile as error:
        raise UnreadableTrace(f"trace ({path.name}) is no file that can be read: {error}; leave it out") from None
    except OSError as error:
        raise UnreadableTrace(
            f"trace ({path.name}) cannot be read: {error.strerror or error}; check the file"
        ) from None
