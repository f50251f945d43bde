"""The agent's trial directory, filled with what the nodes send: whoever reads results finds what ranks of this host would leave."""

import contextlib
import time
from pathlib import Path

from shardtune.api_schemas.trials.measurements import Progress
from shardtune.workers.gang.messages import RankEnded


def write_end(folder: Path, ended: RankEnded) -> None:
    """What one rank left."""
    if ended.log_tail is not None:
        (folder / f"rank_{ended.rank}.log").write_text(ended.log_tail)
    for name, content in (
        (f"rank_{ended.rank}", ended.report),
        ("model_summary", ended.model_summary),
        ("hardware", ended.measured),
    ):
        if content is not None:
            _replace(folder / f"{name}.json", content.model_dump_json())


def write_progress(folder: Path, progress: Progress) -> None:
    """How far rank 0 is."""
    _replace(folder / "progress.json", progress.model_dump_json())


def ranks_end_in_s(folder: Path) -> float | None:
    """What is left of the agent's own lease, as it last wrote it down; None: no limit."""
    with contextlib.suppress(OSError, ValueError):
        return float((folder / "deadline").read_text()) - time.clock_gettime(time.CLOCK_BOOTTIME)
    return None


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)
