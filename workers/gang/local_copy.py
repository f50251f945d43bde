"""Agent's trial directory, filled from the node agents' messages: contains the same files as if the ranks had run on
this host."""

import contextlib
import time
from pathlib import Path

from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.gang.messages import RankEnded


def write_end(folder: Path, ended: RankEnded) -> None:
    """Write the report, log and results of one rank into the agent's trial directory."""
    if ended.log_tail is not None:
        (folder / f"rank_{ended.rank}.log").write_text(ended.log_tail)
    for name, content in (
        (f"rank_{ended.rank}", ended.report),
        ("model_summary", ended.model_summary),
        ("rehearsal", ended.rehearsal),
        ("hardware", ended.measured),
    ):
        if content is not None:
            _replace(folder / f"{name}.json", content.model_dump_json())


def write_progress(folder: Path, progress: Progress) -> None:
    """Write the progress of rank 0 into the agent's trial directory."""
    _replace(folder / "progress.json", progress.model_dump_json())


def ranks_end_in_s(folder: Path) -> float | None:
    """Seconds left of the agent's own lease, as the agent last wrote them into the folder; None if there is no
    limit."""
    with contextlib.suppress(OSError, ValueError):
        return float((folder / "deadline").read_text()) - time.clock_gettime(time.CLOCK_BOOTTIME)
    return None


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)
